//! The Debian package: both programs, MLX beside them, a menu entry and icons.

use super::{APP, COMMAND, place, program, version, write};
use crate::workspace::{Profile, Workspace, remove_dir};
use crate::{setup, sh};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where MLX's libraries are in the package; they find each other by the layout of the wheel.
const LIBRARIES: &str = "usr/lib/hearth";

/// What the programs link that is not in the package.
const DEPENDS: &str = "libc6 (>= 2.36), libstdc++6, libgtk-3-0, libwebkit2gtk-4.1-0, libayatana-appindicator3-1, \
                       libopenblas0-pthread";

const ENTRY: &str = "[Desktop Entry]
Type=Application
Name=Hearth
Comment=Runs language models on this computer
Exec=hearth-desktop
Icon=hearth
Terminal=false
Categories=Development;
StartupNotify=false
";

/// Packs what is built; the package's file.
pub fn run(ws: &Workspace, profile: Profile, out: &Path) -> Result<Vec<PathBuf>> {
    setup::install(&["patchelf", "binutils"])?;
    let tree = out.join("deb");
    remove_dir(&tree)?;
    for name in [APP, COMMAND] {
        let to = tree.join("usr/bin").join(name);
        place(&program(ws, profile, name), &to, 0o755)?;
        sh::run_quiet(Command::new("strip").arg("--strip-unneeded").arg(&to))?;
        // What the build wrote there is a folder of the machine that built it.
        sh::run_quiet(Command::new("patchelf").args(["--set-rpath", "$ORIGIN/../lib/hearth/mlx/lib"]).arg(&to))?;
    }
    libraries(&setup::linux(ws)?.dir.join("wheel"), &tree.join(LIBRARIES))?;
    write(&tree.join("usr/share/applications/hearth.desktop"), ENTRY)?;
    for (size, name) in [("32x32", "32x32"), ("128x128", "128x128"), ("256x256", "128x128@2x"), ("512x512", "icon")] {
        let icon = tree.join("usr/share/icons/hicolor").join(size).join("apps/hearth.png");
        place(&ws.root.join("icons").join(format!("{name}.png")), &icon, 0o644)?;
    }
    let licence = tree.join("usr/share/doc/hearth/copyright");
    place(&ws.root.join("LICENSE"), &licence, 0o644)?;
    let version = version(ws)?;
    write(&tree.join("DEBIAN/control"), &control(&version, size(&tree)? / 1024))?;
    let deb = out.join(format!("hearth_{version}_amd64.deb"));
    sh::step("Packing", || {
        sh::run_quiet(Command::new("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]).arg(&tree).arg(&deb))
    })?;
    remove_dir(&tree)?;
    Ok(vec![deb])
}

/// MLX and what its wheel brings along.
fn libraries(wheel: &Path, to: &Path) -> Result<()> {
    for folder in ["mlx/lib", "mlx_cpu.libs"] {
        let from = wheel.join(folder);
        for entry in fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))? {
            let path = entry?.path();
            let name = path.file_name().context("a file without a name")?;
            if name.to_string_lossy().contains(".so") {
                place(&path, &to.join(folder).join(name), 0o644)?;
            }
        }
    }
    Ok(())
}

/// Bytes of all files of a tree.
fn size(tree: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

fn control(version: &str, kib: u64) -> String {
    format!(
        "Package: hearth\nVersion: {version}\nArchitecture: amd64\nMaintainer: The Hearth contributors <hearth@localhost>\n\
         Installed-Size: {kib}\nDepends: {DEPENDS}\nSection: utils\nPriority: optional\n\
         Description: runs language models on this computer\n \
         Hearth keeps language models in memory with MLX and serves them to editors, agents\n \
         and scripts over an OpenAI-compatible API on localhost. This package has the app\n \
         with its icon in the panel, and the command `hearth`.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_has_one_field_a_line_and_an_indented_text() {
        let text = control("1.2.3", 4);
        for line in text.lines() {
            assert!(
                line.starts_with(' ') || line.split_once(": ").is_some_and(|(name, _)| !name.contains(' ')),
                "{line}"
            );
        }
        assert!(text.contains("\nVersion: 1.2.3\n") && text.contains("\nInstalled-Size: 4\n"), "{text}");
        assert!(text.contains("libwebkit2gtk-4.1-0, libayatana"), "{text}");
    }
}
