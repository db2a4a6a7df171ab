//! `hearth convert`: an unquantized model becomes a quantized one.

use crate::args::ConvertArgs;
use crate::commands::model;
use crate::failure::Failure;
use crate::output::{self, say};
use hearth_engine::convert;
use hearth_library::home::Home;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::PathBuf;

/// Converts, and prints the new folder on the last line.
///
/// # Errors
/// When the scheme makes no sense (2), the model cannot be converted or the folder cannot be written (3).
pub fn run(args: &ConvertArgs, home: &Home) -> Result<(), Failure> {
    let scheme = convert::scheme(&args.mode, args.bits, args.group)
        .map_err(|e| Failure::usage(format!("`--mode {}`, `--bits` and `--group`: {e}", args.mode)))?;
    let Some(entry) = model::pick(Some(&args.model), home)? else {
        return Err(model::unclear("convert", home));
    };
    let out = match &args.out {
        Some(out) => std::path::absolute(out)?,
        None => {
            let kind = if args.mode == "affine" { format!("{}bit", scheme.bits) } else { args.mode.clone() };
            let name = entry.id.rsplit('/').next().unwrap_or(&entry.id);
            default_folder(&format!("{name}-{kind}"), home)?
        }
    };
    if let Some(parent) = out.parent() {
        std::fs::create_dir_all(parent)
            .map_err(|e| Failure::unusable(format!("cannot create {}: {e}", parent.display())))?;
    }
    let bar = ProgressBar::new(0).with_style(style());
    let report = convert::convert(&entry.path, &out, scheme, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.map_err(|e| Failure::unusable(e.to_string()))?;
    let (before, after) = report.bytes;
    if args.json {
        return output::json(&json!({
            "folder": report.folder, "quantized": report.quantized, "kept": report.kept,
            "bytes_before": before, "bytes": after,
            "mode": scheme.mode.name(), "bits": scheme.bits, "group_size": scheme.group_size,
        }));
    }
    say!(
        "converted {}: {} matrices to {} in groups of {}, {} instead of {}",
        entry.id,
        report.quantized,
        if args.mode == "affine" { format!("{} bits", scheme.bits) } else { args.mode.clone() },
        scheme.group_size,
        output::size(after),
        output::size(before)
    );
    output::line(&report.folder.display().to_string())
}

/// A folder of this name among Hearth's models; one that exists is named, so that nothing is mistaken for new.
fn default_folder(name: &str, home: &Home) -> Result<PathBuf, Failure> {
    let folder = home.models().join(name);
    if folder.exists() {
        let folder = folder.display();
        return Err(Failure::unusable(format!("{folder} exists already: remove it, or give --out FOLDER")));
    }
    Ok(folder)
}

/// Speed and time left matter for models of many gigabytes.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("converting {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
