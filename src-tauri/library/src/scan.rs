//! Finds the models on this computer, headers only: Hearth's own folder, the Hugging Face cache, what other programs have, and folders
//! that the user added.
//!
//! Also turns what a user types (a folder, a hub id, a part of a name) into one of them.

pub(crate) mod known;
mod others;
mod places;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use others::Importable;
pub use places::{Place, Places};
pub(crate) use places::{hf_cache, hf_home, together};

use crate::folder::{self, ModelFolder};
use crate::scan::known::Known;
use crate::{LibraryError, json, summary::Summary};

/// Where a model was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Hearth's own models folder.
    Hearth,
    /// The Hugging Face cache.
    HfCache,
    /// LM Studio's models folder.
    LmStudio,
    /// A folder that the user added, or named.
    Folder,
}

/// One model on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelEntry {
    /// What it is called: `org/name` in the Hugging Face cache, the path below the added folder elsewhere.
    pub id: String,
    /// The folder to load.
    pub path: PathBuf,
    /// Where it was found.
    pub source: Source,
    /// The commit, in the Hugging Face cache.
    pub revision: Option<String>,
    /// `model_type` of its configuration.
    pub model_type: Option<String>,
    /// Bytes of its weights; of those that are there, if it is incomplete.
    pub bytes: u64,
    /// Number of weights, if it is complete.
    pub parameters: Option<u64>,
    /// How the weights are stored: `4-bit`, `mxfp4`, `bf16`.
    pub quantization: Option<String>,
    /// Longest context in tokens.
    pub context: Option<u64>,
    /// What is missing or wrong; `None` if the model is complete.
    pub problem: Option<String>,
}

impl ModelEntry {
    /// Whether everything is there.
    pub fn is_complete(&self) -> bool {
        self.problem.is_none()
    }

    /// The model in `path`; never fails, as what goes wrong is the entry's `problem`. Read again only when its files change.
    fn read(id: String, path: PathBuf, source: Source, revision: Option<String>) -> Self {
        static KNOWN: Known<ModelEntry> = Known::new();
        let entry = KNOWN.get(&path, || Self::read_anew(id.clone(), path.clone(), source, revision.clone()));
        // The same folder may be found under another name.
        Self { id, path: path.clone(), source, revision, ..entry }
    }

    fn read_anew(id: String, path: PathBuf, source: Source, revision: Option<String>) -> Self {
        let mut entry = Self {
            id,
            path,
            source,
            revision,
            model_type: None,
            bytes: 0,
            parameters: None,
            quantization: None,
            context: None,
            problem: None,
        };
        match folder::open(&entry.path) {
            Ok(model) => entry.fill(&model),
            Err(e) => {
                entry.problem = Some(e.to_string());
                if let Ok(config) = json::read(&entry.path.join("config.json"), "a JSON object") {
                    let summary = Summary::of(&config);
                    entry.quantization = summary.quantization.as_ref().map(|q| q.label());
                    entry.model_type = summary.model_type;
                    entry.context = summary.context;
                }
                entry.bytes = weight_bytes_there(&entry.path);
            }
        }
        entry
    }

    fn fill(&mut self, model: &ModelFolder) {
        let summary = model.summary();
        self.bytes = model.weight_bytes();
        self.parameters = Some(model.parameters());
        self.quantization = Some(model.precision());
        self.model_type = summary.model_type;
        self.context = summary.context;
        // Without one, a model can be opened but not talked to.
        if !self.path.join("tokenizer.json").is_file() {
            self.problem = Some(LibraryError::missing(&self.path, "tokenizer.json").to_string());
        }
    }
}

fn weight_bytes_there(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let weights = entries.flatten().filter(|e| e.path().extension().is_some_and(|x| x == "safetensors"));
    weights.filter_map(|e| std::fs::metadata(e.path()).ok()).map(|m| m.len()).sum()
}

/// What a scan found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Scan {
    /// All models, sorted by id; of one id, Hearth's own first.
    pub models: Vec<ModelEntry>,
    /// Places that cannot be read now, such as a folder on an unplugged drive.
    pub away: Vec<PathBuf>,
    /// Files of other programs that can be imported.
    pub importable: Vec<Importable>,
}

/// Looks for models in `places`. A place that is not there is reported as away, never as an error.
pub fn scan(places: &Places) -> Scan {
    let mut scan = Scan::default();
    for place in places.iter() {
        if !place.path().is_dir() {
            // A cache that no program has made yet is simply empty.
            if matches!(place, Place::Folder(_)) {
                scan.away.push(place.path().to_path_buf());
            }
            continue;
        }
        scan.models.extend(place.models());
        scan.importable.extend(place.importable());
    }
    let rank = |s: Source| s as u8;
    scan.models.sort_by(|a, b| a.id.cmp(&b.id).then(rank(a.source).cmp(&rank(b.source))).then(a.path.cmp(&b.path)));
    scan.models.dedup_by(|a, b| a.path == b.path);
    scan
}

