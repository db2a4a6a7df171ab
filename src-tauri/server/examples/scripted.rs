//! A server with the dashboard and a pretended model, for work on the dashboard and for its browser tests:
//! `cargo run -p hearth-server --example scripted`. It prints its address, and a link that lets a browser in.
//!
//! A message that says `long` gets ten thousand tokens, `slow` a token every 50 ms, `fail` an error, `refuse` a refusal
//! for want of memory, `code` some Markdown with code; anything else is echoed.

use hearth_core::backend::{BoxFuture, Generation, ModelCard, ServedModel, Unloaded};
use hearth_core::stats::{
    CacheClear, CacheFlush, CacheStats, GuardAction, GuardLevel, GuardStats, Health, LedgerStats, MemoryStats,
    ModelStats, PressureLevel, RamCacheStats, RowStats, SsdCacheStats, SsdState, Stats, Totals,
};
use hearth_core::{Backend, EngineError, GenerateRequest, Limits, LimitsPreview};
use hearth_server::logs::LogRing;
use hearth_server::settings::Settings;
use hearth_server::testing::{ScriptedBackend, Step, model};
use hearth_server::{CommandStatus, Desktop, DesktopStatus, ServerConfig, bind, serve};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const TOKEN: &str = "scripted-admin-token";
const WEIGHTS: u64 = 8_200_000_000;
/// Of these, a second model's.
const SMALL: u64 = 400_000_000;
const RESERVE: u64 = 768_000_000;

/// An app around the server that does nothing.
#[derive(Default)]
struct Around {
    linked: AtomicBool,
}

impl Desktop for Around {
    fn status(&self) -> DesktopStatus {
        let installed = self.linked.load(Ordering::Relaxed);
        let command = CommandStatus { installed, link: "/usr/local/bin/hearth".into() };
        DesktopStatus { login_item: true, command: Some(command) }
    }

    fn set_launch_at_login(&self, on: bool) -> Result<(), String> {
        match on {
            true => Err("the login item is not allowed; allow it in System Settings, General, Login Items".into()),
            false => Ok(()),
        }
    }

    fn install_command(&self) -> Result<(), String> {
        self.linked.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn restart(&self) {}
}

/// A scripted engine with the memory of a real one.
struct Pretended {
    script: ScriptedBackend,
    started: Instant,
    /// Requests so far.
    requests: AtomicU64,
    limits: Mutex<Limits>,
    action: GuardAction,
}

impl Pretended {
    fn ledger(&self) -> LedgerStats {
        let rows = self.script.active() as u64;
        let done = self.requests.load(Ordering::Relaxed);
        let budget = self.limits().budget.unwrap_or_default();
        let kv = rows * 640_000_000;
        let cap = self.limits().cache_ram.unwrap_or_default();
        let prompt_cache = (done.saturating_sub(rows) * 210_000_000).min(cap);
        let (prefill_transient, allocator_cache) = if rows > 0 { (420_000_000, 512_000_000) } else { (0, 96_000_000) };
        let total = WEIGHTS + kv + prompt_cache + prefill_transient + allocator_cache + RESERVE;
        LedgerStats {
            budget,
            budget_from: "default".into(),
            weights: WEIGHTS,
            kv,
            prompt_cache,
            prefill_transient,
            allocator_cache,
            reserve: RESERVE,
            total,
            free: budget.saturating_sub(total),
            soft: budget / 100 * 85,
            hard: budget / 100 * 95,
            baseline: 62_000_000,
            unaccounted: 14_000_000,
            largest_context: budget.saturating_sub(WEIGHTS + RESERVE) / 131_072,
        }
    }
}

impl Backend for Pretended {
    fn models(&self) -> BoxFuture<'_, Vec<ModelCard>> {
        self.script.models()
    }

    fn load_model<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>> {
        self.script.load_model(name)
    }

    fn unload_model<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Unloaded, EngineError>> {
        self.script.unload_model(id)
    }

    fn pin_model(&self, id: &str, pinned: bool) {
        self.script.pin_model(id, pinned);
    }

    fn keep_alive(&self, model: &ServedModel, stay: Option<Duration>) {
        self.script.keep_alive(model, stay);
    }

    fn resolve<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>> {
        self.script.resolve(name)
    }

