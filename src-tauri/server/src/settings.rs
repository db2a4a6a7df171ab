//! The settings that the user changes in the dashboard: `settings.toml` in Hearth's home, edited so that comments and
//! order stay, each value with where it comes from.

mod models;
mod routes;
mod size;
mod spec;

pub use models::ModelsFile;
pub(crate) use routes::{read, write};
pub use spec::{Kind, SPECS, Spec};

use hearth_core::files::read_text;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toml_edit::{Document, DocumentMut, Item};

/// Where a value comes from; a later one goes before an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// `settings.toml`.
    Settings,
    /// A `HEARTH_…` variable.
    Environment,
    /// The command line.
    Flag,
    /// Changed while the server runs, over a flag or variable that holds again at the next start.
    Api,
}

/// One setting as it is now.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct Setting {
    /// A number of bytes or a count, a switch, a text, or a list of folders; null: the default, which depends on the
    /// machine or the model.
    #[cfg_attr(feature = "ts", ts(type = "unknown"))]
    pub value: Value,
    /// Where the value comes from.
    pub from: Origin,
    /// Whether a change takes effect only at the next start.
    pub at_next_start: bool,
    /// Whether it was changed since the start, and what runs goes by the old value.
    pub pending: bool,
}

/// Why settings cannot be read or changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// The file is no TOML.
    #[error("{}: {message}; correct it, or remove the file to begin with the defaults", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        message: String,
    },
    /// The file cannot be read or written.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// The file has a value that its setting does not take.
    #[error("{}, line {line}: {wrong}; correct it, or remove the line to have the default", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong there.
        wrong: Box<SettingsError>,
    },
    /// A switch of the file needs a key, and the file has none.
    #[error("{}: {name} = true needs an api_key; add a line with one, such as api_key = \"sk-…\", or turn it on in the \
             dashboard, which makes one", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The switch.
        name: &'static str,
    },
    /// No setting of that name.
    #[error("there is no setting `{0}`; there are {1}")]
    Unknown(String, String),
    /// A value that the setting does not take.
    #[error("{name} must be {expected}; it is {found}")]
    Value {
        /// The setting.
        name: String,
        /// What it takes.
        expected: String,
        /// What was given.
        found: String,
    },
}

/// All settings; cheap to clone. The default keeps them in memory only.
#[derive(Debug, Clone, Default)]
pub struct Settings(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: DocumentMut,
    /// What flags and variables say.
    given: BTreeMap<String, (Value, Origin)>,
    /// What was changed since the start over something given.
    changed: BTreeMap<String, Value>,
    /// The values that what runs goes by, where only a start takes new ones.
    started: BTreeMap<&'static str, Value>,
    /// Names in the file that are no settings, a sentence each.
    ignored: Vec<String>,
}

