//! `hearth ps`: the running server, its model, rows and memory.

use crate::args::DataArgs;
use crate::commands::running;
use crate::failure::Failure;
use crate::output::{self, size};
use hearth_core::stats::{Health, Stats};
use hearth_library::home::Home;
use serde_json::json;

/// Shows the running server.
///
/// # Errors
/// Exit code 4 when there is none or it does not answer.
pub async fn run(args: &DataArgs, home: &Home) -> Result<(), Failure> {
    let server = running::required(home)?;
    let health = server.client.health().await?;
    let stats = server.client.stats().await?;
    let (url, pid) = (server.client.base(), server.record.pid);
    if args.json {
        let started = server.record.started;
        return output::json(&json!({"url": url, "pid": pid, "started": started, "health": health, "stats": stats}));
    }
    output::line(&format!("{url}  pid {pid}  up {}", output::duration(stats.uptime_s)))?;
    output::print(&summary(&health, &stats))?;
    if stats.rows.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = stats
        .rows
        .iter()
        .map(|r| {
            let prompt = format!("{}/{}", r.prefilled, r.prompt_tokens);
            vec![r.id.to_string(), r.phase.clone(), prompt, r.generated.to_string(), format!("{:.1}", r.tokens_per_s)]
        })
        .collect();
    let header = ["ROW", "PHASE", "PROMPT", "GENERATED", "TOK/S"];
    output::print(&format!("\n{}", output::table(&header, &[true, false, true, true, true], &rows)))
}

fn summary(health: &Health, stats: &Stats) -> String {
    let model = match (health, &stats.model) {
        (Health::Loading { model, percent }, _) => format!("{model}, loading ({percent} %)"),
        (Health::Failed { message }, _) => format!("failed: {message}"),
        (_, Some(m)) => format!("{} ({}, {} tokens context)", m.id, m.model_type, m.context),
        (_, None) => "none loaded".to_owned(),
    };
    let (memory, totals) = (&stats.memory, &stats.totals);
    format!(
        "model   {model}\n\
         rows    {} of {} busy, {} waiting\n\
         memory  {} in all, of it {} weights, {} KV caches, {} allocator cache\n\
         cache   {} in memory, {} on disk, {} tokens reused\n\
         so far  {} requests, {} prompt tokens, {} generated tokens\n",
        stats.rows.len(),
        stats.max_rows,
        stats.waiting,
        size(memory.process),
        size(memory.weights),
        size(memory.kv),
        size(memory.mlx_cache),
        size(stats.cache.ram.bytes),
        size(stats.cache.ssd.bytes),
        stats.cache.ram.reused_tokens + stats.cache.ssd.reused_tokens,
        totals.requests,
        totals.prompt_tokens,
        totals.generated_tokens,
    )
}