    fn submit(&self, model: &ServedModel, request: GenerateRequest) -> Result<Generation, EngineError> {
        let text = model.tokenizer.decode(&request.prompt);
        if text.contains("refuse") {
            return Err(EngineError::InsufficientMemory {
                needed: 3_400_000_000,
                free: 900_000_000,
                budget: self.limits().budget.unwrap_or_default(),
                retry_after_s: 5,
            });
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.script.submit(model, request)
    }

    fn health(&self) -> Health {
        self.script.health()
    }

    fn stats(&self) -> Stats {
        let requests = self.requests.load(Ordering::Relaxed);
        let active = self.script.active();
        let ledger = self.ledger();
        let rows = (0..active as u64).map(|n| RowStats {
            id: requests.saturating_sub(active as u64) + n,
            phase: "decode".into(),
            prompt_tokens: 812,
            prefilled: 812,
            generated: (self.started.elapsed().as_millis() / 25) as usize % 10_000,
            tokens_per_s: 41.7,
            model: "mlx-community/Qwen3-14B-4bit".into(),
        });
        let hits = requests.saturating_sub(1);
        let ram = RamCacheStats {
            cap: self.limits().cache_ram.unwrap_or_default(),
            bytes: ledger.prompt_cache,
            entries: requests.saturating_sub(active as u64).min(40) as usize,
            tokens: requests * 820,
            hits,
            misses: requests.min(1),
            reused_tokens: hits * 790,
            stored: requests,
            ..RamCacheStats::default()
        };
        let ssd = SsdCacheStats {
            state: SsdState::Ready,
            dir: Some("/Users/me/Library/Application Support/Hearth/cache".into()),
            cap: self.limits().cache_ssd.unwrap_or_default(),
            bytes: 3_100_000_000,
            files: 214,
            written: 640_000_000,
            ..SsdCacheStats::default()
        };
        let model = self.script.stats().model.map(|model| ModelStats {
            model_type: "qwen3".into(),
            load_s: 2.4,
            weights: WEIGHTS - SMALL,
            requests: active,
            ..model
        });
        let small = ModelStats {
            id: "mlx-community/Qwen3-0.6B-4bit".into(),
            model_type: "qwen3".into(),
            context: 40_960,
            load_s: 0.6,
            weights: SMALL,
            pinned: true,
            ..ModelStats::default()
        };
        Stats {
            version: hearth_core::stats::STATS_VERSION,
            uptime_s: self.started.elapsed().as_secs_f64(),
            models: model.iter().cloned().chain([small]).collect(),
            model,
            rows: rows.collect(),
            waiting: 0,
            max_rows: self.limits().max_rows.unwrap_or_default(),
            totals: Totals { requests, ..Totals::default() },
            memory: MemoryStats {
                weights: WEIGHTS,
                kv: ledger.kv,
                process: ledger.total - RESERVE,
                ledger,
                guard: GuardStats {
                    level: if active > 3 { GuardLevel::Soft } else { GuardLevel::Normal },
                    pressure: if active > 3 { PressureLevel::Warning } else { PressureLevel::Normal },
                    admitting: true,
                    chunk: 2048,
                    actions: vec![self.action.clone()],
                },
                ..MemoryStats::default()
            },
            cache: CacheStats { ram, ssd },
        }
    }

    fn flush_cache(&self) -> BoxFuture<'_, Result<CacheFlush, EngineError>> {
        self.script.flush_cache()
    }

    fn clear_cache(&self) -> BoxFuture<'_, Result<CacheClear, EngineError>> {
        self.script.clear_cache()
    }

    fn set_limits(&self, limits: Limits) -> BoxFuture<'_, Result<Limits, EngineError>> {
        let preview = self.preview_limits(limits);
        if preview.is_ok_and(|preview| !preview.fits) {
            let allowed = format!("{} bytes or more", WEIGHTS + RESERVE);
            let refusal = EngineError::param("budget", &allowed, limits.budget.unwrap_or_default());
            return Box::pin(std::future::ready(Err(refusal)));
        }
        let mut all = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        *all = Limits {
            budget: limits.budget.or(all.budget),
            cache_ram: limits.cache_ram.or(all.cache_ram),
            cache_ssd: limits.cache_ssd.or(all.cache_ssd),
            context: limits.context.or(all.context),
            max_rows: limits.max_rows.or(all.max_rows),
        };
        Box::pin(std::future::ready(Ok(*all)))
    }

    fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn preview_limits(&self, limits: Limits) -> Result<LimitsPreview, EngineError> {
        let budget = limits.budget.or(self.limits().budget).unwrap_or_default();
        let needed = WEIGHTS + RESERVE;
        let kept = self.ledger().prompt_cache;
        let demoted_bytes = kept.saturating_sub(limits.cache_ram.unwrap_or(kept));
        Ok(LimitsPreview {
            fits: budget >= needed,
            short_by: needed.saturating_sub(budget),
            largest_context: budget.saturating_sub(needed) / 131_072,
            demoted_entries: demoted_bytes.div_ceil(210_000_000) as usize,
            demoted_bytes,
        })
    }

    fn cancel(&self, id: u64) -> bool {
        self.script.cancel(id)
    }
}

