//! Removing a model: what that frees, what stays because something else refers to it, and whether it is Hearth's to remove.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::hf_cache::{RepoFolder, files_below};
use crate::scan::{ModelEntry, Source};
use crate::{LibraryError, json};

/// The note in a repository's folder of what Hearth has downloaded into it.
const NOTE: &str = ".hearth.json";

/// What removing a model does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// The model.
    pub id: String,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes that become free.
    pub frees: u64,
    /// Files that go; links and notes are not counted.
    pub files: usize,
    /// What stays, and why, in sentences.
    pub kept: Vec<String>,
    /// Whether Hearth has made it; what it has not is only removed on the user's word.
    pub own: bool,
    #[serde(skip)]
    paths: Vec<PathBuf>,
    /// Notes of what stands for it, which take no room worth telling.
    #[serde(skip)]
    notes: Vec<PathBuf>,
}

/// What Hearth has downloaded into a repository's folder.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    commits: Vec<String>,
}

/// Notes that Hearth has made this snapshot.
pub(crate) fn note_made(folder: &RepoFolder, commit: &str) -> Result<(), LibraryError> {
    let path = folder.path().join(NOTE);
    let mut note: Note = json::read(&path, "a note of downloads").unwrap_or_default();
    if note.commits.iter().any(|c| c == commit) {
        return Ok(());
    }
    note.commits.push(commit.to_owned());
    json::write_atomically(&path, &note)
}

/// What removing `model` would do. Changes nothing.
///
/// # Errors
/// When its folder cannot be read.
pub fn plan(model: &ModelEntry) -> Result<Removal, LibraryError> {
    let (own, paths, notes, kept) = match (model.source, RepoFolder::of_snapshot(&model.path)) {
        _ if fs::symlink_metadata(&model.path).is_ok_and(|meta| meta.is_symlink()) => linked(&model.path),
        (Source::Hearth, _) if is_through_link(&model.path) => {
            (false, model_files(&model.path), Vec::new(), other_files(&model.path))
        }
        (Source::HfCache | Source::LmStudio | Source::Folder, Some(folder)) => snapshot(&folder, &model.path),
        (Source::Hearth, _) => (true, files_below(&model.path), Vec::new(), Vec::new()),
        _ => (false, model_files(&model.path), Vec::new(), other_files(&model.path)),
    };
    let length = |path: &PathBuf| fs::symlink_metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len());
    let lengths: Vec<u64> = paths.iter().filter_map(length).collect();
    Ok(Removal {
        id: model.id.clone(),
        path: model.path.clone(),
        frees: lengths.iter().sum(),
        files: lengths.len(),
        kept,
        own,
        paths,
        notes,
    })
}

/// A snapshot in a cache: its links, and the contents that no other snapshot links to.
fn snapshot(folder: &RepoFolder, path: &Path) -> (bool, Vec<PathBuf>, Vec<PathBuf>, Vec<String>) {
    let commit = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let note: Note = json::read(&folder.path().join(NOTE), "a note of downloads").unwrap_or_default();
    let own = note.commits.iter().any(|c| c == commit);
    let elsewhere = folder.referred(Some(commit));
    let mut paths = Vec::new();
    let mut shared = 0;
    for file in files_below(path) {
        let target = fs::read_link(&file).ok();
        let blob = target.as_ref().and_then(|t| t.file_name()).and_then(|n| n.to_str());
        match blob {
            Some(name) if elsewhere.contains(name) => shared += 1,
            Some(name) => paths.push(folder.blob(name)),
            None => {}
        }
        paths.push(file);
    }
    paths.sort();
    paths.dedup();
    let kept = match shared {
        0 => Vec::new(),
        1 => vec!["1 file stays, as another revision of the model has it too".to_owned()],
        n => vec![format!("{n} files stay, as other revisions of the model have them too")],
    };
    (own, paths, folder.refs_to(commit), kept)
}

/// A folder that only a link leads to is somebody else's: the link goes, and what it leads to stays.
fn linked(path: &Path) -> (bool, Vec<PathBuf>, Vec<PathBuf>, Vec<String>) {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let kept = format!("{} is a link; {} and what is in it stay", path.display(), target.display());
    (false, vec![path.to_owned()], Vec::new(), vec![kept])
}

/// Whether one of the folders between Hearth's `models` and this one is a link.
fn is_through_link(path: &Path) -> bool {
    let below = path.ancestors().skip(1).take_while(|folder| folder.file_name().is_some_and(|name| name != "models"));
    below.take(3).any(|folder| fs::symlink_metadata(folder).is_ok_and(|meta| meta.is_symlink()))
}

/// The files of a folder that make it a model.
fn model_files(folder: &Path) -> Vec<PathBuf> {
    files_below(folder).into_iter().filter(|p| is_part(p)).collect()
}

