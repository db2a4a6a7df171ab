//! `hearth import`: a GGUF file becomes a model folder.

use crate::args::ImportArgs;
use crate::failure::Failure;
use crate::output::{self, say};
use hearth_library::gguf::import_gguf;
use hearth_library::home::Home;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Imports, and prints the new folder on the last line.
///
/// # Errors
/// When the file cannot be imported or the folder cannot be written.
pub fn run(args: &ImportArgs, home: &Home) -> Result<(), Failure> {
    let out = match &args.out {
        Some(out) => std::path::absolute(out)?,
        None => default_folder(&args.file, home)?,
    };
    // The file is opened first, so that a wrong one leaves no folder behind.
    hearth_library::gguf::GgufFile::open(&args.file)?;
    if let Some(parent) = out.parent() {
        std::fs::create_dir_all(parent)
            .map_err(|e| Failure::unusable(format!("cannot create {}: {e}", parent.display())))?;
    }
    let bar = ProgressBar::new(0).with_style(style());
    let report = import_gguf(&args.file, &out, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report?;
    if args.json {
        let types: serde_json::Map<_, _> = report.types.iter().map(|(name, n)| (name.clone(), (*n).into())).collect();
        return output::json(&json!({
            "folder": report.folder, "architecture": report.architecture, "name": report.name,
            "tensors": report.tensors, "parameters": report.parameters, "bytes": report.bytes,
            "types": types, "layers": report.layers, "context": report.context,
        }));
    }
    let name = report.name.as_deref().unwrap_or(&report.architecture);
    say!(
        "imported {name}: {} million parameters, {} layers, {} tokens of context, {}",
        report.parameters / 1_000_000,
        report.layers,
        report.context,
        output::size(report.bytes)
    );
    output::line(&report.folder.display().to_string())
}

/// A folder named after the file, in Hearth's models folder.
fn default_folder(file: &Path, home: &Home) -> Result<PathBuf, Failure> {
    let stem = file.file_stem().filter(|_| file.file_name().is_some());
    let stem = stem.ok_or_else(|| Failure::usage(format!("{} is no file; name one, or give --out", file.display())))?;
    Ok(home.models().join(stem))
}

/// Speed and time left matter for files of many gigabytes.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("importing {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
