//! Finding models on disk and resolving names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

#[path = "support/folders.rs"]
mod folders;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use folders::*;
use hearth_core::fit::{Allowance, Device, Machine};
use hearth_library::LibraryError;
use hearth_library::home::Home;
use hearth_library::scan::{ModelEntry, Place, Places, Source, resolve, scan};
use hearth_library::shelf::describe_all;

/// A Hugging Face cache, a Hearth home and an added folder.
fn disk() -> (tempfile::TempDir, Places) {
    let root = tempfile::tempdir().unwrap();
    let r = root.path();
    std::fs::create_dir_all(r.join("hub")).unwrap();
    let places = Places::of(vec![
        Place::Hearth(r.join("hearth/models")),
        Place::HfCache(r.join("hub")),
        Place::Folder(r.join("extra")),
    ]);
    std::fs::create_dir_all(r.join("extra")).unwrap();
    (root, places)
}

/// A snapshot as the hub's own client writes it: files are links into `blobs`.
fn snapshot(hub: &Path, id: &str, revision: &str, main: bool) -> PathBuf {
    let repo = hub.join(format!("models--{}", id.replace('/', "--")));
    let folder = repo.join("snapshots").join(revision);
    std::fs::create_dir_all(&folder).unwrap();
    let source = repo.join("source");
    model(&source);
    for entry in std::fs::read_dir(&source).unwrap().flatten() {
        let blob = repo.join("blobs").join(format!("{revision}-{}", entry.file_name().to_str().unwrap()));
        std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
        std::fs::rename(entry.path(), &blob).unwrap();
        std::os::unix::fs::symlink(&blob, folder.join(entry.file_name())).unwrap();
    }
    std::fs::remove_dir(&source).unwrap();
    if main {
        write(&repo.join("refs/main"), revision);
    }
    folder
}

fn ids(models: &[ModelEntry]) -> Vec<&str> {
    models.iter().map(|m| m.id.as_str()).collect()
}

#[test]
fn models_are_found_in_every_place() {
    let (root, places) = disk();
    let r = root.path();
    model(&r.join("hearth/models/starter"));
    model(&r.join("hearth/models/.half.importing-x1"));
    snapshot(&r.join("hub"), "mlx/Tiny-4bit", "abc", true);
    snapshot(&r.join("hub"), "gpt2", "def", true);
    std::fs::create_dir_all(r.join("hub/datasets--a--b/snapshots/x")).unwrap();
    model(&r.join("extra/lmstudio/org/Deep"));
    let found = scan(&places);
    assert_eq!(ids(&found.models), ["gpt2", "lmstudio/org/Deep", "mlx/Tiny-4bit", "starter"]);
    assert_eq!(found.away, Vec::<PathBuf>::new());
    let tiny = &found.models[2];
    assert_eq!((tiny.source, tiny.revision.as_deref(), tiny.is_complete()), (Source::HfCache, Some("abc"), true));
    assert_eq!((tiny.bytes, tiny.parameters, tiny.context), (160, Some(40), Some(2048)));
    assert_eq!((tiny.model_type.as_deref(), tiny.quantization.as_deref()), (Some("llama"), Some("f32")));
}

#[test]
fn an_added_folder_may_be_a_model_or_a_cache_itself() {
    let root = tempfile::tempdir().unwrap();
    let one = root.path().join("one model 5%");
    model(&one);
    let cache = root.path().join("cache");
    snapshot(&cache.join("hub"), "a/b", "r", true);
    let found = scan(&Places::of(vec![Place::Folder(one), Place::Folder(cache)]));
    assert_eq!(ids(&found.models), ["a/b", "one model 5%"]);
}

#[test]
fn a_folder_on_an_unplugged_drive_is_away_and_an_unmade_cache_is_empty() {
    let root = tempfile::tempdir().unwrap();
    let gone = root.path().join("drive");
    let places = Places::of(vec![Place::HfCache(root.path().join("none")), Place::Folder(gone.clone())]);
    let found = scan(&places);
    assert_eq!((found.models.len(), found.away), (0, vec![gone]));
}

#[test]
fn snapshots_are_usable_without_refs_and_the_newest_complete_one_wins() {
    let (root, places) = disk();
    let hub = root.path().join("hub");
    snapshot(&hub, "a/no-refs", "r1", false);
    let found = scan(&places);
    assert!(found.models[0].is_complete());
    assert_eq!(found.models[0].revision.as_deref(), Some("r1"));

    // `main` moved on, but its weights were never fetched.
    let newer = snapshot(&hub, "a/no-refs", "r2", true);
    std::fs::remove_file(newer.join("model.safetensors")).unwrap();
    assert_eq!(scan(&places).models[0].revision.as_deref(), Some("r1"));
}