impl Settings {
    /// The settings in this file, which need not be there yet.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or has a value that a setting does not take. Unknown names are left alone:
    /// they may be a newer Hearth's.
    pub fn open(path: &Path) -> Result<Self, SettingsError> {
        let text = text_of(path)?;
        let file = parse(path, &text)?;
        for spec in SPECS {
            if let Some(item) = file.get(spec.name) {
                let line = line_of(&text, item.span());
                let at = |wrong| SettingsError::Line { path: path.into(), line, wrong: Box::new(wrong) };
                spec.value_of(item).map_err(at)?;
            }
        }
        let sentence = |(name, item): (&str, &Item)| {
            let why = spec::named(name).err()?;
            let line = line_of(&text, file.key(name).and_then(toml_edit::Key::span).or(item.span()));
            Some(format!("{}, line {line}: {why}; it is ignored", path.display()))
        };
        let ignored = file.iter().filter_map(sentence).collect();
        let state = State { ignored, file: file.into_mut(), ..State::default() };
        Ok(Settings(Arc::new(Inner { path: Some(path.into()), state: Mutex::new(state) })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a flag or a variable says.
    pub fn give(&self, name: &str, value: Value, from: Origin) {
        self.state().given.insert(name.to_owned(), (value, from));
    }

    /// What runs now goes by the values as they are.
    pub(crate) fn take_effect(&self) {
        let mut state = self.state();
        let later = SPECS.iter().filter(|spec| spec.at_next_start);
        state.started = later.map(|spec| (spec.name, state.read(spec).value)).collect();
    }

    /// A setting's value now, null when it is the default.
    pub fn get(&self, name: &str) -> Value {
        SPECS.iter().find(|s| s.name == name).map_or(Value::Null, |spec| self.state().read(spec).value)
    }

    /// As [`Settings::get`], for what has a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).as_u64()
    }

    /// As [`Settings::get`], for a switch; `default` when nobody said anything.
    pub fn switch(&self, name: &str, default: bool) -> bool {
        self.get(name).as_bool().unwrap_or(default)
    }

    /// As [`Settings::get`], for a text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).as_str().map(str::to_owned)
    }

    /// Names in the file that are no settings, a sentence each: misspelt ones, or those of a newer Hearth.
    pub fn ignored(&self) -> Vec<String> {
        self.state().ignored.clone()
    }

    /// The key that clients have to send, where keys are asked for.
    ///
    /// # Errors
    /// [`SettingsError::NoKey`]: the file asks for keys, and has none. Nobody is let in without one for that.
    pub fn required_key(&self) -> Result<Option<String>, SettingsError> {
        let on = |name: &&'static str| self.switch(name, false);
        let Some(name) = ["api_key_required", "lan"].into_iter().find(on) else { return Ok(None) };
        let of_the_file = !self.state().given.contains_key(name);
        match (self.text("api_key"), &self.0.path) {
            (None, Some(path)) if of_the_file => Err(SettingsError::NoKey { path: path.clone(), name }),
            (key, _) => Ok(key),
        }
    }

    /// The folders that models are looked for in, besides the usual ones.
    pub fn model_folders(&self) -> Vec<PathBuf> {
        let folders = self.get("model_folders");
        folders.as_array().into_iter().flatten().filter_map(Value::as_str).map(PathBuf::from).collect()
    }

    /// All settings by name.
    pub fn all(&self) -> BTreeMap<String, Setting> {
        let state = self.state();
        SPECS.iter().map(|spec| (spec.name.to_owned(), state.read(spec))).collect()
    }

    /// Checks values without changing anything; null takes a setting back to its default.
    ///
    /// # Errors
    /// The first name or value that is not one, and a file that could not take them.
    pub fn check(&self, values: &BTreeMap<String, Value>) -> Result<(), SettingsError> {
        values.iter().try_for_each(|(name, value)| spec::named(name)?.check(value))?;
        self.on_disk().map(|_| ())
    }

    /// Changes settings and writes the file. What a person wrote there since the start stays in it, and holds from the
    /// next start on.
    ///
    /// # Errors
    /// As [`Settings::check`], and when the file cannot be written: then nothing is changed.
    pub fn set(&self, values: &BTreeMap<String, Value>) -> Result<(), SettingsError> {
        self.check(values)?;
        let mut state = self.state();
        let mut file = state.file.clone();
        let mut disk = self.on_disk()?;
        for (name, value) in values {
            let spec = spec::named(name)?;
            put(&mut file, spec, value);
            disk.iter_mut().for_each(|disk| put(disk, spec, value));
        }
        if let (Some(path), Some(disk)) = (&self.0.path, disk) {
            write_private(path, &disk.to_string()).map_err(|e| io(path, &e))?;
        }
        state.file = file;
        for (name, value) in values {
            if state.given.contains_key(name) {
                state.changed.insert(name.clone(), value.clone());
            }
        }
        Ok(())
    }
}

impl Settings {
    /// The file as it is now, where there is one to keep.
    fn on_disk(&self) -> Result<Option<DocumentMut>, SettingsError> {
        let read = |path: &PathBuf| Ok(parse(path, &text_of(path)?)?.into_mut());
        self.0.path.as_ref().map(read).transpose()
    }
}

impl State {
    fn read(&self, spec: &Spec) -> Setting {
        let at_next_start = spec.at_next_start;
        let (value, from) = if let Some(value) = self.changed.get(spec.name) {
            (value.clone(), Origin::Api)
        } else if let Some((value, from)) = self.given.get(spec.name) {
            (value.clone(), *from)
        } else if let Some(Ok(value)) = self.file.get(spec.name).map(|item| spec.value_of(item)) {
            (value, Origin::Settings)
        } else {
            (spec.default_value(), Origin::Default)
        };
        let pending = self.started.get(spec.name).is_some_and(|started| *started != value);
        Setting { value, from, at_next_start, pending }
    }
}

/// Puts a value where the old one stood, with the comments around it.
fn put(file: &mut DocumentMut, spec: &Spec, value: &Value) {
    if value.is_null() {
        file.remove(spec.name);
        return;
    }
    let mut new = spec.to_toml(value);
    match file.get_mut(spec.name).and_then(Item::as_value_mut) {
        Some(old) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        None => {
            file.insert(spec.name, Item::Value(new));
        }
    }
}

/// Writes through a temporary file that only this user can read: the file may hold an API key. Where it is a link, what it
/// leads to is written.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let part = path.with_extension("toml.part");
    let write = || {
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&part)))
}

/// The line, from 1, that something of a file's text begins in.
fn line_of(text: &str, span: Option<std::ops::Range<usize>>) -> usize {
    let at = span.map_or(0, |span| span.start.min(text.len()));
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The text of a file of settings; none is an empty one.
fn text_of(path: &Path) -> Result<String, SettingsError> {
    match read_text(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|e| io(path, &e)),
    }
}