fn other_files(folder: &Path) -> Vec<String> {
    let others = files_below(folder).iter().filter(|p| !is_part(p)).count();
    match others {
        0 => Vec::new(),
        1 => vec![format!("1 other file in {} stays", folder.display())],
        n => vec![format!("{n} other files in {} stay", folder.display())],
    }
}

fn is_part(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    [".safetensors", ".json", ".jinja", ".tiktoken"].iter().any(|e| name.ends_with(e))
        || ["tokenizer.model", "merges.txt", "vocab.txt", "README.md", "LICENSE", ".gitattributes"]
            .contains(&name.as_str())
}

/// Removes what [`plan`] listed. Parts of it that are gone already are no error.
///
/// # Errors
/// [`LibraryError::NotOurs`] for what Hearth has not made, unless `foreign`; [`LibraryError::Io`] with the file that cannot be removed.
pub fn remove(removal: &Removal, foreign: bool) -> Result<Removal, LibraryError> {
    if !removal.own && !foreign {
        return Err(LibraryError::NotOurs { id: removal.id.clone(), path: removal.path.clone() });
    }
    // The links first: a model that is half removed is not shown as one.
    let (links, contents): (Vec<_>, Vec<_>) = removal.paths.iter().partition(|p| p.starts_with(&removal.path));
    for path in links.into_iter().chain(contents).chain(&removal.notes) {
        match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(LibraryError::io("remove", path)(e)),
            _ => {}
        }
    }
    // Nothing is there any more where it was a link.
    remove_empty_below(&removal.path);
    if let Some(folder) = RepoFolder::of_snapshot(&removal.path) {
        forget_made(&folder, &removal.path);
        folder.remove_empty();
    }
    Ok(removal.clone())
}

fn forget_made(folder: &RepoFolder, snapshot: &Path) {
    let path = folder.path().join(NOTE);
    let Ok(mut note) = json::read::<Note>(&path, "a note of downloads") else { return };
    note.commits.retain(|c| snapshot.file_name().and_then(|n| n.to_str()) != Some(c));
    // Without it the model is only asked about once more before it is removed.
    let _ = if note.commits.is_empty() {
        fs::remove_file(&path).map_err(LibraryError::io("remove", &path))
    } else {
        json::write_atomically(&path, &note)
    };
}

/// Removes a folder and those in it, as far as they are empty.
fn remove_empty_below(folder: &Path) {
    if let Ok(entries) = fs::read_dir(folder) {
        for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
            remove_empty_below(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Repo;
    use crate::scan::{Place, Places, scan};

    fn only(hub: &Path) -> ModelEntry {
        scan(&Places::of(vec![Place::HfCache(hub.to_path_buf())])).models.remove(0)
    }

    #[test]
    fn contents_that_another_revision_has_stay() {
        let hub = tempfile::tempdir().unwrap();
        let folder = RepoFolder::new(hub.path(), &Repo::parse("org/name").unwrap());
        fs::create_dir_all(folder.blobs()).unwrap();
        for (name, length) in [("aa", 10), ("bb", 100), ("cc", 1000)] {
            fs::write(folder.blob(name), vec![0; length]).unwrap();
        }
        folder.link("old", "config.json", "aa").unwrap();
        folder.link("old", "model.safetensors", "bb").unwrap();
        folder.link("new", "config.json", "aa").unwrap();
        folder.link("new", "model.safetensors", "cc").unwrap();
        folder.set_ref("main", "new").unwrap();
        note_made(&folder, "new").unwrap();
        let removal = plan(&only(hub.path())).unwrap();
        assert_eq!((removal.frees, removal.files, removal.own), (1000, 1, true));
        assert_eq!(removal.kept, ["1 file stays, as another revision of the model has it too"]);
        remove(&removal, false).unwrap();
        assert!(folder.blob("aa").exists() && folder.blob("bb").exists() && !folder.blob("cc").exists());
        assert!(!folder.snapshot("new").exists() && folder.refs_to("new").is_empty());
        // The other one is not Hearth's.
        let removal = plan(&only(hub.path())).unwrap();
        assert_eq!((removal.frees, removal.own), (110, false));
        assert!(matches!(remove(&removal, false), Err(LibraryError::NotOurs { .. })));
        assert!(folder.blob("bb").exists());
        remove(&removal, true).unwrap();
        assert_eq!(fs::read_dir(hub.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn of_an_added_folder_only_the_model_goes() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m");
        fs::create_dir(&model).unwrap();
        for name in ["config.json", "model.safetensors", "holiday.jpg"] {
            fs::write(model.join(name), "12345").unwrap();
        }
        let entry = scan(&Places::of(vec![Place::Folder(dir.path().to_path_buf())])).models.remove(0);
        let removal = plan(&entry).unwrap();
        assert_eq!((removal.own, removal.files, removal.kept.len()), (false, 2, 1));
        remove(&removal, true).unwrap();
        assert!(model.join("holiday.jpg").exists() && !model.join("config.json").exists());
    }
}
