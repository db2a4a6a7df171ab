//! Typed access to a config's fields, with errors that name them.

use crate::error::CoreError;
use serde_json::Value;
use std::path::Path;

/// The fields of one JSON object of a config file.
pub(super) struct Fields<'a> {
    /// The object.
    pub(super) config: &'a Value,
    /// The file, for messages.
    pub(super) file: &'a Path,
    /// Where in the file the object is (`text_config.`), for messages.
    pub(super) within: &'static str,
}

impl<'a> Fields<'a> {
    /// The field as it is, null where there is none.
    pub(super) fn value(&self, name: &str) -> &'a Value {
        &self.config[name]
    }

    pub(super) fn invalid(&self, what: &str, expected: &str, found: &Value) -> CoreError {
        CoreError::Invalid {
            file: self.file.to_owned(),
            what: format!("{}{what}", self.within),
            expected: expected.into(),
            found: if found.is_null() { "nothing".into() } else { found.to_string() },
        }
    }

    pub(super) fn unsupported(&self, what: &str, found: &Value, supported: &str) -> CoreError {
        CoreError::Unsupported {
            file: self.file.to_owned(),
            what: format!("{}{what}", self.within),
            found: found.as_str().map_or_else(|| found.to_string(), str::to_owned),
            supported: supported.into(),
        }
    }

    /// A whole number from 1 to `most`; absent or null is the default, if there is one.
    pub(super) fn count(&self, name: &str, default: Option<usize>, most: usize) -> Result<usize, CoreError> {
        let value = self.value(name);
        let found = match (value, default) {
            (Value::Null, Some(d)) => Some(d),
            (v, _) => v.as_u64().map(|n| n as usize),
        };
        found
            .filter(|n| (1..=most).contains(n))
            .ok_or_else(|| self.invalid(name, &format!("a whole number from 1 to {most}"), value))
    }

    /// The taps of a causal convolution: at least 2, because one alone remembers nothing.
    pub(super) fn taps(&self, name: &str, default: usize) -> Result<usize, CoreError> {
        match self.count(name, Some(default), 64)? {
            1 => Err(self.invalid(name, "a whole number from 2 to 64", self.value(name))),
            n => Ok(n),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, CoreError> {
        match self.value(name) {
            Value::Null => Ok(None),
            v => v.as_f64().map(Some).ok_or_else(|| self.invalid(name, "a number", v)),
        }
    }

    /// The base of a rotation's periods: the field, `rope_theta` of this block (which may go first), or the default.
    pub(super) fn rope_base(
        &self,
        name: &str,
        block: &Value,
        block_first: bool,
        default: f64,
    ) -> Result<f64, CoreError> {
        let own = self.number(name)?;
        let of_block = match &block["rope_theta"] {
            Value::Null => None,
            v => Some(v.as_f64().ok_or_else(|| self.invalid("rope_parameters.rope_theta", "a number", v))?),
        };
        let base = if block_first { of_block.or(own) } else { own.or(of_block) }.unwrap_or(default);
        if base > 1.0 && (base as f32).is_finite() {
            return Ok(base);
        }
        Err(self.invalid(name, "a number above 1 that f32 can hold", &base.into()))
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, CoreError> {
        match self.value(name) {
            Value::Null => Ok(None),
            Value::Bool(b) => Ok(Some(*b)),
            v => Err(self.invalid(name, "true or false", v)),
        }
    }

    /// A list with an entry for each layer, if there is one.
    pub(super) fn per_layer(&self, name: &str, layers: usize) -> Result<Option<&'a Vec<Value>>, CoreError> {
        match self.value(name) {
            Value::Null => Ok(None),
            Value::Array(all) if all.len() == layers => Ok(Some(all)),
            other => Err(self.invalid(name, &format!("a list of {layers}, one for each layer"), other)),
        }
    }
}
