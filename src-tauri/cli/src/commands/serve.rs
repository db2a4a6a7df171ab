//! `hearth serve`: bind, say so, load, say so, answer until told to stop.

use crate::args::ServeArgs;
use crate::client::Client;
use crate::commands::ending::Ending;
use crate::commands::learning::Learner;
use crate::commands::unclean::{self, Recorder, Watch};
use crate::commands::{local, model, preferences};
use crate::failure::Failure;
use crate::output;
use hearth_core::Backend;
use hearth_core::stats::{CacheStats, Health, SsdState, Stats};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions};
use hearth_library::download::DownloadManager;
use hearth_library::home::{Home, HomeLock, Ownership, ServerRecord, now};
use hearth_library::scan::{ModelEntry, Places};
use hearth_library::{learned::Log, marker};
use hearth_server::{Bound, Learning, ServerConfig, StartError, bind, serve};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Serves until a signal or `hearth stop`.
///
/// # Errors
/// Before listening: a wrong option (2), no such model (3), a taken home or port (1). After: a model that cannot be
/// used (3).
pub async fn run(mut args: ServeArgs, home: &Home) -> Result<(), Failure> {
    let settings = preferences::apply(&mut args, home)?;
    let token = new_token()?;
    let config = config(&args, &token);
    if config.host != "localhost" && config.host.parse::<std::net::IpAddr>().is_err() {
        return Err(Failure::usage(format!("`--host` must be an IP address or localhost; it is {}", config.host)));
    }
    if !config.is_loopback() && config.api_keys.is_empty() {
        return Err(Failure::usage(format!(
            "{} can be reached from other computers, so an API key is required: add --api-key KEY, or leave out --host",
            config.host
        )));
    }
    let config = ServerConfig {
        places: Places::standard(home, &settings.model_folders()),
        logs: args.logs.clone(),
        settings: settings.clone(),
        ..config
    };
    let cache = cache(&args, home)?;
    // From here on a signal ends the server in order, however early it comes.
    let (stop, running) = stop_on_signals()?;
    let entry = match args.model {
        None if !settings.switch("auto_load", true) => None,
        _ => model::pick(args.model.as_deref(), home)?,
    };
    let owner = home.acquire()?;
    // What was in memory when a server went down is not loaded again by itself: it may go down again.
    let left = marker::left_behind(home, &owner, unclean::boot().as_deref()).filter(|_| args.model.is_none());
    let entry = entry.filter(|_| left.is_none());
    let config = ServerConfig {
        notice: left.as_ref().map(unclean::why),
        learning: Some(Learning { log: Log::of(home), mlx: hearth_mlx::version() }),
        downloads: DownloadManager::standard(home).ok(),
        ..config
    };
    let lock = match owner {
        Ownership::Owned(lock) => lock,
        Ownership::Held(holder) => {
            return Err(Failure::no(format!(
                "{holder}; stop it with `hearth stop`, or set HEARTH_HOME to another folder to run a second one"
            )));
        }
    };
    let bound = match bind(config).await {
        Ok(bound) => bound,
        Err(e) => return Err(refused(e).await),
    };
    let mut record = ServerRecord {
        pid: std::process::id(),
        host: bound.local_addr().ip().to_string(),
        port: bound.local_addr().port(),
        model: None,
        started: now(),
        token: Some(token),
    };
    lock.publish(&record)?;
    let ending = Ending::begin(home)?;
    output::line(&format!("listening on {}", bound.url()))?;

    let engine = Engine::start(EngineOptions {
        max_rows: args.max_rows as usize,
        prefill_chunk: args.engine.prefill_chunk as usize,
        context: args.engine.context.map(|n| n as usize),
        memory: local::memory(&args.engine),
        cache,
        ..EngineOptions::default()
    })?;
    let recorder = Recorder::new(home);
    let _ = running.set((engine.clone(), recorder.clone()));
    let kv_bits = args.cache.kv_bits.as_deref().and_then(|bits| bits.parse().ok());
    let mut learner = Learner::new(home, kv_bits, args.engine.prefill_chunk.into());
    let look = {
        let engine = engine.clone();
        move |health: &Health, stats: &Stats| learner.look(&engine, health, stats)
    };
    let watch = Watch::start(recorder.clone(), engine.clone(), look)?;
    let served = answer(bound, &engine, stop, async |engine| match (&entry, &left) {
        (None, Some(left)) => output::line(&format!("no model is loaded: {}", unclean::why(left))),
        (None, None) => output::line(&format!("no model is loaded: {}", model::unclear("serve", home))),
        (Some(entry), _) => {
            let name = name_of(entry);
            let budget = Some(engine.stats().memory.ledger.budget).filter(|&bytes| bytes > 0);
            recorder.loading(&name, args.engine.context.map(u64::from), budget);
            ready(engine, entry, &name, home, &lock, &mut record).await
        }
    });
    let served = served.await;
    // It ends because it was told to, or says why it does.
    drop(watch);
    recorder.end();
    // Nobody is told any more of a server that does not answer; the home is this process's until the cache is saved.
    let _ = std::fs::remove_file(home.server_json());
    let ended = match served {
        Ok(()) => end(engine, ending, 0).await,
        Err(failure) => {
            failure.report();
            end(engine, ending, failure.code as i32).await?;
            Err(Failure { message: String::new(), ..failure })
        }
    };
    drop(lock);
    ended
}