#[test]
fn incomplete_models_say_what_is_missing() {
    let (root, places) = disk();
    let folder = snapshot(&root.path().join("hub"), "a/part", "r", true);
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    write(&folder.join("model-00001-of-00002.safetensors"), shard(&[("a", &[2])]));
    let entry = &scan(&places).models[0];
    assert!(entry.problem.as_ref().unwrap().contains("model-00002-of-00002.safetensors"), "{:?}", entry.problem);
    assert_eq!((entry.model_type.as_deref(), entry.context), (Some("llama"), Some(2048)));
    assert!(entry.bytes > 0);
    let e = resolve("a/part", &places).unwrap_err();
    assert!(matches!(&e, LibraryError::Incomplete { id, .. } if id == "a/part"), "{e}");

    // A link whose blob is gone is a missing file.
    let dangling = snapshot(&root.path().join("hub"), "a/dangling", "r", true);
    std::fs::remove_dir_all(root.path().join("hub/models--a--dangling/blobs")).unwrap();
    std::fs::remove_file(dangling.join("config.json")).unwrap();
    write(&dangling.join("config.json"), config().to_string());
    assert!(scan(&places).models.iter().any(|m| m.id == "a/dangling" && !m.is_complete()));

    model(&root.path().join("extra/no-tokenizer"));
    std::fs::remove_file(root.path().join("extra/no-tokenizer/tokenizer.json")).unwrap();
    let e = resolve("no-tokenizer", &places).unwrap_err().to_string();
    assert!(e.contains("tokenizer.json is missing"), "{e}");
}

#[test]
fn a_model_of_sizes_that_cannot_be_says_so_before_anybody_loads_it() {
    let (root, places) = disk();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/llama-q4");
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden.join("config.json")).unwrap()).unwrap();
    for (name, layers) in [("good", None), ("odd", Some(-3))] {
        let folder = root.path().join("extra").join(name);
        for file in ["tokenizer.json", "model.safetensors"] {
            write(&folder.join(file), std::fs::read(golden.join(file)).unwrap());
        }
        let mut config = config.clone();
        if let Some(layers) = layers {
            config["num_hidden_layers"] = layers.into();
        }
        write(&folder.join("config.json"), config.to_string());
    }
    let machine = Machine {
        chip: None,
        device: Device::Cpu,
        ram: 8 << 30,
        available: None,
        working_set: None,
        bandwidth: None,
        efficiency: 0.5,
        allowance: Allowance::default(),
    };
    let models = describe_all(scan(&places).models, &machine);
    let of = |id: &str| models.iter().find(|m| m.entry.id == id).unwrap();
    assert!(of("good").complete && of("good").entry.problem.is_none() && of("good").fit.is_some());
    let why = of("odd").entry.problem.clone().unwrap();
    assert!(
        of("odd").complete && of("odd").fit.is_none() && why.contains("num_hidden_layers") && why.contains("-3"),
        "{why}"
    );
}

#[test]
fn names_resolve_from_the_exact_to_the_partial() {
    let (root, places) = disk();
    let r = root.path();
    for id in ["mlx/Qwen3-0.6B-4bit", "mlx/Qwen3-8B-4bit", "other/Qwen3-8B-4bit", "x/SmolLM2"] {
        snapshot(&r.join("hub"), id, "r", true);
    }
    model(&r.join("hearth/models/smollm2"));
    let id = |name: &str| resolve(name, &places).unwrap().id;
    assert_eq!(id("mlx/Qwen3-8B-4bit"), "mlx/Qwen3-8B-4bit");
    assert_eq!(id("MLX/qwen3-8b-4BIT"), "mlx/Qwen3-8B-4bit");
    assert_eq!(id("qwen3-0.6b-4bit"), "mlx/Qwen3-0.6B-4bit");
    assert_eq!(id("0.6"), "mlx/Qwen3-0.6B-4bit");
    assert_eq!(id("smollm2"), "smollm2");
    assert_eq!(id("x/smollm2"), "x/SmolLM2");
    match resolve("qwen3-8b-4bit", &places).unwrap_err() {
        LibraryError::Ambiguous { candidates, .. } => {
            assert_eq!(candidates, ["mlx/Qwen3-8B-4bit", "other/Qwen3-8B-4bit"]);
        }
        e => panic!("{e}"),
    }
    let message = resolve("gemma", &places).unwrap_err().to_string();
    assert!(message.contains("\"gemma\"") && message.contains("smollm2, x/SmolLM2"), "{message}");
    assert!(matches!(resolve("", &places).unwrap_err(), LibraryError::NotFound { .. }));
}

