//! Which of a repository's files a model needs: configuration, tokenizer, templates, and one set of safetensors weights.

use crate::hub::{HubError, RemoteFile, Repo};

/// Folders whose small files belong to a model.
const FOLDERS: [&str; 2] = ["additional_chat_templates", "1_Pooling"];

/// The files to fetch, small ones first.
///
/// # Errors
/// [`HubError::NoWeights`] where there are no safetensors.
pub(crate) fn needed(repo: &Repo, files: &[RemoteFile]) -> Result<Vec<RemoteFile>, HubError> {
    let top: Vec<&str> = files.iter().map(|f| f.path.as_str()).filter(|p| !p.contains('/')).collect();
    let weights = weights(&top);
    if weights.is_empty() {
        return Err(HubError::NoWeights { repo: repo.to_string(), found: instead(&top) });
    }
    let mut needed: Vec<RemoteFile> =
        files.iter().filter(|f| weights.contains(&f.path.as_str()) || is_small_part(&f.path)).cloned().collect();
    needed.sort_by(|a, b| a.size.cmp(&b.size).then_with(|| a.path.cmp(&b.path)));
    Ok(needed)
}

/// One set of weights: many repositories hold the same ones in several forms.
fn weights<'a>(top: &[&'a str]) -> Vec<&'a str> {
    let named = |start: &str| -> Vec<&'a str> {
        top.iter().copied().filter(|n| n.starts_with(start) && n.ends_with(".safetensors")).collect()
    };
    let mut found = named("model");
    if found.is_empty() {
        found = named("weights");
    }
    // Without an index the single file is the model, as `folder` reads it.
    let index = top.contains(&"model.safetensors.index.json");
    let numbered: Vec<&str> = found.iter().copied().filter(|n| n.contains("-of-")).collect();
    match (index, numbered.is_empty(), found.contains(&"model.safetensors")) {
        (true, false, _) => numbered,
        (false, _, true) => vec!["model.safetensors"],
        _ => found,
    }
}

fn is_small_part(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if !folder.is_empty() && !FOLDERS.contains(&folder) {
        return false;
    }
    if name.starts_with('.') || name.contains("safetensors.index") && name != "model.safetensors.index.json" {
        return false;
    }
    let end = |ends: &[&str]| ends.iter().any(|e| name.ends_with(e));
    end(&[".json", ".jinja", ".tiktoken"])
        || matches!(name, "tokenizer.model" | "merges.txt" | "vocab.txt")
        || (name.starts_with("tokenizer") && end(&[".model"]))
}

/// What a repository without safetensors has.
fn instead(top: &[&str]) -> Option<String> {
    let kinds = [
        (".gguf", "GGUF files, of which one can be fetched by hand and imported with `hearth import`"),
        (".bin", "PyTorch files, which Hearth does not load"),
        (".pt", "PyTorch files, which Hearth does not load"),
        (".pth", "PyTorch files, which Hearth does not load"),
        (".onnx", "ONNX files, which Hearth does not load"),
        (".npz", "NumPy files of an old MLX, which Hearth does not load"),
    ];
    kinds.iter().find(|(end, _)| top.iter().any(|n| n.ends_with(end))).map(|(_, words)| (*words).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Result<Vec<String>, HubError> {
        let files: Vec<RemoteFile> =
            list.iter().map(|p| RemoteFile { path: (*p).to_owned(), size: None, checksum: None }).collect();
        Ok(needed(&Repo::parse("a/b").unwrap(), &files)?.into_iter().map(|f| f.path).collect())
    }

    #[test]
    fn a_model_needs_its_weights_once_and_the_small_files() {
        let got = names(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "chat_template.jinja",
            "generation_config.json",
            "merges.txt",
            "model.safetensors",
            "modeling_x.py",
            "onnx/model.onnx",
            "original/config.json",
            "original/model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer.model",
            "1_Pooling/config.json",
            "m.gguf",
        ]);
        let expected = [
            "1_Pooling/config.json",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "merges.txt",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer.model",
        ];
        assert_eq!(got.unwrap(), expected);
    }

    #[test]
    fn shards_go_with_their_index() {
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let index = "model.safetensors.index.json";
        assert_eq!(names(&[shards[0], shards[1], index, "model.safetensors"]).unwrap(), [shards[0], shards[1], index]);
        assert_eq!(names(&[shards[0], shards[1]]).unwrap(), shards);
        assert_eq!(names(&["model.safetensors", index]).unwrap(), ["model.safetensors", index]);
        assert_eq!(names(&["weights.00.safetensors", "x.safetensors"]).unwrap(), ["weights.00.safetensors"]);
    }

    #[test]
    fn a_repository_without_weights_says_what_it_has() {
        let why = |list: &[&str]| names(list).unwrap_err().to_string();
        assert!(why(&["m.Q4_0.gguf", "config.json"]).contains("hearth import"));
        assert!(why(&["pytorch_model.bin"]).contains("PyTorch"));
        assert_eq!(why(&["config.json"]), "a/b has no weights in safetensors files");
    }
}
