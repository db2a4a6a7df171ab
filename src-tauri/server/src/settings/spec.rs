//! Which settings there are, what each takes, and how it stands in the file.

use super::{SettingsError, size};
use serde_json::{Value, json};
use std::path::Path;
use toml_edit::{Array, Item, Value as Toml};

/// What a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number of bytes from this one on; in the file also with a unit.
    Bytes(u64),
    /// A whole number in a range.
    Count(u64, u64),
    /// On or off, and which of them by default.
    Switch(bool),
    /// A list of folders.
    Folders,
    /// A text of at least so many bytes.
    Text(usize),
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Its name everywhere.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Whether a change takes effect only at the next start.
    pub at_next_start: bool,
}

const fn now(name: &'static str, kind: Kind) -> Spec {
    Spec { name, kind, at_next_start: false }
}

const fn later(name: &'static str, kind: Kind) -> Spec {
    Spec { name, kind, at_next_start: true }
}

/// Every setting.
pub const SPECS: &[Spec] = &[
    now("memory_budget", Kind::Bytes(1)),
    later("reserve", Kind::Bytes(0)),
    now("cache_ram", Kind::Bytes(0)),
    now("cache_ssd", Kind::Bytes(0)),
    now("context", Kind::Count(1, 1 << 30)),
    now("max_rows", Kind::Count(1, 256)),
    now("launch_at_login", Kind::Switch(false)),
    later("lan", Kind::Switch(false)),
    later("api_key_required", Kind::Switch(false)),
    later("api_key", Kind::Text(8)),
    later("model_folders", Kind::Folders),
    now("inspector", Kind::Switch(true)),
    // By its meaning it is for the next start; nothing has to be started anew for it.
    now("auto_load", Kind::Switch(true)),
];

/// The setting of this name.
pub(super) fn named(name: &str) -> Result<&'static Spec, SettingsError> {
    SPECS.iter().find(|s| s.name == name).ok_or_else(|| {
        let names: Vec<&str> = SPECS.iter().map(|s| s.name).collect();
        SettingsError::Unknown(name.to_owned(), names.join(", "))
    })
}

impl Spec {
    /// What holds when nobody says anything; null where that depends on the machine or the model.
    pub(super) fn default_value(&self) -> Value {
        match self.kind {
            Kind::Switch(on) => json!(on),
            Kind::Folders => json!([]),
            Kind::Bytes(_) | Kind::Count(..) | Kind::Text(_) => Value::Null,
        }
    }

    fn expected(&self) -> String {
        match self.kind {
            Kind::Bytes(least) => {
                let bytes = if least == 1 { "byte" } else { "bytes" };
                format!("a number of {least} {bytes} or more (in settings.toml also a text such as \"18GB\")")
            }
            Kind::Count(least, most) => format!("a whole number from {least} to {most}"),
            Kind::Switch(_) => "true or false".into(),
            Kind::Folders => "a list of folders by their absolute paths".into(),
            Kind::Text(least) => format!("a text of {least} or more letters and digits, without spaces"),
        }
    }

    /// Whether the setting takes the value; null is always taken.
    pub(super) fn check(&self, value: &Value) -> Result<(), SettingsError> {
        let good = match self.kind {
            _ if value.is_null() => true,
            Kind::Bytes(least) => value.as_u64().is_some_and(|n| n >= least && i64::try_from(n).is_ok()),
            Kind::Count(least, most) => value.as_u64().is_some_and(|n| (least..=most).contains(&n)),
            Kind::Switch(_) => value.is_boolean(),
            Kind::Folders => value.as_array().is_some_and(|list| {
                list.iter().all(|folder| folder.as_str().is_some_and(|folder| Path::new(folder).is_absolute()))
            }),
            Kind::Text(least) => {
                value.as_str().is_some_and(|text| text.len() >= least && text.chars().all(|c| c.is_ascii_graphic()))
            }
        };
        if good { Ok(()) } else { Err(self.wrong(&crate::json::brief(value))) }
    }

    fn wrong(&self, found: &str) -> SettingsError {
        SettingsError::Value { name: self.name.into(), expected: self.expected(), found: found.to_owned() }
    }

    /// The value that stands in the file.
    pub(super) fn value_of(&self, item: &Item) -> Result<Value, SettingsError> {
        let wrong = || self.wrong(item.to_string().trim());
        let value = match self.kind {
            Kind::Bytes(_) => match item.as_str() {
                Some(text) => size::parse(text).map(|n| json!(n)),
                None => item.as_integer().map(|n| json!(n)),
            },
            Kind::Count(..) => item.as_integer().map(|n| json!(n)),
            Kind::Switch(_) => item.as_bool().map(|b| json!(b)),
            Kind::Folders => item.as_array().map(|list| list.iter().map(|f| json!(f.as_str())).collect()),
            Kind::Text(_) => item.as_str().map(|text| json!(text)),
        };
        let value = value.ok_or_else(wrong)?;
        self.check(&value).map_err(|_| wrong())?;
        Ok(value)
    }

    /// How a checked value stands in the file.
    pub(super) fn to_toml(self, value: &Value) -> Toml {
        let number = || i64::try_from(value.as_u64().unwrap_or_default()).unwrap_or(i64::MAX);
        match self.kind {
            Kind::Bytes(_) => match size::exact(value.as_u64().unwrap_or_default()) {
                Some(text) => text.into(),
                None => number().into(),
            },
            Kind::Count(..) => number().into(),
            Kind::Switch(_) => value.as_bool().unwrap_or_default().into(),
            Kind::Folders => {
                let folders = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                Toml::Array(folders.collect::<Array>())
            }
            Kind::Text(_) => value.as_str().unwrap_or_default().into(),
        }
    }
}
