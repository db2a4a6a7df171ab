//! `hearth ls`: the models on this computer.

use crate::args::DataArgs;
use crate::failure::Failure;
use crate::output;
use hearth_library::download::{Download, DownloadManager, DownloadState};
use hearth_library::home::Home;
use hearth_library::scan::{ModelEntry, Places, scan};
use hearth_library::shelf::count;
use serde_json::json;

/// Lists complete and incomplete models.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &DataArgs, home: &Home) -> Result<(), Failure> {
    let found = scan(&Places::standard(home, &[]));
    let downloads: Vec<Download> = match DownloadManager::standard(home) {
        Ok(manager) => manager.list().into_iter().filter(|d| d.state != DownloadState::Done).collect(),
        Err(_) => Vec::new(),
    };
    if args.json {
        return output::json(
            &json!({"models": found.models, "away": found.away, "importable": found.importable, "downloads": downloads}),
        );
    }
    for place in &found.away {
        eprintln!("note: {} cannot be read now", place.display());
    }
    if found.models.is_empty() && downloads.is_empty() && found.importable.is_empty() {
        eprintln!(
            "no models; get one with `hearth pull ORG/NAME` or `hearth import FILE.gguf`, or put a model folder into {}",
            home.models().display()
        );
        return Ok(());
    }
    let header = ["MODEL", "TYPE", "WEIGHTS", "PARAMS", "SIZE", "CONTEXT", ""];
    let rows: Vec<Vec<String>> = found.models.iter().map(row).collect();
    if !rows.is_empty() {
        output::print(&output::table(&header, &[false, false, false, true, true, true, false], &rows))?;
    }
    for job in &downloads {
        output::line(&unfinished(job))?;
    }
    for file in &found.importable {
        output::line(&format!(
            "{}  a GGUF file; `hearth import {}` makes a model of it",
            file.id,
            file.path.display()
        ))?;
    }
    Ok(())
}

/// A download that is not complete, and how it goes on.
fn unfinished(job: &Download) -> String {
    let name = if job.revision == "main" { job.repo.clone() } else { format!("{}@{}", job.repo, job.revision) };
    let (percent, here, total) = (job.percent(), output::size(job.bytes), output::size(job.total));
    let state = match job.state {
        DownloadState::Failed => "failed",
        _ => "paused",
    };
    let why = job.message.as_ref().map(|m| format!(" ({m})")).unwrap_or_default();
    format!("{name}  {state} at {percent} %, {here} of {total}{why}; `hearth pull {name}` goes on")
}

fn row(model: &ModelEntry) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        model.id.clone(),
        or_dash(model.model_type.clone()),
        or_dash(model.quantization.clone()),
        or_dash(model.parameters.map(count)),
        output::size(model.bytes),
        or_dash(model.context.map(|n| n.to_string())),
        model.problem.as_ref().map(|why| format!("unusable: {why}")).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_for_people() {
        assert_eq!([93_000, 134_515_008, 1_711_376_384].map(count), ["93k", "135M", "1.7B"]);
    }
}
