//! `hearth fit`: does a model fit on this computer, with how much context, and how fast would it be; and on which Macs.

use crate::args::FitArgs;
use crate::failure::Failure;
use crate::output::{self, size};
use crate::sizes::exact;
use hearth_core::fit::{self, Ask, Fit, LimitedBy, Report};
use hearth_core::kv_policy::KvPolicy;
use hearth_library::headers;
use hearth_library::home::Home;
use hearth_library::scan::{Places, locate};
use hearth_machine::chips;

/// Reads the model's headers and does the arithmetic.
///
/// # Errors
/// Exit code 3 when the model cannot be used, 1 when it does not fit.
pub fn run(args: &FitArgs, home: &Home) -> Result<(), Failure> {
    let (id, path) = locate(&args.model, &Places::standard(home, &[]))?;
    let (model, _) = headers::model(&path)?;
    let kv_bits = args.kv_bits.as_deref().and_then(|bits| bits.parse().ok());
    let kv = KvPolicy::for_model(&path, model.shape.layers, kv_bits)?;
    let ask = Ask { context: args.context.map(u64::from), budget: args.memory_budget, kv };
    let skus = args.skus.then(chips::skus);
    let report = fit::report(&id, &path, &model, &chips::here(), &ask, skus.as_deref());
    if args.json {
        output::json(&report)?;
    } else {
        output::print(&shown(&report, args.memory_budget.is_some()))?;
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
    match here.decode_tokens_per_s {
        Some(speed) => text.push_str(&format!("about {} tokens per second, as predicted\n", speed_of(speed))),
        None => text.push_str("no prediction of its speed: the memory bandwidth of this computer is not known\n"),
    }
    for note in &report.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    if let Some(skus) = &report.skus {
        text.push_str(&format!("\nMacs, at {} tokens of context:\n{}", report.context, table(skus)));
    }
    text
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
        let large = report(12_000_000_000, None, LimitedBy::Memory);
        says(&large, true, "larger --memory-budget");
        says(&large, false, "weights in fewer bits");
    }
}
