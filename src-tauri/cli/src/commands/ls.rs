//! `hearth ls`: the models on this computer.

use crate::args::DataArgs;
use crate::commands::preferences::{machine, places};
use crate::failure::Failure;
use crate::output::{self, say};
use hearth_library::download::{Download, DownloadManager, DownloadState, ELSEWHERE};
use hearth_library::home::Home;
use hearth_library::scan::scan;
use hearth_library::shelf::{LibraryModel, describe_all};
use serde_json::json;

/// Lists complete and incomplete models.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &DataArgs, home: &Home) -> Result<(), Failure> {
    let found = scan(&places(home));
    let models = describe_all(found.models, &machine(home));
    let downloads: Vec<Download> = match DownloadManager::standard(home) {
        // What never began (a misspelt name) leaves nothing to go on with.
        Ok(manager) => manager
            .list()
            .into_iter()
            .filter(|d| d.state != DownloadState::Done && !(d.state == DownloadState::Failed && d.total == 0))
            .collect(),
        Err(_) => Vec::new(),
    };
    if args.json {
        return output::json(
            &json!({"models": models, "away": found.away, "importable": found.importable, "downloads": downloads}),
        );
    }
    for place in &found.away {
        say!("note: {} cannot be read now", place.display());
    }
    if models.is_empty() && downloads.is_empty() && found.importable.is_empty() {
        eprintln!(
            "no models; get one with `hearth pull ORG/NAME` or `hearth import FILE.gguf`, or put a model folder into {}",
            home.models().display()
        );
        return Ok(());
    }
    let header = ["MODEL", "FAMILY", "WEIGHTS", "PARAMS", "SIZE", "CONTEXT", "FITS", "FOR"];
    let rows: Vec<Vec<String>> = models.iter().map(row).collect();
    if !rows.is_empty() {
        output::print(&output::table(&header, &[false, false, false, true, true, true, false, false], &rows))?;
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
    let elsewhere = job.message.as_ref().filter(|message| message.ends_with(ELSEWHERE));
    if let Some(message) = elsewhere {
        return format!("{name}  {percent} %, {here} of {total}; {message}");
    }
    let state = match job.state {
        DownloadState::Failed => "failed",
        _ => "paused",
    };
    let why = job.message.as_ref().map(|m| format!(" ({m})")).unwrap_or_default();
    format!("{name}  {state} at {percent} %, {here} of {total}{why}; `hearth pull {name}` goes on")
}

fn row(model: &LibraryModel) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let LibraryModel { entry, fit, .. } = model;
    let fits = match fit {
        Some(fit) if !fit.supported => "not run",
        Some(fit) if fit.fits => "yes",
        Some(_) => "no",
        None => "-",
    };
    let uses: Vec<&str> = model.capabilities.iter().map(|capability| capability.word()).collect();
    vec![
        entry.id.clone(),
        or_dash(model.family.clone()),
        or_dash(entry.quantization.clone()),
        or_dash(model.size_label.clone()),
        output::size(entry.bytes),
        or_dash(entry.context.map(|n| n.to_string())),
        fits.to_owned(),
        match &entry.problem {
            Some(why) => format!("unusable: {why}"),
            None => uses.join(", "),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_library::capabilities::Capability;
    use hearth_library::scan::{ModelEntry, Source};
    use hearth_library::shelf::ModelFit;

    #[test]
    fn a_row_says_what_matters() {
        let entry = ModelEntry {
            id: "org/m".into(),
            path: "/m".into(),
            source: Source::Hearth,
            revision: None,
            model_type: Some("llama".into()),
            bytes: 2_000_000_000,
            parameters: Some(3_200_000_000),
            quantization: Some("4-bit".into()),
            context: Some(8192),
            problem: None,
        };
        let fit = ModelFit {
            fits: true,
            total: 3_000_000_000,
            largest_context: Some(8192),
            tok_s: None,
            supported: true,
            estimated: false,
        };
        let mut model = LibraryModel {
            entry,
            complete: true,
            capabilities: vec![Capability::Chat, Capability::Tools],
            fit: Some(fit),
            family: Some("Llama".into()),
            size_label: Some("3.2B".into()),
        };
        assert_eq!(row(&model), ["org/m", "Llama", "4-bit", "3.2B", "2.0 GB", "8192", "yes", "chat, tools"]);
        model.fit.as_mut().unwrap().fits = false;
        assert_eq!(row(&model)[6], "no");
        model.fit.as_mut().unwrap().supported = false;
        assert_eq!(row(&model)[6], "not run");
        (model.fit, model.entry.problem) = (None, Some("a file is missing".into()));
        assert_eq!(row(&model)[6..], ["-", "unusable: a file is missing"]);
    }
}
