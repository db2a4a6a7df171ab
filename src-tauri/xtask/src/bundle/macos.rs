//! `Hearth.app` and `Hearth.dmg`. The Metal kernels lie among the resources, where the app looks for them.
//!
//! The environment says by whom it is signed and notarized:
//! - `HEARTH_SIGN_IDENTITY`: `Developer ID Application: …` as the keychain has it; without it the signature is ad hoc, which
//!   runs on this Mac only.
//! - `HEARTH_NOTARY_PROFILE`: the profile that `xcrun notarytool store-credentials` made; without it nothing is notarized.

use super::{APP, COMMAND, place, program, version, write};
use crate::sh;
use crate::workspace::{Profile, Workspace, remove_dir};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who signs, and by which profile it is notarized.
pub struct Signing {
    identity: Option<String>,
    notary: Option<String>,
}

impl Signing {
    /// What the environment says.
    pub fn from_environment() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        Signing { identity: text("HEARTH_SIGN_IDENTITY"), notary: text("HEARTH_NOTARY_PROFILE") }
    }
}

/// Packs, signs and notarizes what is built; the app and the disk image.
pub fn run(ws: &Workspace, profile: Profile, out: &Path, signing: &Signing) -> Result<Vec<PathBuf>> {
    let app = out.join("Hearth.app");
    remove_dir(&app)?;
    let built = program(ws, profile, APP);
    let kernels = kernels(built.parent().context("the program has no folder")?)?;
    assemble(ws, &app, &built, &program(ws, profile, COMMAND), &kernels)?;
    sh::step("Signing", || sign(ws, &app, signing))?;
    let dmg = out.join(format!("Hearth-{}.dmg", version(ws)?));
    sh::step("Packing", || image(&app, out, &dmg))?;
    if signing.identity.is_some() {
        sh::run_quiet(&mut codesign(signing, &dmg))?;
    }
    if let Some(profile) = &signing.notary {
        if signing.identity.is_none() {
            bail!("HEARTH_NOTARY_PROFILE is set, and only what HEARTH_SIGN_IDENTITY signs can be notarized");
        }
        sh::step("Notarizing (Apple takes some minutes)", || notarize(profile, &app, &dmg))?;
    }
    Ok(vec![app, dmg])
}

/// Puts the bundle together.
fn assemble(ws: &Workspace, app: &Path, desktop: &Path, command: &Path, kernels: &Path) -> Result<()> {
    let contents = app.join("Contents");
    place(desktop, &contents.join("MacOS").join(APP), 0o755)?;
    place(command, &contents.join("MacOS").join(COMMAND), 0o755)?;
    place(kernels, &contents.join("Resources/mlx.metallib"), 0o644)?;
    place(&ws.root.join("icons/icon.icns"), &contents.join("Resources/icon.icns"), 0o644)?;
    let source = ws.root.join("src-tauri/Info.plist");
    let plist = fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
    write(&contents.join("Info.plist"), &plist.replace("VERSION", &version(ws)?))?;
    write(&contents.join("PkgInfo"), "APPL????")
}

/// The newest `mlx.metallib` that mlx-sys's build left beside these programs.
fn kernels(built: &Path) -> Result<PathBuf> {
    let mut found = Vec::new();
    let build = built.join("build");
    for entry in fs::read_dir(&build).with_context(|| format!("cannot read {}", build.display()))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("mlx-sys-") {
            find(&entry.path(), "mlx.metallib", &mut found)?;
        }
    }
    let newest = found.into_iter().max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    newest.with_context(|| format!("there is no mlx.metallib below {}: was it built without Metal?", build.display()))
}

fn find(folder: &Path, name: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find(&path, name, found)?;
        } else if entry.file_name().to_string_lossy() == name {
            found.push(path);
        }
    }
    Ok(())
}

