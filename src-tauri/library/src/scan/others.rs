//! What other programs have on this computer: GGUF files of LM Studio and Ollama, which Hearth can import.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::places::subfolders;
use crate::json;

/// Largest number of files listed; more is no list that a person reads.
const MOST: usize = 2000;

/// A GGUF file that is not a model of Hearth's yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Importable {
    /// What its program calls it.
    pub id: String,
    /// The file, for `hearth import`.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// `lm_studio` or `ollama`.
    pub program: &'static str,
}

/// GGUF files in a models folder of LM Studio: `publisher/model/file.gguf`.
pub(super) fn lm_studio(models: &Path) -> Vec<Importable> {
    let mut found = Vec::new();
    for (publisher, folder) in subfolders(models) {
        for (model, folder) in subfolders(&folder) {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for path in entries.flatten().map(|e| e.path()) {
                let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                // A part that sees images is no model by itself.
                if !name.ends_with(".gguf") || name.starts_with("mmproj") {
                    continue;
                }
                let id = format!("{publisher}/{model}/{}", name.trim_end_matches(".gguf"));
                found.extend(importable(id, path, "lm_studio"));
            }
        }
    }
    sorted(found)
}

/// Models of Ollama, by its manifests: each names the blob that is a GGUF file.
pub(super) fn ollama(models: &Path) -> Vec<Importable> {
    #[derive(Deserialize)]
    struct Manifest {
        #[serde(default)]
        layers: Vec<Layer>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Layer {
        media_type: String,
        digest: String,
    }
    let root = models.join("manifests");
    let mut found = Vec::new();
    for path in crate::hf_cache::files_below(&root).into_iter().take(MOST) {
        let Ok(manifest) = json::read::<Manifest>(&path, "a manifest of Ollama") else { continue };
        let layer = manifest.layers.iter().find(|l| l.media_type.ends_with("image.model"));
        let hex = layer.and_then(|l| l.digest.strip_prefix("sha256:"));
        let Some(hex) = hex.filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit())) else { continue };
        // `registry/library/name/tag`; the usual registry and owner are left out, as Ollama does.
        let parts: Vec<String> = path
            .strip_prefix(&root)
            .map(|p| p.iter().skip(1).map(|s| s.to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        let id = match parts.as_slice() {
            [owner, name, tag] if owner == "library" => format!("{name}:{tag}"),
            [owner, name, tag] => format!("{owner}/{name}:{tag}"),
            _ => continue,
        };
        found.extend(importable(id, models.join("blobs").join(format!("sha256-{hex}")), "ollama"));
    }
    sorted(found)
}

fn importable(id: String, path: PathBuf, program: &'static str) -> Option<Importable> {
    let bytes = fs::metadata(&path).ok().filter(|m| m.is_file())?.len();
    Some(Importable { id, path, bytes, program })
}

fn sorted(mut found: Vec<Importable>) -> Vec<Importable> {
    found.truncate(MOST);
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn files_of_other_programs_are_found_under_their_own_names() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("lm/bartowski/Llama-GGUF/Llama-Q4_0.gguf"), "GGUF");
        write(&dir.path().join("lm/bartowski/Llama-GGUF/mmproj-f16.gguf"), "GGUF");
        let found = lm_studio(&dir.path().join("lm"));
        assert_eq!((found.len(), found[0].id.as_str(), found[0].bytes), (1, "bartowski/Llama-GGUF/Llama-Q4_0", 4));
        let ollama_dir = dir.path().join("ollama");
        let manifest = r#"{"layers": [{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:00"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:ab12"}]}"#;
        write(&ollama_dir.join("manifests/registry.example/library/qwen3/0.6b"), manifest);
        write(&ollama_dir.join("manifests/registry.example/me/own/latest"), manifest);
        write(&ollama_dir.join("manifests/registry.example/library/gone/latest"), &manifest.replace("ab12", "cd"));
        write(&ollama_dir.join("manifests/registry.example/library/bad/latest"), "no JSON");
        write(&ollama_dir.join("manifests/registry.example/library/evil/latest"), &manifest.replace("ab12", "../x"));
        write(&ollama_dir.join("blobs/sha256-ab12"), "GGUF");
        let found = ollama(&ollama_dir);
        let ids: Vec<&str> = found.iter().map(|f| f.id.as_str()).collect();
        assert_eq!(ids, ["me/own:latest", "qwen3:0.6b"]);
        assert_eq!(found[1].path, ollama_dir.join("blobs/sha256-ab12"));
    }
}
