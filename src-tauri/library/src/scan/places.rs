//! Where models can be, and how each kind of place is laid out.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

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
    /// A folder that the user added.
    Folder(PathBuf),
}

/// All places, in the order of precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    list: Vec<Place>,
}

impl Places {
    /// Hearth's folder and the Hugging Face cache of this user, then the folders in `extra`.
    pub fn standard(home: &Home, extra: &[PathBuf]) -> Self {
        Self::standard_in(home, extra, &process_env)
    }

    /// As [`Places::standard`], with the environment read through `env`.
    pub fn standard_in(home: &Home, extra: &[PathBuf], env: Env<'_>) -> Self {
        let mut list = vec![Place::Hearth(home.models())];
        list.extend(hf_cache(env).map(Place::HfCache));
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
            Self::Hearth(p) | Self::HfCache(p) | Self::Folder(p) => p,
        }
    }

    /// The models in it.
    pub(super) fn models(&self) -> Vec<ModelEntry> {
        match self {
            Self::HfCache(p) => cache_models(p),
            Self::Hearth(p) => folder_models(p, Source::Hearth),
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
fn subfolders(folder: &Path) -> Vec<(String, PathBuf)> {
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
    let mut models = Vec::new();
    if is_model(root) {
        models.push(ModelEntry::read(folder_id(root), root.to_path_buf(), source, None));
        return models;
    }
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
                models.push(ModelEntry::read(id, path, source, None));
            } else if depth + 1 < DEPTH {
                open.push((id, path, depth + 1));
            }
        }
    }
    models
}

/// Whether the folder is meant to be a model: it has a configuration, or weights without one.
fn is_model(folder: &Path) -> bool {
    folder.join("config.json").exists()
        || folder.join("model.safetensors").exists()
        || folder.join("model.safetensors.index.json").exists()
}

fn cache_models(hub: &Path) -> Vec<ModelEntry> {
    let mut models = Vec::new();
    for (name, repo) in subfolders(hub) {
        let Some(id) = name.strip_prefix("models--") else { continue };
        let id = id.replace("--", "/");
        let wanted = fs::read_to_string(repo.join("refs").join("main")).ok().map(|r| r.trim().to_owned());
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
        models.extend(best);
    }
    models
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