fn script(request: &GenerateRequest) -> Vec<Step> {
    let bytes: Vec<u8> = request.prompt.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
    let prompt = String::from_utf8_lossy(&bytes).into_owned();
    let asked = prompt.rsplit("user\n").next().unwrap_or_default().trim_end_matches("assistant\n").trim().to_owned();
    let cached = request.prompt.len() / 2;
    let mut steps = vec![Step::Admit(cached), Step::Prefill(request.prompt.len())];
    match () {
        () if asked.contains("long") => {
            for _ in 0..400 {
                steps.push(Step::Text("ten words, or so".into()));
                steps.push(Step::Wait(Duration::from_millis(20)));
                steps.push(Step::Text(" and on\n\n".into()));
            }
        }
        () if asked.contains("slow") => {
            for _ in 0..600 {
                steps.push(Step::Text(" on".into()));
                steps.push(Step::Wait(Duration::from_millis(50)));
            }
        }
        () if asked.contains("fail") => {
            steps.push(Step::Text("This goes well until".into()));
            steps.push(Step::Fail(EngineError::Compute { message: "the device ended the computation".into() }));
        }
        () if asked.contains("code") => {
            let answer = "Here is a **small** example:\n\n```rust\nfn main() {\n    println!(\"hello\");\n}\n```\n\n\
                          1. It prints `hello`.\n2. It ends.\n\n<img src=x onerror=\"window.hacked = true\">\n";
            for piece in answer.split_inclusive(' ') {
                steps.push(Step::Text(piece.into()));
                steps.push(Step::Wait(Duration::from_millis(5)));
            }
        }
        () => {
            for piece in format!("You said: {asked}").split_inclusive(' ') {
                steps.push(Step::Text(piece.into()));
                steps.push(Step::Wait(Duration::from_millis(15)));
            }
        }
    }
    steps
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).map_or(Ok(0), |port| port.parse())?;
    let logs = LogRing::default();
    tracing_subscriber::registry().with(logs.clone().with_filter(LevelFilter::INFO)).init();
    let settings = match std::env::var_os("HEARTH_HOME") {
        Some(home) => Settings::open(&std::path::Path::new(&home).join("settings.toml"))?,
        None => Settings::default(),
    };
    let desktop: Option<Arc<dyn Desktop>> = Some(Arc::new(Around::default()));
    let config =
        ServerConfig { port, admin_token: Some(TOKEN.into()), logs, settings, desktop, ..ServerConfig::default() };
    let bound = bind(config).await?;
    println!("listening on {}", bound.url());
    println!("admin token {TOKEN}");
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let mut served = model();
    served.id = "mlx-community/Qwen3-14B-4bit".into();
    served.context = 32_768;
    let backend = Pretended {
        script: ScriptedBackend::with_model(served, script),
        started: Instant::now(),
        requests: AtomicU64::new(0),
        limits: Mutex::new(Limits {
            budget: Some(18_000_000_000),
            cache_ram: Some(4_000_000_000),
            cache_ssd: Some(32_000_000_000),
            context: Some(32_768),
            max_rows: Some(8),
        }),
        action: GuardAction {
            id: 1,
            at,
            what: "demote".into(),
            why: "15.6 GB of 18.0 GB are in use, above the soft mark of 15.3 GB.".into(),
            freed: 420_000_000,
        },
    };
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    serve(bound, Arc::new(backend), stop).await;
    Ok(())
}