#[test]
fn a_complete_model_comes_before_an_incomplete_one() {
    let (root, places) = disk();
    let part = snapshot(&root.path().join("hub"), "a/model-big", "r", true);
    std::fs::remove_file(part.join("model.safetensors")).unwrap();
    snapshot(&root.path().join("hub"), "a/model-small", "r", true);
    assert_eq!(resolve("model", &places).unwrap().id, "a/model-small");
}

#[test]
fn hearths_own_copy_of_an_id_comes_first() {
    let (root, places) = disk();
    snapshot(&root.path().join("hub"), "org/m", "r", true);
    model(&root.path().join("hearth/models/org/m"));
    assert_eq!(resolve("org/m", &places).unwrap().source, Source::Hearth);
    assert_eq!(resolve("m", &places).unwrap().source, Source::Hearth);
}

#[test]
fn a_pipe_under_the_name_of_a_file_is_no_file_and_nobody_waits_for_it() {
    let (root, places) = disk();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let folder = root.path().join(name.replace('.', "-"));
        model(&folder);
        let _ = std::fs::remove_file(folder.join(name));
        assert!(std::process::Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
        let found = resolve(folder.to_str().unwrap(), &places);
        if name != "tokenizer_config.json" {
            let said = found.err().map(|e| e.to_string()).unwrap_or_default();
            let problem = hearth_library::headers::model(&folder).err().map(|e| e.to_string());
            let both = format!("{said}; {}", problem.unwrap_or_default());
            let expected = ["expected a file, found something else", "tokenizer.json is missing"];
            assert!(expected.iter().any(|e| both.contains(e)), "{name}: {both}");
        }
    }
}

#[test]
fn folders_resolve_to_themselves() {
    let (root, places) = disk();
    let folder = root.path().join("some where/100%s");
    model(&folder);
    let entry = resolve(folder.to_str().unwrap(), &places).unwrap();
    assert_eq!((entry.id.as_str(), entry.source, entry.path), ("100%s", Source::Folder, folder.clone()));

    let cached = snapshot(&root.path().join("hub"), "org/name", "cafe", true);
    let entry = resolve(cached.to_str().unwrap(), &places).unwrap();
    assert_eq!((entry.id.as_str(), entry.revision.as_deref()), ("org/name", Some("cafe")));

    let nothing = root.path().join("nothing");
    assert!(matches!(resolve(nothing.to_str().unwrap(), &places).unwrap_err(), LibraryError::Io { .. }));
    let gguf = root.path().join("a.gguf");
    write(&gguf, "GGUF");
    assert!(matches!(resolve(gguf.to_str().unwrap(), &places).unwrap_err(), LibraryError::NeedsImport { .. }));
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    let e = resolve(folder.to_str().unwrap(), &places).unwrap_err().to_string();
    assert!(e.contains("100%s") && e.contains("weights"), "{e}");
}

#[test]
fn the_cache_is_where_the_environment_says() {
    let places = |set: &[(&str, &str)]| {
        let set: Vec<(String, OsString)> = set.iter().map(|(k, v)| ((*k).to_owned(), OsString::from(v))).collect();
        let env = move |name: &str| set.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone());
        let places = Places::standard_in(&Home::at("/h"), &[PathBuf::from("/e")], &env);
        let all: Vec<Place> = places.iter().cloned().collect();
        assert_eq!(all.first(), Some(&Place::Hearth("/h/models".into())));
        assert_eq!(all.last(), Some(&Place::Folder("/e".into())));
        all[1].path().to_path_buf()
    };
    assert_eq!(places(&[("HOME", "/u")]), Path::new("/u/.cache/huggingface/hub"));
    assert_eq!(places(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/c")]), Path::new("/c/huggingface/hub"));
    assert_eq!(places(&[("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/c")]), Path::new("/hf/hub"));
    assert_eq!(places(&[("HF_HUB_CACHE", "/hub"), ("HF_HOME", "/hf")]), Path::new("/hub"));
    assert_eq!(places(&[("HF_HUB_CACHE", "~/hub"), ("HOME", "/u")]), Path::new("/u/hub"));
    assert_eq!(places(&[("HF_HUB_CACHE", ""), ("HF_HOME", "/hf")]), Path::new("/hf/hub"));
}