/// How long the prompt cache may take to get to disk when the server ends.
const SAVING: Duration = Duration::from_secs(60);

/// Ends the engine when its prompt cache is on disk, and says what became of that.
async fn end(engine: EngineHandle, ending: Ending, code: i32) -> Result<(), Failure> {
    let cache = engine.stats().cache;
    if !has_to_be_saved(&cache) {
        drop(ending);
        local::shut_down(engine, local::BUSY, code).await;
        return Ok(());
    }
    let started = Instant::now();
    let lost = match tokio::time::timeout(SAVING, engine.flush_cache()).await {
        Ok(Ok(flush)) if flush.failed.is_empty() => None,
        Ok(Ok(flush)) => Some(format!("the prompt cache is not all saved: {}", flush.failed.join("; "))),
        Ok(Err(lost)) => Some(format!("the prompt cache is not saved: {lost}")),
        Err(_) => Some(format!(
            "the prompt cache is not all saved in {} s: {} are lost",
            SAVING.as_secs(),
            output::size(engine.stats().cache.ssd.pending)
        )),
    };
    let said = match &lost {
        None => {
            let ssd = engine.stats().cache.ssd;
            let (on_disk, dir) = (output::size(ssd.bytes), ssd.dir.unwrap_or_default());
            drop(ending);
            output::line(&format!("the prompt cache is saved: {on_disk} in {}", dir.display()))
        }
        Some(why) => {
            eprintln!("{why}");
            ending.lost(why);
            Ok(())
        }
    };
    // What a cancelled row leaves after the flush is saved by the engine itself.
    local::shut_down(engine, SAVING.saturating_sub(started.elapsed()).max(local::BUSY), code).await;
    said
}

/// Whether there is anything that an end in order brings to disk. With the tier off there is nothing to wait for, and
/// nothing that anybody would expect to find again.
fn has_to_be_saved(cache: &CacheStats) -> bool {
    cache.ssd.state != SsdState::Off && (cache.ram.entries > 0 || cache.ssd.pending > 0)
}

/// What a user hears who does not wait for the prompt cache; `None` when nothing is lost by it.
fn cut_short(cache: &CacheStats) -> Option<String> {
    let in_memory = output::counted(cache.ram.entries as u64, "entry", "entries");
    has_to_be_saved(cache).then(|| {
        format!(
            "not saved: what is not on disk yet of the prompt cache in memory ({in_memory}, {})",
            output::size(cache.ram.bytes)
        )
    })
}

/// The prompt cache's settings.
fn cache(args: &ServeArgs, home: &Home) -> Result<CacheOptions, Failure> {
    let flags = &args.cache;
    let dir = match &flags.cache_dir {
        Some(dir) => std::path::absolute(dir)
            .map_err(|e| Failure::usage(format!("`--cache-dir` {} cannot be used: {e}", dir.display())))?,
        None => home.cache(),
    };
    Ok(CacheOptions {
        ram: flags.cache_ram.unwrap_or_else(local::default_cache_ram),
        ssd: flags.cache_ssd.unwrap_or(32 << 30),
        dir: Some(dir),
        kv_bits: flags.kv_bits.as_deref().and_then(|bits| bits.parse().ok()),
        idle: Duration::from_secs(flags.cache_idle.into()),
        ..CacheOptions::default()
    })
}

/// Serves while `then` runs and after it, until `stop`; ends early when `then` fails.
async fn answer(
    bound: Bound,
    engine: &EngineHandle,
    mut stop: watch::Receiver<bool>,
    then: impl AsyncFnOnce(&EngineHandle) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (end, mut ended) = watch::channel(false);
    let shutdown = async move {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            _ = ended.wait_for(|end| *end) => {}
        }
    };
    let mut server = tokio::spawn(serve(bound, Arc::new(engine.clone()), shutdown));
    let ended_early = |e: tokio::task::JoinError| Failure::no(format!("the server ended: {e}"));
    let done = tokio::select! {
        // A signal during the load ends the server, and with it the wait for the load.
        ended = &mut server => return ended.map_err(ended_early),
        done = then(engine) => done,
    };
    if done.is_err() {
        end.send_replace(true);
    }
    let ended = server.await.map_err(ended_early);
    // `end` lives until here: a dropped sender would end the wait as well.
    drop(end);
    done.and(ended)
}

