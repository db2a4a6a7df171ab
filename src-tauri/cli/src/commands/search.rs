//! `hearth search`: models for MLX on the hub.

use crate::args::SearchArgs;
use crate::commands::preferences::places;
use crate::failure::Failure;
use crate::output::{self, say};
use hearth_library::home::{Home, process_env};
use hearth_library::hub::{Found, Hub, HubOptions};
use hearth_library::scan::scan;
use serde_json::json;

/// Asks the hub and shows what it finds, the most downloaded first.
///
/// # Errors
/// Exit code 1 when the hub gives no answer.
pub async fn run(args: &SearchArgs, home: &Home) -> Result<(), Failure> {
    let refused = |e: hearth_library::hub::HubError| Failure::no(e.to_string());
    let hub = Hub::new(HubOptions::from_env(&process_env)).map_err(|e| Failure::usage(e.to_string()))?;
    let found = hub.search(&args.text, args.limit as usize).await.map_err(refused)?;
    if args.json {
        return output::json(&json!({"models": found}));
    }
    if found.is_empty() {
        say!("{} has no model for MLX that fits {:?}", hub.host(), args.text);
        return Ok(());
    }
    let here: Vec<String> = scan(&places(home)).models.into_iter().map(|m| m.id).collect();
    let header = ["MODEL", "DOWNLOADS", "LIKES", "UPDATED", ""];
    let rows: Vec<Vec<String>> = found.iter().map(|f| row(f, &here)).collect();
    output::print(&output::table(&header, &[false, true, true, false, false], &rows))?;
    eprintln!("get one with `hearth pull MODEL`");
    Ok(())
}

fn row(found: &Found, here: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if here.contains(&found.repo) {
        notes.push("here");
    }
    if found.gated {
        notes.push("gated");
    }
    let day = found.updated.as_deref().and_then(|t| t.get(..10)).unwrap_or("-").to_owned();
    vec![found.repo.clone(), found.downloads.to_string(), found.likes.to_string(), day, notes.join(", ")]
}
