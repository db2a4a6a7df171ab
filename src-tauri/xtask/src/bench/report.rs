//! Figures, ratios and targets: as a table for people, and as JSON.

use serde_json::{Value, json};
use std::fmt::Write;

/// Which peer figure a ratio is to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The better of the two.
    Best,
    /// The one with dense f32 weights.
    Dense,
    /// None: the figure is a ratio itself.
    Nothing,
}

/// What the ratio should be.
#[derive(Clone, Copy)]
pub enum Target {
    /// More is better.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
}

/// Samples of the three contestants: Hearth, mlx-lm on the 4-bit file, mlx-lm on f32 weights.
#[derive(Default)]
pub struct Samples(pub [Vec<f64>; 3]);

/// One line of the table.
pub struct Row {
    /// What was measured.
    pub name: String,
    unit: &'static str,
    target: Target,
    against: Against,
    samples: Samples,
}

impl Samples {
    /// Makes a row of them.
    pub fn row(self, name: &str, unit: &'static str, target: Target, against: Against) -> Row {
        Row { name: name.to_owned(), unit, target, against, samples: self }
    }
}

/// The middle value; of an even number the mean of the two middle ones. None of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

impl Row {
    /// Hearth's figure divided by the peer's; itself when there is no peer.
    pub fn ratio(&self) -> Option<f64> {
        let [hearth, quantized, dense] = self.samples.0.each_ref().map(|values| median(values));
        let peer = match (self.against, self.target) {
            (Against::Nothing, _) => Some(1.0),
            (Against::Dense, _) => dense,
            (Against::Best, Target::AtLeast(_)) => quantized.into_iter().chain(dense).max_by(f64::total_cmp),
            (Against::Best, Target::AtMost(_)) => quantized.into_iter().chain(dense).min_by(f64::total_cmp),
        };
        Some(hearth? / peer?)
    }

    /// True when the target is reached.
    pub fn is_met(&self) -> bool {
        self.ratio().is_some_and(|ratio| match self.target {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
        })
    }

    fn target(&self) -> String {
        match self.target {
            Target::AtLeast(least) => format!("≥ {least}"),
            Target::AtMost(most) => format!("≤ {most}"),
        }
    }
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(v) if v.abs() >= 100.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.3}"),
    }
}

/// The table; medians.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{:<36} {:>7} {:>10} {:>14} {:>12} {:>8} {:>8}",
        "", "", "Hearth", "mlx-lm 4-bit", "mlx-lm f32", "ratio", "target"
    );
    for row in rows {
        let [hearth, quantized, dense] = row.samples.0.each_ref().map(|values| number(median(values)));
        let _ = writeln!(
            text,
            "{:<36} {:>7} {hearth:>10} {quantized:>14} {dense:>12} {:>8} {:>8}  {}",
            row.name,
            row.unit,
            number(row.ratio()),
            row.target(),
            if row.is_met() { "met" } else { "MISSED" }
        );
    }
    text
}

/// All of it, every sample too.
pub fn json(rows: &[Row], runs: usize) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let [hearth, quantized, dense] = &row.samples.0;
            let figure = |values: &[f64]| json!({"median": median(values), "samples": values});
            json!({
                "name": row.name, "unit": row.unit, "hearth": figure(hearth), "mlx_lm_4bit": figure(quantized),
                "mlx_lm_f32": figure(dense), "ratio": row.ratio(), "target": row.target(), "met": row.is_met(),
            })
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({"runs": runs, "cores": cores, "os": std::env::consts::OS, "arch": std::env::consts::ARCH, "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_to_the_better_peer() {
        let samples = || Samples([vec![10.0], vec![5.0], vec![8.0]]);
        let speed = samples().row("speed", "tok/s", Target::AtLeast(1.2), Against::Best);
        assert_eq!(speed.ratio(), Some(1.25));
        assert!(speed.is_met());
        let time = samples().row("time", "s", Target::AtMost(1.9), Against::Best);
        assert_eq!(time.ratio(), Some(2.0));
        assert!(!time.is_met());
        let memory = samples().row("memory", "MB", Target::AtMost(1.25), Against::Dense);
        assert_eq!(memory.ratio(), Some(1.25));
        assert!(table(&[speed, time, memory]).contains("MISSED"));
    }

    #[test]
    fn a_row_without_figures_is_missed() {
        let row = Samples::default().row("nothing", "s", Target::AtMost(1.0), Against::Best);
        assert!(row.ratio().is_none() && !row.is_met());
    }
}
