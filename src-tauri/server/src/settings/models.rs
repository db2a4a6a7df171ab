//! `models.toml` in Hearth's home: other names for models, and settings of single models. A person writes it; what is
//! wrong in it is named with its line and left out, and the rest works.

use super::{SettingsError, line_of};
use hearth_core::files::read_text;
use hearth_core::model_settings::{ModelSettings, stands_for, stay};
use hearth_core::sampling;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use toml_edit::{Document, DocumentMut, Item, Table, TableLike};

/// Sampling defaults that a model can have here: as in `generation_config.json`.
const SAMPLING: [&str; 5] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
const NAMES: &str = "context, kv_bits, pin, ttl, template, temperature, top_p, top_k, min_p or repetition_penalty";

/// What the file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelsFile {
    /// Other names, and what they stand for.
    pub aliases: BTreeMap<String, String>,
    /// Settings by model id.
    pub models: BTreeMap<String, ModelSettings>,
    /// What is wrong in it, a sentence each with file, line and key.
    pub problems: Vec<String>,
}

impl ModelsFile {
    /// Reads the file; one that is not there says nothing. Paths in it are relative to its folder.
    pub fn open(path: &Path) -> Self {
        match read_text(path) {
            Ok(text) => Self::read(&text, path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(e) => Self { problems: vec![format!("{}: {e}", path.display())], ..Self::default() },
        }
    }

    fn read(text: &str, path: &Path) -> Self {
        let mut file = Self::default();
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(e) => {
                let line = line_of(text, e.span());
                let message = e.message().lines().next().unwrap_or_default().to_owned();
                file.problems.push(format!("{}:{line}: {message}; nothing in it is used", path.display()));
                return file;
            }
        };
        let mut problems = Vec::new();
        for (name, item) in document.iter() {
            let mut wrong = |key: &str, item: &Item, expected: &str| {
                let line = line_of(text, item.span());
                let found = item.to_string();
                problems.push(format!(
                    "{}:{line}: `{key}` of \"{name}\" must be {expected}; it is {}",
                    path.display(),
                    found.trim()
                ));
            };
            let Some(table) = item.as_table_like() else {
                wrong(name, item, "a table: [aliases], or [\"MODEL\"]");
                continue;
            };
            if name == "aliases" {
                for (alias, item) in table.iter() {
                    match item.as_str() {
                        Some(model) if !model.is_empty() => {
                            file.aliases.insert(alias.to_owned(), model.to_owned());
                        }
                        _ => wrong(alias, item, "the name of a model"),
                    }
                }
                continue;
            }
            file.models.insert(name.to_owned(), settings_of(table, path, &mut wrong));
        }
        for alias in file.aliases.keys() {
            let end = stands_for(&file.aliases, alias);
            if file.aliases.contains_key(end) {
                problems.push(format!("{}: the alias \"{alias}\" leads to no model, but in a circle", path.display()));
            }
        }
        file.problems = problems;
        file
    }
}

impl ModelsFile {
    /// Notes in the file whether a model is pinned; comments and everything else stay as they are.
    ///
    /// # Errors
    /// [`SettingsError`] when the file is no TOML, has something else under this name, or cannot be written; nothing is
    /// changed then.
    pub fn set_pin(path: &Path, model: &str, pinned: bool) -> Result<(), SettingsError> {
        /// Two changes at once would each write what the other does not know.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // The file itself, where the home has a link to it.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let text = super::text_of(path)?;
        let syntax = |message: String| SettingsError::Syntax { path: path.clone(), message };
        let mut file: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| syntax(e.to_string()))?;
        let known = file.get(model).and_then(Item::as_table_like).and_then(|table| table.get("pin")).is_some();
        if !known && !pinned {
            return Ok(());
        }
        let empty = file.is_empty();
        let new = || {
            let mut table = Table::new();
            table.decor_mut().set_prefix(if empty { "" } else { "\n" });
            Item::Table(table)
        };
        let item = file.entry(model).or_insert_with(new);
        let table = item.as_table_like_mut().ok_or_else(|| syntax(format!("`{model}` must be a table")))?;
        match table.get_mut("pin").and_then(Item::as_value_mut) {
            Some(old) => {
                let decor = old.decor().clone();
                *old = pinned.into();
                *old.decor_mut() = decor;
            }
            None => drop(table.insert("pin", toml_edit::value(pinned))),
        }
        super::write_private(path, &file.to_string()).map_err(|e| super::io(path, &e))
    }
}

