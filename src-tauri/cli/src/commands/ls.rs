//! `hearth ls`: the models on this computer.

use crate::args::DataArgs;
use crate::failure::Failure;
use crate::output;
use hearth_library::home::Home;
use hearth_library::scan::{ModelEntry, Places, scan};

/// Lists complete and incomplete models.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &DataArgs, home: &Home) -> Result<(), Failure> {
    let found = scan(&Places::standard(home, &[]));
    if args.json {
        return output::json(&found);
    }
    for place in &found.away {
        eprintln!("note: {} cannot be read now", place.display());
    }
    if found.models.is_empty() {
        eprintln!(
            "no models; make one with `hearth import FILE.gguf`, or put a model folder into {}",
            home.models().display()
        );
        return Ok(());
    }
    let header = ["MODEL", "TYPE", "WEIGHTS", "PARAMS", "SIZE", "CONTEXT", ""];
    let rows: Vec<Vec<String>> = found.models.iter().map(row).collect();
    output::print(&output::table(&header, &[false, false, false, true, true, true, false], &rows))
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

/// `135M`, `1.7B`.
fn count(parameters: u64) -> String {
    let n = parameters as f64;
    match parameters {
        0..1_000_000 => format!("{:.0}k", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0}M", n / 1e6),
        _ => format!("{:.1}B", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_for_people() {
        assert_eq!([93_000, 134_515_008, 1_711_376_384].map(count), ["93k", "135M", "1.7B"]);
    }
}
