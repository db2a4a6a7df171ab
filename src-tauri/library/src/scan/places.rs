//! Where models can be, and how each kind of place is laid out.

use hearth_core::files::read_text;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::others::{self, Importable};
use super::{ModelEntry, Source};
use crate::home::{Env, Home, process_env};

/// How many folders below a place are looked into: `org/name` and one more.
const DEPTH: usize = 3;
/// How many folders one place may have before the search stops; a home folder added by mistake must not take minutes.
const MAX_FOLDERS: usize = 20_000;

/// One place to look for models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Hearth's own models folder.
    Hearth(PathBuf),
    /// A Hugging Face cache (`…/huggingface/hub`).
    HfCache(PathBuf),
    /// The models folder of LM Studio.
    LmStudio(PathBuf),
    /// The models folder of Ollama, whose files can be imported.
    Ollama(PathBuf),
    /// A folder that the user added.
    Folder(PathBuf),
}

/// All places, in the order of precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    list: Vec<Place>,
}

impl Places {
    /// Hearth's folder, the Hugging Face cache of this user and what LM Studio and Ollama have, then the folders in `extra`.
    pub fn standard(home: &Home, extra: &[PathBuf]) -> Self {
        Self::standard_in(home, extra, &process_env)
    }

    /// As [`Places::standard`], with the environment read through `env`.
    pub fn standard_in(home: &Home, extra: &[PathBuf], env: Env<'_>) -> Self {
        let mut list = vec![Place::Hearth(home.models())];
        list.extend(hf_cache(env).map(Place::HfCache));
        list.extend(lm_studio(env).map(Place::LmStudio));
        list.extend(ollama(env).map(Place::Ollama));
        list.extend(extra.iter().cloned().map(Place::Folder));
        Self { list }
    }

    /// Exactly these places.
    pub fn of(list: Vec<Place>) -> Self {
        Self { list }
    }

    /// The places in order.
    pub fn iter(&self) -> impl Iterator<Item = &Place> {
        self.list.iter()
    }
}

/// The Hugging Face cache: `HF_HUB_CACHE`, `HF_HOME/hub`, `XDG_CACHE_HOME/huggingface/hub`, `~/.cache/huggingface/hub`.
pub(crate) fn hf_cache(env: Env<'_>) -> Option<PathBuf> {
    match set(env, "HF_HUB_CACHE").or_else(|| set(env, "HUGGINGFACE_HUB_CACHE")) {
        Some(hub) => expand(env, hub),
        None => hf_home(env).map(|p| p.join("hub")),
    }
}

/// The folder of the Hugging Face clients: `HF_HOME`, `XDG_CACHE_HOME/huggingface`, `~/.cache/huggingface`.
pub(crate) fn hf_home(env: Env<'_>) -> Option<PathBuf> {
    if let Some(hf) = set(env, "HF_HOME") {
        return expand(env, hf);
    }
    let cache = match set(env, "XDG_CACHE_HOME") {
        Some(xdg) => xdg,
        None => user_home(env)?.join(".cache"),
    };
    Some(cache.join("huggingface"))
}

/// LM Studio's models folder: the one of today, or the one of old versions where only that is there.
fn lm_studio(env: Env<'_>) -> Option<PathBuf> {
    let home = user_home(env)?;
    let (now, old) = (home.join(".lmstudio/models"), home.join(".cache/lm-studio/models"));
    Some(if !now.is_dir() && old.is_dir() { old } else { now })
}

/// Ollama's models folder: `OLLAMA_MODELS`, `~/.ollama/models`.
fn ollama(env: Env<'_>) -> Option<PathBuf> {
    match set(env, "OLLAMA_MODELS") {
        Some(models) => expand(env, models),
        None => Some(user_home(env)?.join(".ollama/models")),
    }
}

fn set(env: Env<'_>, name: &str) -> Option<PathBuf> {
    env(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

fn user_home(env: Env<'_>) -> Option<PathBuf> {
    set(env, "HOME").or_else(|| etcetera::home_dir().ok())
}

/// `~` as the user's home.
fn expand(env: Env<'_>, path: PathBuf) -> Option<PathBuf> {
    match path.strip_prefix("~") {
        Ok(rest) => user_home(env).map(|h| h.join(rest)),
        Err(_) => Some(path),
    }
}

impl Place {
    /// The folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Hearth(p) | Self::HfCache(p) | Self::LmStudio(p) | Self::Ollama(p) | Self::Folder(p) => p,
        }
    }

    /// What other programs have in it that can be imported.
    pub(super) fn importable(&self) -> Vec<Importable> {
        match self {
            Self::LmStudio(p) => others::lm_studio(p),
            Self::Ollama(p) => others::ollama(p),
            Self::Hearth(_) | Self::HfCache(_) | Self::Folder(_) => Vec::new(),
        }
    }

    /// The models in it.
    pub(super) fn models(&self) -> Vec<ModelEntry> {
        match self {
            Self::HfCache(p) => cache_models(p),
            Self::Hearth(p) => folder_models(p, Source::Hearth),
            Self::LmStudio(p) => folder_models(p, Source::LmStudio),
            // Its models are files in a format that has to be imported.
            Self::Ollama(_) => Vec::new(),
            Self::Folder(p) => {
                let mut models = folder_models(p, Source::Folder);
                // An added folder may be a cache, or hold one as `hub`.
                for cache in [p.clone(), p.join("hub")] {
                    models.extend(cache_models(&cache));
                }
                models
            }
        }
    }
}

