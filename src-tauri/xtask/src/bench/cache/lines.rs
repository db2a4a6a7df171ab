//! Figures beside what they are compared with: as a table for people, and as JSON.

use crate::bench::report::{Target, median};
use serde_json::{Value, json};
use std::fmt::Write;

/// One line of the table.
pub struct Line {
    /// What was measured.
    pub name: String,
    pub unit: &'static str,
    /// One of each round.
    pub hearth: Vec<f64>,
    /// What it is compared with.
    pub against: &'static str,
    /// Its figures, of the same rounds.
    pub other: Vec<f64>,
    /// None: for information only.
    pub target: Option<Target>,
    /// What else is to be known.
    pub note: String,
}

impl Line {
    /// The median of the rounds' ratios.
    pub fn ratio(&self) -> Option<f64> {
        let paired: Vec<f64> = self.hearth.iter().zip(&self.other).map(|(hearth, other)| hearth / other).collect();
        if self.hearth.len() == self.other.len() { median(&paired) } else { None }
    }

    /// Whether the target is reached; none is.
    pub fn is_met(&self) -> bool {
        match (self.target, self.ratio()) {
            (None, _) => true,
            (Some(Target::AtLeast(least)), Some(ratio)) => ratio >= least,
            (Some(Target::AtMost(most)), Some(ratio)) => ratio <= most,
            (Some(_), None) => false,
        }
    }

    fn target(&self) -> String {
        match self.target {
            None => "-".to_owned(),
            Some(Target::AtLeast(least)) => format!("≥ {least}"),
            Some(Target::AtMost(most)) => format!("≤ {most}"),
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
pub fn table(lines: &[Line]) -> String {
    let mut text = String::new();
    let _ =
        writeln!(text, "\n{:<44} {:>6} {:>9} {:>9} {:<17} {:>7} {:>7}", "", "", "Hearth", "", "", "ratio", "target");
    for line in lines {
        let met = match line.target {
            None => "",
            Some(_) if line.is_met() => "met",
            Some(_) => "MISSED",
        };
        let _ = writeln!(
            text,
            "{:<44} {:>6} {:>9} {:>9} {:<17} {:>7} {:>7}  {met}{}{}",
            line.name,
            line.unit,
            number(median(&line.hearth)),
            number(median(&line.other)),
            line.against,
            number(line.ratio()),
            line.target(),
            if line.note.is_empty() || met.is_empty() { "" } else { "; " },
            line.note,
        );
    }
    text
}

/// All of it, every sample too.
pub fn json(lines: &[Line], runs: usize) -> Value {
    let figure = |values: &[f64]| json!({"median": median(values), "samples": values});
    let rows: Vec<Value> = lines
        .iter()
        .map(|line| {
            json!({
                "name": line.name, "unit": line.unit, "hearth": figure(&line.hearth), "against": line.against,
                "other": figure(&line.other), "ratio": line.ratio(), "target": line.target(), "met": line.is_met(),
                "note": line.note,
            })
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({"runs": runs, "cores": cores, "os": std::env::consts::OS, "arch": std::env::consts::ARCH, "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(hearth: &[f64], other: &[f64], target: Option<Target>) -> Line {
        let (hearth, other) = (hearth.to_vec(), other.to_vec());
        Line { name: "x".into(), unit: "s", hearth, against: "cold", other, target, note: String::new() }
    }

    #[test]
    fn a_ratio_is_that_of_the_middle_round() {
        let slow_round = line(&[1.0, 20.0, 1.0], &[10.0, 100.0, 5.0], Some(Target::AtMost(0.2)));
        assert_eq!(slow_round.ratio(), Some(0.2));
        assert!(slow_round.is_met());
        assert!(!line(&[3.0], &[10.0], Some(Target::AtMost(0.2))).is_met());
        assert!(line(&[9.6], &[10.0], Some(Target::AtLeast(0.95))).is_met());
        assert!(line(&[], &[], None).is_met() && !line(&[], &[], Some(Target::AtMost(1.0))).is_met());
        assert!(!line(&[1.0], &[1.0, 2.0], Some(Target::AtMost(1.0))).is_met(), "rounds that were not paired");
        assert!(table(&[slow_round]).contains("met"));
    }
}
