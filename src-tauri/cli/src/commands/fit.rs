//! `hearth fit`: does a model fit on this computer, with how much context, and how fast would it be; and on which Macs.

use crate::args::FitArgs;
use crate::commands::model::meant;
use crate::commands::preferences::{kv, machine, places, settings_of};
use crate::failure::Failure;
use crate::output::{self, size};
use crate::sizes::exact;
use hearth_core::fit::learned::{Learned, Shown};
use hearth_core::fit::memory::Sizing;
use hearth_core::fit::{self, Ask, Fit, LimitedBy, Report};
use hearth_core::kv_policy::KvPolicy;
use hearth_library::headers;
use hearth_library::home::{Home, now};
use hearth_library::learned::{Log, key_of};
use hearth_library::scan::locate;
use hearth_machine::chips;

/// Reads the model's headers and does the arithmetic.
///
/// # Errors
/// Exit code 3 when the model cannot be used, 1 when it does not fit.
pub fn run(args: &FitArgs, home: &Home) -> Result<(), Failure> {
    let (id, path) = locate(&meant(&args.model, home), &places(home))?;
    let (model, _) = headers::model(&path)?;
    let own = settings_of(&id, home);
    let asked = kv(&args.kv)?.or_bits(own.kv_bits);
    let policy = KvPolicy::for_model(&path, model.shape.layers, &asked)?;
    let here = machine(home);
    let records = Log::of(home).read().unwrap_or_else(|e| {
        eprintln!("warning: what was measured here is left out: {e}");
        Default::default()
    });
    if records.skipped > 0 {
        let lines = output::counted(records.skipped as u64, "line", "lines");
        eprintln!("warning: {}: {lines} that cannot be read, skipped", home.learned().display());
    }
    let key = key_of(&id, &path, here.device, &policy, &hearth_mlx::version())?;
    let learned = Learned::of(&records.list, &key, Sizing::new(&model, &here, &policy).weights());
    let context = args.context.map(u64::from).or(own.context.map(|tokens| (tokens as u64).min(model.shape.context)));
    let ask = Ask { context, budget: args.memory_budget, kv: policy, learned };
    let skus = args.skus.then(chips::skus);
    let report = fit::report(&id, &path, &model, &here, &ask, skus.as_deref());
    if args.json {
        output::json(&report)?;
    } else {
        output::print(&shown(&report, args.memory_budget.or(here.allowance.budget).is_some()))?;
    }
    match report.here.fits {
        true => Ok(()),
        // The report has said it.
        false => Err(Failure::no("")),
    }
}

fn shown(report: &Report, told: bool) -> String {
    let here = &report.here;
    let t = &here.terms;
    let chip = here.chip.as_deref().unwrap_or("this computer");
    let ram = if here.ram == 0 { "memory unknown".to_owned() } else { exact(here.ram) };
    let mut text =
        format!("{} ({}), {} tokens of context\n{chip}, {ram}\n\n", report.model, report.model_type, report.context);
    let rows = [
        ("weights", t.weights),
        ("keys and values", t.kv),
        ("prompt computation", t.prefill_transient),
        ("allocator cache", t.allocator_cache),
        ("reserve", t.reserve),
        ("total", here.total),
        ("budget", here.budget),
    ];
    let rows = rows.map(|(name, bytes)| vec![name.to_owned(), size(bytes), format!("{bytes} B")]);
    // Without the empty line of a header.
    text.push_str(output::table(&["", "", ""], &[false, true, true], &rows).trim_start_matches('\n'));
    text.push_str(&format!("\n{}\n", verdict(report, told)));
    text.push_str(&format!("each further token takes {}\n", size(report.kv_bytes_per_token)));
    let measured_at = report.learned.as_ref().and_then(|learned| learned.speed_at);
    match (here.decode_tokens_per_s, measured_at) {
        (Some(speed), Some(at)) => text.push_str(&format!(
            "about {} tokens per second, by what `hearth bench` measured {}\n",
            speed_of(speed),
            ago(at)
        )),
        (Some(speed), None) => text.push_str(&format!("about {} tokens per second, as predicted\n", speed_of(speed))),
        (None, _) => text.push_str(
            "no prediction of its speed: the memory bandwidth of this computer is not known; `hearth bench` measures it\n",
        ),
    }
    if let Some(learned) = &report.learned {
        text.push_str(&measured(learned, t.prefill_transient));
    }
    for note in &report.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    if let Some(skus) = &report.skus {
        text.push_str(&format!("\nMacs, at {} tokens of context:\n{}", report.context, table(skus)));
    }
    text
}

/// What was measured here before, and what it changed.
fn measured(learned: &Shown, transient: u64) -> String {
    let mut text = match (&learned.largest, learned.at) {
        (Some(run), Some(at)) => format!(
            "measured: {} at its peak with {} tokens, where {} were predicted ({}, the last {})\n",
            size(run.measured),
            run.tokens,
            size(run.predicted),
            output::counted(learned.runs as u64, "run", "runs"),
            ago(at)
        ),
        _ => format!("measured: nothing yet with {} to {} tokens\n", learned.bucket / 2 + 1, learned.bucket),
    };
    if transient != learned.computed_transient {
        text.push_str(&format!(
            "prompt computation is {} by these measurements, {} by arithmetic alone\n",
            size(transient),
            size(learned.computed_transient)
        ));
    }
    text
}