/// Loads the model and says so.
async fn ready(
    engine: &EngineHandle,
    entry: &ModelEntry,
    name: &str,
    home: &Home,
    lock: &HomeLock,
    record: &mut ServerRecord,
) -> Result<(), Failure> {
    let started = Instant::now();
    let model = model::load(engine, entry).await?;
    home.set_last_model(name)?;
    record.model = Some(model.id.clone());
    lock.publish(record)?;
    let took = started.elapsed().as_secs_f64();
    output::line(&format!("ready: {} ({} tokens context, loaded in {took:.1} s)", model.id, model.context))
}

/// What finds this model again. A folder outside the usual places is found only by its path.
fn name_of(entry: &ModelEntry) -> String {
    match entry.source {
        hearth_library::scan::Source::Folder => entry.path.display().to_string(),
        _ => entry.id.clone(),
    }
}

fn config(args: &ServeArgs, token: &str) -> ServerConfig {
    let mut api_keys = args.api_keys.clone();
    if !api_keys.is_empty() {
        // `hearth ps` and `hearth run` have the admin token, and no API key.
        api_keys.push(token.to_owned());
    }
    ServerConfig {
        host: args.host.clone(),
        port: args.port,
        api_keys,
        allowed_hosts: args.allow_hosts.clone(),
        allowed_origins: args.allow_origins.clone(),
        keep_client_headers: args.keep_client_headers,
        admin_token: Some(token.to_owned()),
        // With the engine's own second this stays under the three that a stop may take.
        shutdown_grace: Duration::from_millis(1500),
        ..ServerConfig::default()
    }
}

/// 128 random bits for the admin routes, new with every start.
fn new_token() -> Result<String, Failure> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Failure::no(format!("cannot read /dev/urandom: {e}")))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Why binding failed, and who has the port if it is another Hearth.
async fn refused(e: StartError) -> Failure {
    match &e {
        StartError::InUse { address } => {
            let health = match Client::new(&format!("http://{address}"), None) {
                Ok(client) => client.health().await.ok(),
                Err(_) => None,
            };
            match health {
                Some(health) => Failure::no(format!("{e}; it is a Hearth {}", local::doing(&health))),
                None => Failure::no(e.to_string()),
            }
        }
        StartError::KeyRequired { .. } | StartError::EmptyKey | StartError::Host { .. } => {
            Failure::usage(e.to_string())
        }
        StartError::Bind { .. } => Failure::no(e.to_string()),
    }
}

/// Turns true at the first SIGINT, SIGTERM or SIGHUP. A second one ends the process at once, and says what the engine
/// has not saved, once there is one.
fn stop_on_signals() -> Result<(watch::Receiver<bool>, Arc<OnceLock<(EngineHandle, Recorder)>>), Failure> {
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        signals.push(signal(kind).map_err(|e| Failure::no(format!("cannot watch for signals: {e}")))?);
    }
    let (send, receive) = watch::channel(false);
    let seen = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let running = Arc::new(OnceLock::<(EngineHandle, Recorder)>::new());
    for mut one in signals {
        let (send, seen, running) = (send.clone(), seen.clone(), running.clone());
        tokio::spawn(async move {
            while one.recv().await.is_some() {
                if seen.swap(true, std::sync::atomic::Ordering::Relaxed) {
                    if let Some((engine, recorder)) = running.get() {
                        // Whoever presses twice knows what was running.
                        recorder.end();
                        if let Some(lost) = cut_short(&engine.stats().cache) {
                            eprintln!("{lost}");
                        }
                    }
                    crate::system::leave_at_once(130);
                }
                send.send_replace(true);
            }
        });
    }
    Ok((receive, running))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{RamCacheStats, SsdCacheStats};

    #[test]
    fn who_does_not_wait_hears_what_is_lost() {
        let ram = RamCacheStats { entries: 1, bytes: 12_400_000, ..RamCacheStats::default() };
        let ssd = SsdCacheStats { state: SsdState::Ready, ..SsdCacheStats::default() };
        let said = cut_short(&CacheStats { ram: ram.clone(), ssd: ssd.clone() }).unwrap();
        assert!(said.starts_with("not saved: ") && said.ends_with("(1 entry, 12.4 MB)"), "{said}");
        assert_eq!(cut_short(&CacheStats { ram, ssd: SsdCacheStats::default() }), None, "the tier is off");
        assert_eq!(cut_short(&CacheStats { ram: RamCacheStats::default(), ssd }), None, "nothing is there");
    }
}
