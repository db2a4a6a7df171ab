//! The system packages a build on Debian or Ubuntu needs.

use crate::sh;
use anyhow::{Context, Result, bail};
use std::process::Command;

/// Compilers, libclang for the bindings, fmt for mlx-c, and the BLAS that takes the place of MLX's slow one.
const PACKAGES: &[&str] = &[
    "g++",
    "cmake",
    "ninja-build",
    "pkg-config",
    "clang",
    "libclang-dev",
    "libfmt-dev",
    "libopenblas0-pthread",
    "libopenblas-pthread-dev",
];

/// Installs those that a build needs and that are missing.
///
/// # Errors
/// As [`install_missing`].
pub fn install() -> Result<()> {
    install_missing(PACKAGES)
}

/// Installs those of these packages that are missing.
///
/// # Errors
/// When this is not Debian, or packages are missing and this user may not install them: names the exact command.
pub fn install_missing(packages: &[&'static str]) -> Result<()> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"]).args(packages);
    // It exits with 1 when a package is unknown, and still lists the others.
    let listed = query.output().context(
        "dpkg-query was not found: this set-up installs Debian and Ubuntu packages only, and needs \
         libopenblas from them",
    )?;
    let missing = missing(packages, &String::from_utf8_lossy(&listed.stdout));
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let by_hand = format!("sudo apt-get install -y --no-install-recommends {list}");
    let root = sh::read(Command::new("id").arg("-u"))? == "0";
    let apt = |args: &[&str]| {
        let mut cmd = if root {
            Command::new("apt-get")
        } else {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
            sudo
        };
        cmd.env("DEBIAN_FRONTEND", "noninteractive").args(args);
        cmd
    };
    if !root && !sh::succeeds(Command::new("sudo").args(["-n", "true"])) {
        bail!("system packages are missing and this user may not install them; run\n\n    {by_hand}\n\nand try again");
    }
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(&missing);
    sh::step(&format!("Installing {list}"), || {
        // A package list that is there and fresh enough saves half a minute; a stale one fails, and then it is fetched.
        if sh::run_quiet(&mut apt(&args)).is_ok() {
            return Ok(());
        }
        sh::run_quiet(&mut apt(&["update", "-qq"]))?;
        sh::run_quiet(&mut apt(&args)).map(|_| ())
    })
    .with_context(|| format!("installing system packages failed; try by hand: {by_hand}"))
}

/// The wanted packages that dpkg-query's answer does not call installed.
fn missing(packages: &[&'static str], listed: &str) -> Vec<&'static str> {
    let installed: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    packages.iter().copied().filter(|name| !installed.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let all: String = PACKAGES.iter().map(|p| format!("{p} installed\n")).collect();
        assert!(missing(PACKAGES, &all).is_empty());
        let gone = all.replace("cmake installed", "cmake config-files").replace("clang installed\n", "");
        // Two packages end in "clang installed"-like names: only exact names count.
        let gone = missing(PACKAGES, &gone);
        assert!(gone.contains(&"cmake") && gone.contains(&"clang"));
    }
}
