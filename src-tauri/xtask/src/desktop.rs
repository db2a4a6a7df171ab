//! What the app needs of a machine beyond the headless build, and its icons made from their drawings.

use crate::setup;
use crate::sh;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// WebKit, the tray and what renders SVG: to build the app on Debian.
const BUILD: &[&str] = &["libwebkit2gtk-4.1-dev", "libayatana-appindicator3-dev", "librsvg2-dev", "librsvg2-bin"];

/// A screen, a window manager, a session bus, and hands: to test it.
const TEST: &[&str] = &["xvfb", "openbox", "dbus", "wmctrl", "xclip", "webkit2gtk-driver"];

/// The app icon's sizes as PNG.
const PNGS: &[(u32, &str)] = &[(32, "32x32.png"), (128, "128x128.png"), (256, "128x128@2x.png"), (512, "icon.png")];

/// The sizes inside an ICNS file by their four-letter names.
const ICNS: &[(u32, &[u8; 4])] = &[
    (16, b"icp4"),
    (32, b"icp5"),
    (32, b"ic11"),
    (64, b"ic12"),
    (128, b"ic07"),
    (256, b"ic13"),
    (256, b"ic08"),
    (512, b"ic14"),
    (512, b"ic09"),
    (1024, b"ic10"),
];

/// The pictures in the menu bar, at twice their 22 points.
const TRAY: &[&str] = &["idle", "loading", "generating", "pressure"];

/// Installs what a build of the app needs. On a Mac that is nothing more than for the headless build.
///
/// # Errors
/// When something is missing and cannot be installed.
pub fn ready_to_build() -> Result<()> {
    if cfg!(target_os = "macos") { Ok(()) } else { setup::install(BUILD) }
}

/// Installs what the app's own tests need.
///
/// # Errors
/// As [`ready_to_build`].
pub fn ready_to_test() -> Result<()> {
    if cfg!(target_os = "macos") { Ok(()) } else { setup::install(TEST) }
}

/// `cargo xtask icons`: makes every picture in icons/ anew from its SVG.
///
/// # Errors
/// When rsvg-convert is missing or a file cannot be written.
pub fn icons(ws: &Workspace) -> Result<()> {
    if cfg!(target_os = "linux") {
        setup::install(BUILD)?;
    }
    let icons = ws.root.join("icons");
    let app = icons.join("app.svg");
    for (size, name) in PNGS {
        fs::write(icons.join(name), png(&app, *size)?)?;
    }
    let mut parts = Vec::new();
    for (size, kind) in ICNS {
        parts.push((*kind, png(&app, *size)?));
    }
    fs::write(icons.join("icon.icns"), icns(&parts)?)?;
    for name in TRAY {
        let tray = icons.join("tray");
        fs::write(tray.join(format!("{name}.png")), png(&tray.join(format!("{name}.svg")), 44)?)?;
    }
    Ok(())
}

/// A drawing as a PNG of this many pixels in both directions.
fn png(svg: &Path, size: u32) -> Result<Vec<u8>> {
    let size = size.to_string();
    let mut convert = Command::new("rsvg-convert");
    convert.args(["--width", &size, "--height", &size]).arg(svg);
    let out = sh::run_quiet(&mut convert).context("rsvg-convert draws the icons; on a Mac: brew install librsvg")?;
    if !out.stdout.starts_with(b"\x89PNG") {
        bail!("rsvg-convert made no PNG of {}", svg.display());
    }
    Ok(out.stdout)
}

/// An ICNS file: its name and length, then each picture with its own.
fn icns(parts: &[(&[u8; 4], Vec<u8>)]) -> Result<Vec<u8>> {
    let length = |bytes: usize| u32::try_from(bytes + 8).context("an icon over 4 GB").map(u32::to_be_bytes);
    let mut body = Vec::new();
    for (kind, png) in parts {
        body.extend_from_slice(*kind);
        body.extend_from_slice(&length(png.len())?);
        body.extend_from_slice(png);
    }
    let mut file = b"icns".to_vec();
    file.extend_from_slice(&length(body.len())?);
    file.extend(body);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_icns_file_names_and_measures_its_parts() {
        let file = icns(&[(b"ic07", vec![1, 2, 3]), (b"ic10", vec![4])]).unwrap();
        assert_eq!(file, b"icns\0\0\0\x1cic07\0\0\0\x0b\x01\x02\x03ic10\0\0\0\x09\x04");
    }
}