/// How long ago something was.
fn ago(at: u64) -> String {
    output::ago(at, now())
}

fn verdict(report: &Report, told: bool) -> String {
    let here = &report.here;
    if here.fits {
        let most = here.largest_context.unwrap_or(report.context);
        let why = match here.limited_by {
            LimitedBy::Model => "all that the model was made for",
            LimitedBy::Memory => "more does not fit into the budget",
        };
        return format!("fits; the largest context is {most} tokens: {why}");
    }
    let over = size(here.total - here.budget);
    let remedy = match here.largest_context {
        Some(most) => format!("use `--context {most}`, or less"),
        None if told => "give it a larger --memory-budget, or take a model with fewer or smaller weights".to_owned(),
        None => "take a model with fewer weights, or with weights in fewer bits".to_owned(),
    };
    format!("does not fit: {over} over the budget; {remedy}")
}

/// `310`, `9.4`.
fn speed_of(tokens_per_s: f64) -> String {
    if tokens_per_s < 10.0 { format!("{tokens_per_s:.1}") } else { format!("{tokens_per_s:.0}") }
}

fn table(skus: &[Fit]) -> String {
    let row = |sku: &Fit| {
        vec![
            sku.chip.clone().unwrap_or_default(),
            exact(sku.ram),
            if sku.fits { "yes" } else { "no" }.to_owned(),
            size(sku.budget),
            sku.largest_context.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            sku.decode_tokens_per_s.filter(|_| sku.fits).map_or_else(|| "-".to_owned(), speed_of),
        ]
    };
    let rows: Vec<Vec<String>> = skus.iter().map(row).collect();
    let header = ["CHIP", "MEMORY", "FITS", "BUDGET", "LARGEST CONTEXT", "TOKENS/S"];
    output::table(&header, &[false, true, false, true, true, true], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::fit::Device;
    use hearth_core::fit::learned::MemoryRun;
    use hearth_core::fit::memory::Terms;

    fn report(total: u64, largest: Option<u64>, limited_by: LimitedBy) -> Report {
        let terms = Terms { weights: total, ..Terms::default() };
        let here = Fit {
            chip: Some("Apple M2".into()),
            device: Device::Gpu,
            ram: 16 << 30,
            budget: 10_000_000_000,
            fits: total <= 10_000_000_000,
            terms,
            total,
            largest_context: largest,
            limited_by,
            bytes_per_token: 1,
            decode_tokens_per_s: Some(9.44),
        };
        Report {
            model: "org/m".into(),
            path: "/m".into(),
            model_type: "llama".into(),
            supported: true,
            notes: vec!["careful".into()],
            context: 8192,
            model_context: 131_072,
            kv_bytes_per_token: 131_072,
            learned: None,
            skus: Some(vec![here.clone()]),
            here,
        }
    }

    #[test]
    fn what_fits_and_what_does_not_is_said_with_the_remedy() {
        let says = |r: &Report, told, part: &str| {
            let text = shown(r, told);
            assert!(text.contains(part), "{part}\n{text}");
        };
        let fits = report(9_000_000_000, Some(20_000), LimitedBy::Memory);
        says(&fits, false, "org/m (llama), 8192 tokens of context\nApple M2, 16 GiB\n\nweights ");
        says(&fits, false, "fits; the largest context is 20000 tokens: more does not fit into the budget");
        says(
            &fits,
            false,
            "each further token takes 131.1 kB\nabout 9.4 tokens per second, as predicted\nnote: careful\n",
        );
        says(
            &fits,
            false,
            "CHIP      MEMORY  FITS   BUDGET  LARGEST CONTEXT  TOKENS/S\nApple M2  16 GiB  yes   10.0 GB            20000       9.4\n",
        );
        says(&report(1, Some(131_072), LimitedBy::Model), false, "131072 tokens: all that the model was made for");
        let long = report(12_000_000_000, Some(4000), LimitedBy::Memory);
        says(&long, false, "does not fit: 2.0 GB over the budget; use `--context 4000`, or less");
        says(&long, false, " no    10.0 GB             4000         -\n");
        let mut measured = fits.clone();
        measured.here.terms.prefill_transient = 300_000_000;
        let run = MemoryRun {
            tokens: 8000,
            rows: 1,
            predicted: 9_000_000_000,
            predicted_transient: 1,
            measured: 9_100_000_000,
        };
        measured.learned = Some(Shown {
            runs: 3,
            bucket: 8192,
            at: Some(now()),
            largest: Some(run),
            computed_transient: 200_000_000,
            speed: None,
            speed_at: Some(now() - 120),
        });
        says(&measured, false, "about 9.4 tokens per second, by what `hearth bench` measured 2 min 0 s ago\n");
        let line =
            "measured: 9.1 GB at its peak with 8000 tokens, where 9.0 GB were predicted (3 runs, the last 0 s ago)\n";
        says(&measured, false, line);
        says(&measured, false, "prompt computation is 300.0 MB by these measurements, 200.0 MB by arithmetic alone\n");
        let large = report(12_000_000_000, None, LimitedBy::Memory);
        says(&large, true, "larger --memory-budget");
        says(&large, false, "weights in fewer bits");
    }
}
