//! `hearth ps`: the running server, its model, rows and memory.

use crate::args::DataArgs;
use crate::commands::running;
use crate::failure::Failure;
use crate::output::{self, size};
use hearth_core::stats::{GuardLevel, GuardStats, Health, ModelStats, PressureLevel, Stats};
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
    let one = |m: &ModelStats| {
        let pinned = if m.pinned { ", pinned" } else { "" };
        format!("{} ({}, {} tokens context, {}{pinned})", m.id, m.model_type, m.context, size(m.weights))
    };
    let mut models: Vec<String> = stats.models.iter().map(one).collect();
    match health {
        Health::Loading { model, percent } => models.push(format!("{model}, loading ({percent} %)")),
        Health::Failed { message } => models.push(format!("failed: {message}")),
        _ if models.is_empty() => models.push("none loaded".to_owned()),
        _ => {}
    }
    let model = models.join("\n        ");
    let (memory, totals) = (&stats.memory, &stats.totals);
    let ledger = &memory.ledger;
    format!(
        "model   {model}\n\
         rows    {} of {} busy, {} waiting\n\
         memory  {} of the budget of {} ({}): {} weights, {} rows, {} prompt cache, {} computing, {} allocator, {} reserve\n\
         process {}, {} of it unaccounted for; room for a context of {} tokens\n\
         {}\
         cache   {} in memory, {} on disk, {} tokens reused\n\
         so far  {} requests, {} prompt tokens, {} generated tokens\n",
        stats.rows.len(),
        stats.max_rows,
        stats.waiting,
        size(ledger.total),
        size(ledger.budget),
        ledger.budget_from,
        size(ledger.weights),
        size(ledger.kv),
        size(ledger.prompt_cache),
        size(ledger.prefill_transient),
        size(ledger.allocator_cache),
        size(ledger.reserve),
        size(memory.process),
        signed(ledger.unaccounted),
        ledger.largest_context,
        guarded(&memory.guard),
        size(stats.cache.ram.bytes),
        size(stats.cache.ssd.bytes),
        stats.cache.ram.reused_tokens + stats.cache.ssd.reused_tokens,
        totals.requests,
        totals.prompt_tokens,
        totals.generated_tokens,
    )
}

/// What the guard has to say, as a line; nothing while there is room.
fn guarded(guard: &GuardStats) -> String {
    let tight = match (guard.level, guard.pressure) {
        (_, PressureLevel::Critical) => "the system's memory pressure is critical",
        (_, PressureLevel::Warning) => "the system warns of memory pressure",
        (GuardLevel::Hard, _) => "95 % of the budget are taken",
        (GuardLevel::Soft, _) => "85 % of the budget are taken",
        (GuardLevel::Normal, _) => return String::new(),
    };
    let admits = if guard.admitting { "" } else { ", nothing new is admitted" };
    format!("guard   {tight}: chunks of {} tokens{admits}\n", guard.chunk)
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}