/// Finds the model that `name` means: a folder, an exact id, or a part of a name that fits only one model.
///
/// A path (absolute, or starting with `.` or `~/`) always means that folder; another name means a folder only if it holds a
/// `config.json`. Letter case does not matter unless ids differ only in it. Complete models come before incomplete ones; a name that
/// only fits an incomplete one is refused with what is missing.
///
/// # Errors
/// [`LibraryError::NotFound`] with what is there, [`LibraryError::Ambiguous`] with what fits, [`LibraryError::Incomplete`] with what
/// is missing, [`LibraryError::NeedsImport`] for a GGUF file, and whatever is wrong with a folder.
pub fn resolve(name: &str, places: &Places) -> Result<ModelEntry, LibraryError> {
    match meant_folder(name) {
        Some(path) => from_folder(&path),
        None => resolve_id(name, places),
    }
}

/// The path that `name` is, if it is one.
fn meant_folder(name: &str) -> Option<PathBuf> {
    let path = match (name.strip_prefix("~/"), etcetera::home_dir()) {
        (Some(rest), Ok(home)) => home.join(rest),
        _ => PathBuf::from(name),
    };
    let explicit = path.is_absolute() || name.starts_with('.');
    let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && path.is_file();
    (explicit || is_gguf || path.join("config.json").is_file()).then_some(path)
}

/// As [`resolve`], for a name that is never a path: an id, or a part of one. For names from other programs, which have no
/// business in the file system beyond the places.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_id(name: &str, places: &Places) -> Result<ModelEntry, LibraryError> {
    complete(choose(name, scan(places).models)?)
}

/// The model that `name` means, complete or not: for removing it, or saying what is wrong with it. Never a path.
///
/// # Errors
/// [`LibraryError::NotFound`] and [`LibraryError::Ambiguous`].
pub fn find(name: &str, places: &Places) -> Result<ModelEntry, LibraryError> {
    choose(name, scan(places).models)
}

/// The id and the folder that `name` means, as [`resolve`] finds them. A folder that is named by its path is not opened:
/// whoever reads it says what is wrong with it.
///
/// # Errors
/// As [`resolve`].
pub fn locate(name: &str, places: &Places) -> Result<(String, PathBuf), LibraryError> {
    match meant_folder(name) {
        Some(path) => {
            let absolute = std::path::absolute(&path).map_err(LibraryError::io("find", &path))?;
            Ok((places::folder_id(&absolute), absolute))
        }
        None => resolve_id(name, places).map(|entry| (entry.id, entry.path)),
    }
}

fn from_folder(path: &Path) -> Result<ModelEntry, LibraryError> {
    let model = folder::open(path)?;
    let absolute = std::path::absolute(path).map_err(LibraryError::io("find", path))?;
    let id = places::folder_id(&absolute);
    let mut entry = ModelEntry::read(id, absolute, Source::Folder, places::revision_of(path));
    entry.problem = None;
    entry.fill(&model);
    complete(entry)
}

fn complete(entry: ModelEntry) -> Result<ModelEntry, LibraryError> {
    match entry.problem {
        Some(why) => Err(LibraryError::Incomplete { id: entry.id, why }),
        None => Ok(entry),
    }
}

/// Which of these ids a name means, by their places: those that the first rule fits which fits any. The rules: the id
/// itself; the id in other letters; its last part; a part of it.
pub fn fitting<'a>(name: &str, ids: impl Iterator<Item = &'a str> + Clone) -> Vec<usize> {
    let wanted = name.to_lowercase();
    let rules: [&dyn Fn(&str) -> bool; 4] = [
        &|id| id == name,
        &|id| id.to_lowercase() == wanted,
        &|id| id.rsplit('/').next().unwrap_or(id).to_lowercase() == wanted,
        &|id| !wanted.is_empty() && id.to_lowercase().contains(&wanted),
    ];
    let fit =
        |rule: &dyn Fn(&str) -> bool| ids.clone().enumerate().filter(|(_, id)| rule(id)).map(|(n, _)| n).collect();
    rules.into_iter().map(fit).find(|all: &Vec<usize>| !all.is_empty()).unwrap_or_default()
}

/// Picks the one of `models` (sorted by id) that `name` means.
fn choose(name: &str, models: Vec<ModelEntry>) -> Result<ModelEntry, LibraryError> {
    let all = fitting(name, models.iter().map(|m| m.id.as_str())).into_iter().filter_map(|n| models.get(n));
    let (whole, parts): (Vec<&ModelEntry>, Vec<_>) = all.partition(|m| m.is_complete());
    let mut candidates = if whole.is_empty() { parts } else { whole };
    // Of several copies of one id, the first place's is taken.
    candidates.dedup_by(|a, b| a.id == b.id);
    match candidates.as_slice() {
        [] => {}
        [one] => return Ok((*one).clone()),
        many => {
            let candidates = many.iter().map(|m| m.id.clone()).collect();
            return Err(LibraryError::Ambiguous { name: name.to_owned(), candidates });
        }
    }
    let mut available: Vec<String> = models.into_iter().filter(|m| m.is_complete()).map(|m| m.id).collect();
    available.dedup();
    Err(LibraryError::NotFound { name: name.to_owned(), available })
}