fn parse<'a>(path: &Path, text: &'a str) -> Result<Document<&'a str>, SettingsError> {
    Document::parse(text).map_err(|e| SettingsError::Syntax { path: path.into(), message: e.to_string() })
}

fn io(path: &Path, e: &std::io::Error) -> SettingsError {
    SettingsError::Io { path: path.into(), message: e.to_string() }
}

/// The reply of both routes.
fn reply(settings: &Settings) -> Value {
    json!({"settings": settings.all()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, Value)]) -> BTreeMap<String, Value> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn comments_and_strangers_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.toml");
        let text = "# mine\ncache_ram = \"2GB\" # enough\nfuture = 1\n\n[models]\nx = 1\n";
        std::fs::write(&path, text).unwrap();
        let settings = Settings::open(&path).unwrap();
        assert_eq!(settings.number("cache_ram"), Some(2_000_000_000));
        settings.set(&values(&[("cache_ram", json!(3_000_000_000u64)), ("max_rows", json!(4))])).unwrap();
        let now = std::fs::read_to_string(&path).unwrap();
        assert!(now.starts_with("# mine\ncache_ram = \"3GB\" # enough\nfuture = 1\n"), "{now}");
        assert!(now.contains("max_rows = 4\n") && now.ends_with("[models]\nx = 1\n"), "{now}");
        let again = Settings::open(&path).unwrap();
        assert_eq!((again.number("cache_ram"), again.number("max_rows")), (Some(3_000_000_000), Some(4)));
        again.set(&values(&[("cache_ram", Value::Null)])).unwrap();
        assert_eq!(again.all()["cache_ram"].from, Origin::Default);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_a_person_writes_while_it_runs_stays_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.toml");
        std::fs::write(&path, "max_rows = 4\n").unwrap();
        let settings = Settings::open(&path).unwrap();
        std::fs::write(&path, "# mine\nmax_rows = 2\ncontext = 2048\n").unwrap();
        settings.set(&values(&[("cache_ram", json!(0))])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "# mine\nmax_rows = 2\ncontext = 2048\ncache_ram = 0\n");
        assert_eq!(
            (settings.number("max_rows"), settings.number("context")),
            (Some(4), None),
            "what runs goes by these"
        );
        std::fs::write(&path, "max_rows = \n").unwrap();
        let refusal = settings.set(&values(&[("context", json!(512))])).unwrap_err().to_string();
        assert!(refusal.contains("settings.toml: ") && settings.number("context").is_none(), "{refusal}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "max_rows = \n");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let refusal = Settings::open(&path).unwrap_err().to_string();
        assert!(refusal.ends_with("settings.toml: it must be a file; it is something else"), "{refusal}");
    }

    #[test]
    fn each_value_says_where_it_comes_from() {
        let settings = Settings::default();
        let from = |name: &str| settings.all()[name].from;
        assert_eq!(from("context"), Origin::Default);
        settings.set(&values(&[("context", json!(4096))])).unwrap();
        assert_eq!(from("context"), Origin::Settings);
        settings.give("context", json!(2048), Origin::Flag);
        assert_eq!((from("context"), settings.number("context")), (Origin::Flag, Some(2048)));
        settings.set(&values(&[("context", json!(1024))])).unwrap();
        assert_eq!((from("context"), settings.number("context")), (Origin::Api, Some(1024)));
    }

    #[test]
    fn wrong_names_and_values_change_nothing() {
        let settings = Settings::default();
        for (name, value, words) in [
            ("cache", json!(1), "there is no setting `cache`"),
            ("cache_ram", json!("much"), "cache_ram must be a number of 0 bytes or more"),
            ("cache_ram", json!(-1), "cache_ram must be"),
            ("max_rows", json!(0), "a whole number from 1 to 256; it is 0"),
            ("lan", json!("yes"), "lan must be true or false"),
            ("model_folders", json!(["relative"]), "absolute"),
        ] {
            let pairs = values(&[("context", json!(512)), (name, value)]);
            let refusal = settings.set(&pairs).unwrap_err().to_string();
            assert!(refusal.contains(words), "{refusal}");
            assert_eq!(settings.number("context"), None);
        }
    }

    #[test]
    fn a_file_that_is_wrong_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.toml");
        std::fs::write(&path, "a = = 1").unwrap();
        let refusal = Settings::open(&path).unwrap_err().to_string();
        assert!(refusal.contains("settings.toml") && refusal.contains("remove the file"), "{refusal}");
        std::fs::write(&path, "lan = false\nmax_rows = \"many\"").unwrap();
        let refusal = Settings::open(&path).unwrap_err().to_string();
        assert!(refusal.contains("settings.toml, line 2: max_rows must be"), "{refusal}");
    }
}