fn settings_of(table: &dyn TableLike, path: &Path, wrong: &mut dyn FnMut(&str, &Item, &str)) -> ModelSettings {
    let mut settings = ModelSettings::default();
    for (key, item) in table.iter() {
        let number = item.as_integer();
        match key {
            "context" => match number.and_then(|n| usize::try_from(n).ok()).filter(|n| (2..=1 << 30).contains(n)) {
                Some(context) => settings.context = Some(context),
                None => wrong(key, item, "a number of tokens, 2 or more"),
            },
            "kv_bits" => match number {
                Some(bits @ (4 | 8)) => settings.kv_bits = Some(bits as u8),
                _ => wrong(key, item, "4 or 8"),
            },
            "pin" => match item.as_bool() {
                Some(pin) => settings.pin = pin,
                None => wrong(key, item, "true or false"),
            },
            "ttl" => match stay(&json_of(item)) {
                Ok(time) => settings.stay = Some(time),
                Err(expected) => wrong(key, item, expected),
            },
            "template" => {
                let file = item.as_str().map(|file| path.parent().unwrap_or(Path::new("")).join(file));
                match file.as_deref().map(read_text) {
                    Some(Ok(source)) => settings.template = Some(source),
                    Some(Err(e)) => wrong(key, item, &format!("a file that can be read ({e})")),
                    None => wrong(key, item, "the path of a Jinja file"),
                }
            }
            _ if SAMPLING.contains(&key) => match json_of(item) {
                value @ Value::Number(_) => match range(key, &value) {
                    Ok(()) => drop(settings.sampling.insert(key.to_owned(), value)),
                    Err(expected) => wrong(key, item, expected),
                },
                _ => wrong(key, item, "a number"),
            },
            _ => wrong(key, item, &format!("left out, as there is no such setting: there are {NAMES}")),
        }
    }
    settings
}

/// What a sampling default may be, as in a request.
fn range(key: &str, value: &Value) -> Result<(), &'static str> {
    let number = value.as_f64().unwrap_or(f64::NAN);
    match key {
        "top_k" if number >= -1.0 && number.fract() == 0.0 => Ok(()),
        "top_k" => Err("a whole number, where 0 and -1 are all"),
        _ => sampling::allowed(key, number as f32),
    }
}

fn json_of(item: &Item) -> Value {
    match (item.as_integer(), item.as_float(), item.as_str()) {
        (Some(n), ..) => n.into(),
        (_, Some(x), _) => x.into(),
        (.., Some(text)) => text.into(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_file_as_a_person_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mine.jinja"), "{{ messages }}").unwrap();
        let path = dir.path().join("models.toml");
        std::fs::write(
            &path,
            "# names that programs are set to\n[aliases]\n\"gpt-4o\" = \"org/Big\" # the good one\n\n\
             [\"org/Big\"]\ncontext = 8192\nkv_bits = 8\npin = true\nttl = \"10m\"\ntemplate = \"mine.jinja\"\n\
             temperature = 0.5\ntop_k = 40\n",
        )
        .unwrap();
        let file = ModelsFile::open(&path);
        assert_eq!(file.problems, [""; 0]);
        assert_eq!(file.aliases["gpt-4o"], "org/Big");
        let big = &file.models["org/Big"];
        assert_eq!((big.context, big.kv_bits, big.pin), (Some(8192), Some(8), true));
        assert_eq!(big.stay, Some(Some(Duration::from_secs(600))));
        assert_eq!(big.template.as_deref(), Some("{{ messages }}"));
        assert_eq!(big.sampling["temperature"], 0.5);
        assert_eq!(big.sampling["top_k"], 40);
        assert_eq!(ModelsFile::open(&dir.path().join("none.toml")), ModelsFile::default());
    }

    #[test]
    fn a_pin_is_noted_and_everything_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("models.toml");
        let pins = || ModelsFile::open(&path).models.into_iter().filter(|(_, m)| m.pin).map(|(id, _)| id);
        let set = |model: &str, pinned| ModelsFile::set_pin(&path, model, pinned);
        set("org/A", false).unwrap();
        assert!(!path.exists(), "nothing to say");
        set("org/A", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[\"org/A\"]\npin = true\n");
        let text = "# mine\n[aliases]\ng = \"b\" # short\n\n[b]\npin = true   # always\ntop_k = 1\n";
        std::fs::write(&path, text).unwrap();
        set("b", false).unwrap();
        set("org/A", true).unwrap();
        set("c", false).unwrap();
        let now = std::fs::read_to_string(&path).unwrap();
        assert_eq!(now, text.replace("true ", "false ") + "\n[\"org/A\"]\npin = true\n");
        assert_eq!(pins().collect::<Vec<_>>(), ["org/A"]);
        for (broken, word) in [("[b\n", "models.toml"), ("b = 1\n", "`b` must be a table")] {
            std::fs::write(&path, broken).unwrap();
            assert!(set("b", true).unwrap_err().to_string().contains(word));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_the_rest_works() {
        let path = Path::new("/h/models.toml");
        let text = "[aliases]\ngpt = 4\nother = \"b\"\n[a]\ncontext = \"much\"\npin = true\nmood = 1\ntop_p = 2\n";
        let file = ModelsFile::read(text, path);
        assert_eq!(file.aliases, BTreeMap::from([("other".to_owned(), "b".to_owned())]));
        assert!(file.models["a"].pin);
        let starts = [
            "/h/models.toml:2: `gpt`",
            "/h/models.toml:5: `context` of \"a\"",
            "/h/models.toml:7: `mood`",
            "/h/models.toml:8: `top_p` of \"a\" must be above 0 and at most 1; it is 2",
        ];
        assert_eq!(file.problems.len(), 4, "{:?}", file.problems);
        for (problem, start) in file.problems.iter().zip(starts) {
            assert!(problem.starts_with(start), "{problem}");
        }
        let broken = ModelsFile::read("[a]\npin = true\nx = = 1\n", path);
        assert!(broken.models.is_empty());
        assert!(broken.problems[0].starts_with("/h/models.toml:3:"), "{:?}", broken.problems);
    }
}