/// Names of the folders in `folder`, sorted; hidden ones are somebody's private business (or a model still being written).
pub(super) fn subfolders(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(String, PathBuf)> = entries
        .flatten()
        .filter_map(|e| Some((e.file_name().into_string().ok()?, e.path())))
        .filter(|(name, path)| !name.starts_with('.') && path.is_dir())
        .collect();
    found.sort();
    found
}

fn folder_models(root: &Path, source: Source) -> Vec<ModelEntry> {
    if is_model(root) {
        return vec![ModelEntry::read(folder_id(root), root.to_path_buf(), source, None)];
    }
    let mut models = Vec::new();
    let mut left = MAX_FOLDERS;
    let mut open = vec![(String::new(), root.to_path_buf(), 0)];
    while let Some((prefix, folder, depth)) = open.pop() {
        for (name, path) in subfolders(&folder) {
            // The layout of the Hugging Face cache is read by `cache_models`.
            if name.starts_with("models--") || name.starts_with("datasets--") || left == 0 {
                continue;
            }
            left -= 1;
            let id = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            if is_model(&path) {
                models.push((id, path));
            } else if depth + 1 < DEPTH {
                open.push((id, path, depth + 1));
            }
        }
    }
    together(models, |(id, path)| Some(ModelEntry::read(id, path, source, None)))
}

/// Does the same with all of a list, on a few threads, in no order: reading headers waits for the disk, and parsing them
/// takes a core.
pub(crate) fn together<T: Send, U: Send>(list: Vec<T>, work: impl Fn(T) -> Option<U> + Sync) -> Vec<U> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    if list.len() < 2 * threads {
        return list.into_iter().filter_map(work).collect();
    }
    let mut shares: Vec<Vec<T>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, item) in list.into_iter().enumerate() {
        if let Some(share) = shares.get_mut(i % threads) {
            share.push(item);
        }
    }
    std::thread::scope(|scope| {
        let work = &work;
        let start = |share: Vec<T>| scope.spawn(move || share.into_iter().filter_map(work).collect::<Vec<U>>());
        let running: Vec<_> = shares.into_iter().map(start).collect();
        // A thread that failed has nothing to say; the others do.
        running.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect()
    })
}

/// Whether the folder is meant to be a model: it has a configuration, or weights without one.
fn is_model(folder: &Path) -> bool {
    folder.join("config.json").exists()
        || folder.join("model.safetensors").exists()
        || folder.join("model.safetensors.index.json").exists()
}

fn cache_models(hub: &Path) -> Vec<ModelEntry> {
    together(subfolders(hub), |(name, repo)| {
        let id = name.strip_prefix("models--")?.replace("--", "/");
        let wanted = read_text(&repo.join("refs").join("main")).ok().map(|r| r.trim().to_owned());
        // The commit that `main` stands for, then the newest.
        let mut snapshots = subfolders(&repo.join("snapshots"));
        snapshots.sort_by_key(|(rev, path)| {
            let time = fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            (Some(rev) == wanted.as_ref(), time)
        });
        let mut best: Option<ModelEntry> = None;
        for (rev, path) in snapshots.into_iter().rev().filter(|(_, path)| is_model(path)) {
            let entry = ModelEntry::read(id.clone(), path, Source::HfCache, Some(rev));
            let take = match &best {
                None => true,
                Some(b) => !b.is_complete() && entry.is_complete(),
            };
            if take {
                best = Some(entry);
            }
            if best.as_ref().is_some_and(ModelEntry::is_complete) {
                break;
            }
        }
        best
    })
}

/// The id of a folder that was named as such: `org/name` for a snapshot in a cache, else its last part.
pub(super) fn folder_id(folder: &Path) -> String {
    let name = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned());
    if let Some(snapshots) = folder.parent()
        && name(snapshots).as_deref() == Some("snapshots")
        && let Some(repo) = snapshots.parent().and_then(name)
        && let Some(id) = repo.strip_prefix("models--")
    {
        return id.replace("--", "/");
    }
    let shown = || folder.to_string_lossy().into_owned();
    // "." and ".." have no name of their own.
    name(folder).or_else(|| folder.canonicalize().ok().as_deref().and_then(name)).unwrap_or_else(shown)
}

/// The commit, for a snapshot in a cache.
pub(super) fn revision_of(folder: &Path) -> Option<String> {
    let parent = folder.parent()?.file_name()?;
    (parent == "snapshots").then(|| folder.file_name().map(|n| n.to_string_lossy().into_owned())).flatten()
}
