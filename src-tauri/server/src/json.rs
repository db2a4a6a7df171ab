//! Request bodies as JSON, read strictly: one value, UTF-8, no key twice, finite numbers, bounded depth.

use crate::error::ServerError;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Parses a body.
///
/// # Errors
/// 400 saying what is wrong and where.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ServerError> {
    let text = std::str::from_utf8(body)
        .map_err(|e| invalid(format!("the body must be UTF-8; the byte at offset {} is not", e.valid_up_to())))?;
    if text.trim().is_empty() {
        return Err(invalid("the body is empty; a JSON object is expected".to_owned()));
    }
    let mut de = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut de).and_then(|value| de.end().map(|()| value));
    value.map_err(|e| invalid(format!("the body is not valid JSON: {e}")))
}

/// Parses a body that must be an object, as every request is.
///
/// # Errors
/// 400 saying what is wrong and where.
pub(crate) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ServerError> {
    match parse(body)? {
        Value::Object(map) => Ok(map),
        other => Err(invalid(format!("the body must be a JSON object; it is {}", brief(&other)))),
    }
}

fn invalid(message: String) -> ServerError {
    ServerError::BadRequest { message, param: None, code: Some("invalid_json") }
}

/// A value for an error message: its JSON, shortened.
pub(crate) fn brief(value: &Value) -> String {
    const MOST: usize = 60;
    let text = match value {
        Value::Object(map) if map.len() > 3 => format!("an object with {} keys", map.len()),
        Value::Array(list) if list.len() > 8 => format!("a list of {} values", list.len()),
        other => other.to_string(),
    };
    if text.chars().count() <= MOST {
        return text;
    }
    let start: String = text.chars().take(MOST).collect();
    format!("{start}…")
}

/// Builds a [`Value`] and refuses keys that appear twice: which of the two was meant cannot be known.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(Strict)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{}` appears twice", brief(&Value::String(key)))));
            }
            let value = map.next_value_seed(Strict)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_come_through_in_order() {
        let text = r#"{"b": [1, -2, 0.5, 18446744073709551615, null, true], "a": {"x": "é\u00e9"}}"#;
        let value = parse(text.as_bytes()).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(value.as_object().unwrap().keys().collect::<Vec<_>>(), ["b", "a"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let cases: Vec<(&[u8], &str)> = vec![
            (b"", "empty"),
            (b"  \n", "empty"),
            (b"{", "EOF"),
            (b"{\"a\": 1,}", "trailing comma"),
            (b"{} {}", "trailing characters"),
            (b"{\"a\": NaN}", "not valid JSON"),
            (b"{\"a\": 1e999}", "out of range"),
            (b"{\"a\": 1, \"a\": 2}", "`\"a\"` appears twice"),
            (b"{\"x\": [{\"a\": 1, \"a\": 2}]}", "appears twice"),
            (b"{\"a\": \"\xff\"}", "UTF-8; the byte at offset 7"),
            (b"{\"a\": \"\\ud800\"}", "not valid JSON"),
            (deep.as_bytes(), "recursion limit"),
        ];
        for (body, part) in cases {
            let e = parse(body).unwrap_err();
            assert!(e.to_string().contains(part), "{part}: {e}");
            assert_eq!((e.status().as_u16(), e.code()), (400, Some("invalid_json")));
        }
        assert!(parse_object(b"[1]").unwrap_err().to_string().ends_with("it is [1]"));
    }

    #[test]
    fn long_values_are_shortened_between_characters() {
        assert_eq!(brief(&json!("é".repeat(100))).chars().count(), 61);
        assert_eq!(brief(&json!([0, 1, 2, 3, 4, 5, 6, 7, 8])), "a list of 9 values");
    }
}
