//! What templates expect of Python: its way of printing values, `tojson` as `json.dumps` writes it,
//! `raise_exception`, `strftime_now`, and methods of strings, lists and dicts.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::ser::Formatter;
use std::fmt::Write as _;
use std::io;

/// Teaches an environment all of it.
pub(super) fn install(env: &mut Environment<'_>) {
    env.set_unknown_method_callback(method);
    env.set_formatter(print);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
}

/// An error that the template itself raised.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The words of `raise_exception`, if the error comes from there.
pub(super) fn raised(e: &Error) -> Option<&str> {
    std::error::Error::source(e).and_then(|s| s.downcast_ref::<Raised>()).map(|r| r.0.as_str())
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::ZonedDateTime::now())
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), Some(part)) = (value.as_str(), args.first().and_then(Value::as_str)) {
        match name {
            "removeprefix" => return Ok(text.strip_prefix(part).unwrap_or(text).into()),
            "removesuffix" => return Ok(text.strip_suffix(part).unwrap_or(text).into()),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Prints as Python's `str()` does.
fn print(out: &mut Output<'_>, _state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::None | ValueKind::Bool | ValueKind::Seq | ValueKind::Map => {
            let mut text = String::new();
            repr(value, &mut text)?;
            out.write_str(&text).map_err(Error::from)
        }
        ValueKind::Number if !value.is_integer() => {
            let mut text = String::new();
            repr(value, &mut text)?;
            out.write_str(&text).map_err(Error::from)
        }
        _ => write!(out, "{value}").map_err(Error::from),
    }
}

/// Appends Python's `repr()` of a value.
fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(v) if !value.is_integer() => out.push_str(&float(v)),
            _ => write!(out, "{value}")?,
        },
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(&item, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

/// A string literal as Python writes it: single quotes unless only those occur inside.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == mark => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// A float as Python writes it: the shortest digits that read back, an exponent from 1e16 up and below 1e-4.
fn float(v: f64) -> String {
    if !v.is_finite() {
        let word = if v.is_nan() { "nan" } else { "inf" };
        return if v < 0.0 { format!("-{word}") } else { word.to_owned() };
    }
    let size = v.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{v:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = v.to_string();
    if text.contains('.') { text } else { format!("{text}.0") }
}

/// `json.dumps` with Python's defaults but `ensure_ascii=False`, as Hugging Face sets up the filter: keys in their order,
/// `, ` and `: ` between parts, no escaping for HTML.
fn tojson(state: &State<'_, '_>, value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(value) => Some(value),
        None => args.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        None => None,
        Some(v) if v.is_none() || v.is_undefined() => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            // Python takes True as 1; more than a screen's width is nobody's wish.
            None if v.kind() == ValueKind::Bool => " ".repeat(usize::from(v.is_true())),
            None => " ".repeat(usize::try_from(v)?.min(64)),
        }),
    };
    let ascii = args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    args.assert_all_used()?;
    let mut plain = serde_json::to_value(value).map_err(json_error)?;
    if sort {
        plain.sort_all_objects();
    }
    let mut dumps = Dumps::new(indent, ascii);
    if let Some([item, key]) = separators.as_deref() {
        (dumps.item, dumps.key) = (item.clone(), key.clone());
    }
    let text = dumps.write(&plain)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(text.into())
}

fn json_error(e: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}"))
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(super) fn to_json(value: &serde_json::Value) -> String {
    Dumps::new(None, false).write(value).unwrap_or_else(|_| value.to_string())
}

/// Python's layout of JSON.
struct Dumps {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    depth: usize,
    filled: bool,
}

impl Dumps {
    fn new(indent: Option<String>, ascii: bool) -> Self {
        let item = if indent.is_some() { "," } else { ", " }.to_owned();
        Dumps { indent, item, key: ": ".to_owned(), ascii, depth: 0, filled: false }
    }

    fn write(self, value: &serde_json::Value) -> Result<String, Error> {
        let mut out = Vec::new();
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, self)).map_err(json_error)?;
        String::from_utf8(out).map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}")))
    }

    fn line<W: io::Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn open<W: io::Write + ?Sized>(&mut self, writer: &mut W, mark: &[u8]) -> io::Result<()> {
        (self.depth, self.filled) = (self.depth + 1, false);
        writer.write_all(mark)
    }

    fn close<W: io::Write + ?Sized>(&mut self, writer: &mut W, mark: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(mark)
    }

    fn part<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.filled = true;
        self.line(writer)
    }
}

impl Formatter for Dumps {
    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.part(writer, first)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.part(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii {
            return writer.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        fragment.chars().try_for_each(|c| match c {
            ' '..='~' => write!(writer, "{c}"),
            c => c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}")),
        })
    }
}
