//! What a person sets for one model, whatever a request does not say.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest name that is an alias of an alias of …
const LONGEST_CHAIN: usize = 8;

/// Settings of one model. They go before what holds for all models and before the model's own defaults; flags,
/// variables and requests go before them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelSettings {
    /// Context limit in tokens.
    pub context: Option<usize>,
    /// Keys and values in this many bits: 4 or 8.
    pub kv_bits: Option<u8>,
    /// Whether it stays in memory, once it is there, whatever else is asked for.
    pub pin: bool,
    /// How long it stays in memory without work; `Some(None)`: until another one needs its room.
    pub stay: Option<Option<Duration>>,
    /// The chat template's source, in place of the model's own.
    pub template: Option<String>,
    /// Sampling defaults by the names of `generation_config.json`.
    pub sampling: Map<String, Value>,
}

/// What a name stands for: the model of an alias, or of an alias of an alias, else itself.
pub fn stands_for<'a>(aliases: &'a BTreeMap<String, String>, name: &'a str) -> &'a str {
    let mut name = name;
    for _ in 0..LONGEST_CHAIN {
        match aliases.get(name) {
            Some(other) => name = other,
            None => break,
        }
    }
    name
}

/// How long a model is to stay: seconds, or a text with a unit (`90s`, `5m`, `2h`); a negative one is for ever, which is
/// `None`.
///
/// # Errors
/// What is expected, as the end of a sentence.
pub fn stay(value: &Value) -> Result<Option<Duration>, &'static str> {
    const EXPECTED: &str = "seconds, or a text such as 30s, 5m or 2h; -1 is for ever, 0 is no time";
    /// More is the same as for ever.
    const LONGEST: f64 = 1e9;
    let (number, unit) = match value {
        Value::Number(number) => (number.as_f64().ok_or(EXPECTED)?, 1.0),
        Value::String(text) => {
            let text = text.trim();
            let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
            let unit = match unit {
                "ms" => 1e-3,
                "s" | "" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return Err(EXPECTED),
            };
            (number.parse::<f64>().map_err(|_| EXPECTED)?, unit)
        }
        _ => return Err(EXPECTED),
    };
    let seconds = number * unit;
    match seconds {
        _ if !seconds.is_finite() => Err(EXPECTED),
        _ if !(0.0..=LONGEST).contains(&seconds) => Ok(None),
        _ => Ok(Some(Duration::from_secs_f64(seconds))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_as_people_and_programs_write_them() {
        for (value, seconds) in [
            (json!(0), Some(0.0)),
            (json!(90), Some(90.0)),
            (json!("90"), Some(90.0)),
            (json!("5m"), Some(300.0)),
            (json!("1.5h"), Some(5400.0)),
            (json!("500ms"), Some(0.5)),
            (json!(-1), None),
            (json!("-1m"), None),
            (json!(1e300), None),
        ] {
            assert_eq!(stay(&value), Ok(seconds.map(Duration::from_secs_f64)), "{value}");
        }
        for wrong in [json!("5x"), json!("m"), json!(""), json!(true), json!("NaN"), json!(["5m"])] {
            assert!(stay(&wrong).is_err(), "{wrong}");
        }
    }
}