/// From the inside out: a signature covers what is in it.
fn sign(ws: &Workspace, app: &Path, signing: &Signing) -> Result<()> {
    let entitlements = ws.root.join("src-tauri/entitlements.plist");
    for part in [app.join("Contents/MacOS").join(COMMAND), app.to_owned()] {
        let mut sign = codesign(signing, &part);
        sign.arg("--entitlements").arg(&entitlements);
        sh::run_quiet(&mut sign)?;
    }
    sh::run_quiet(Command::new("codesign").args(["--verify", "--deep", "--strict"]).arg(app)).map(|_| ())
}

fn codesign(signing: &Signing, what: &Path) -> Command {
    let mut sign = Command::new("codesign");
    sign.args(["--force", "--options", "runtime"]);
    match &signing.identity {
        // A time from Apple keeps the signature valid after the certificate has ended.
        Some(identity) => sign.args(["--timestamp", "--sign", identity]),
        None => sign.args(["--sign", "-"]),
    };
    sign.arg(what);
    sign
}

/// A disk image with the app and the way to where apps belong.
fn image(app: &Path, out: &Path, dmg: &Path) -> Result<()> {
    let folder = out.join("dmg");
    remove_dir(&folder)?;
    fs::create_dir_all(&folder)?;
    sh::run_quiet(Command::new("ditto").arg(app).arg(folder.join("Hearth.app")))?;
    std::os::unix::fs::symlink("/Applications", folder.join("Applications"))?;
    let mut make = Command::new("hdiutil");
    make.args(["create", "-volname", "Hearth", "-ov", "-format", "UDZO", "-srcfolder"]).arg(&folder).arg(dmg);
    sh::run_quiet(&mut make)?;
    remove_dir(&folder)
}

fn notarize(profile: &str, app: &Path, dmg: &Path) -> Result<()> {
    let mut submit = Command::new("xcrun");
    submit.args(["notarytool", "submit", "--wait", "--keychain-profile", profile]).arg(dmg);
    let said = sh::read(&mut submit)?;
    if !said.contains("status: Accepted") {
        bail!("Apple did not accept it:\n{said}");
    }
    for part in [dmg, app] {
        sh::run_quiet(Command::new("xcrun").args(["stapler", "staple"]).arg(part))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_has_everything_in_its_place() {
        let dir = std::env::temp_dir().join(format!("xtask-bundle-{}", std::process::id()));
        remove_dir(&dir).unwrap();
        fs::create_dir_all(dir.join("release/build/mlx-sys-0a/out/build/lib")).unwrap();
        for name in ["hearth-desktop", "hearth", "build/mlx-sys-0a/out/build/lib/mlx.metallib"] {
            fs::write(dir.join("release").join(name), name).unwrap();
        }
        let ws = Workspace::find().unwrap();
        let (built, app) = (dir.join("release"), dir.join("Hearth.app"));
        let kernels = kernels(&built).unwrap();
        assemble(&ws, &app, &built.join("hearth-desktop"), &built.join("hearth"), &kernels).unwrap();
        for name in ["MacOS/hearth-desktop", "MacOS/hearth", "Resources/mlx.metallib", "Resources/icon.icns", "PkgInfo"]
        {
            assert!(app.join("Contents").join(name).is_file(), "{name}");
        }
        let plist = fs::read_to_string(app.join("Contents/Info.plist")).unwrap();
        assert!(plist.contains(&format!("<string>{}</string>", version(&ws).unwrap())), "{plist}");
        assert!(!plist.contains("VERSION") && plist.contains("<key>LSUIElement</key>"), "{plist}");
        remove_dir(&dir).unwrap();
    }

    #[test]
    fn without_an_identity_the_signature_is_ad_hoc() {
        let args = |signing: &Signing| {
            let args: Vec<String> =
                codesign(signing, Path::new("x")).get_args().map(|a| a.to_string_lossy().into_owned()).collect();
            args.join(" ")
        };
        let none = Signing { identity: None, notary: None };
        assert_eq!(args(&none), "--force --options runtime --sign - x");
        let some = Signing { identity: Some("Developer ID Application: A (B)".into()), notary: None };
        assert!(args(&some).contains("--timestamp --sign Developer ID Application: A (B) x"));
    }
}
