//! The `hearth` command that comes with the app, and the link by which terminals find it.

use hearth_server::CommandStatus;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The command's file name.
const NAME: &str = "hearth";

/// The command that lies beside the app's program; `None` where there is none, as after `cargo run`.
fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.with_file_name(NAME)).filter(|file| file.is_file())
}

/// Where the link belongs: a folder that terminals look in.
fn link() -> Option<PathBuf> {
    if cfg!(target_os = "macos") {
        return Some(Path::new("/usr/local/bin").join(NAME));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute())?;
    Some(home.join(".local/bin").join(NAME))
}

/// Whether terminals find the command, and the link that would make them; `None` where there is no command.
pub fn status() -> Option<CommandStatus> {
    status_of(&beside()?, &link()?, std::env::var_os("PATH").as_deref())
}

fn status_of(command: &Path, link: &Path, path: Option<&OsStr>) -> Option<CommandStatus> {
    let command = fs::canonicalize(command).ok()?;
    // An app on macOS has a shorter PATH than a terminal, so the link itself counts as well.
    let known = path.into_iter().flat_map(std::env::split_paths).map(|folder| folder.join(NAME));
    let installed = known.chain([link.to_owned()]).any(|file| fs::canonicalize(file).is_ok_and(|file| file == command));
    Some(CommandStatus { installed, link: link.display().to_string() })
}

/// Makes the link.
///
/// # Errors
/// A sentence: what is in the way.
pub fn install() -> Result<(), String> {
    let command = beside().ok_or("this build of Hearth has no `hearth` command beside it")?;
    let link = link().ok_or("this user has no home folder")?;
    // A disk image, or the place that macOS runs a downloaded app from, is not there tomorrow.
    let text = command.display().to_string();
    if cfg!(target_os = "macos") && (text.starts_with("/Volumes/") || text.contains("/AppTranslocation/")) {
        return Err("Hearth runs from its disk image; move it to Applications and open it there first".into());
    }
    match make(&command, &link) {
        Err(error) if cfg!(target_os = "macos") && error.kind() == std::io::ErrorKind::PermissionDenied => {
            as_administrator(&command, &link)
        }
        done => done.map_err(|error| format!("{}: {error}", link.display())),
    }
}

/// Puts a link where there is none, or another link.
fn make(command: &Path, link: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(link) {
        Ok(there) if there.is_symlink() => fs::remove_file(link)?,
        Ok(_) => return Err(std::io::Error::other("another program is there; move it away first")),
        Err(_) => {}
    }
    if let Some(folder) = link.parent() {
        fs::create_dir_all(folder)?;
    }
    std::os::unix::fs::symlink(command, link)
}

/// Lets macOS ask for an administrator.
fn as_administrator(command: &Path, link: &Path) -> Result<(), String> {
    let output = std::process::Command::new("osascript").args(["-e", &script(command, link)]).output();
    let output = output.map_err(|error| format!("osascript: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{} was not made: {}", link.display(), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// AppleScript that makes the link with an administrator's rights.
fn script(command: &Path, link: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let folder = link.parent().unwrap_or(Path::new("/"));
    let line = format!("mkdir -p {} && ln -sf {} {}", quoted(folder), quoted(command), quoted(link));
    let line = line.replace('\\', r"\\").replace('"', "\\\"");
    format!("do shell script \"{line}\" with administrator privileges")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_made_renewed_and_never_takes_a_programs_place() {
        let dir = tempfile::tempdir().unwrap();
        let command = dir.path().join("app/hearth");
        fs::create_dir_all(command.parent().unwrap()).unwrap();
        fs::write(&command, "").unwrap();
        let link = dir.path().join("bin/hearth");
        let installed = |path: Option<&OsStr>| status_of(&command, &link, path).unwrap().installed;
        assert!(!installed(None));
        assert!(installed(Some(command.parent().unwrap().as_os_str())), "it is on the PATH as it is");
        make(&command, &link).unwrap();
        make(&command, &link).unwrap();
        assert!(installed(None));
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(dir.path().join("old"), &link).unwrap();
        assert!(!installed(None), "a link to what is gone");
        make(&command, &link).unwrap();
        assert!(installed(None));
        fs::remove_file(&link).unwrap();
        fs::write(&link, "mine").unwrap();
        assert!(make(&command, &link).unwrap_err().to_string().contains("another program is there"));
        assert_eq!(fs::read_to_string(&link).unwrap(), "mine");
        assert_eq!(status_of(&dir.path().join("none"), &link, None), None);
    }

    #[test]
    fn odd_paths_reach_the_shell_whole() {
        let said = script(Path::new("/My \"Apps\"/it's/hearth"), Path::new("/usr/local/bin/hearth"));
        assert_eq!(
            said,
            r#"do shell script "mkdir -p '/usr/local/bin' && ln -sf '/My \"Apps\"/it'\\''s/hearth' '/usr/local/bin/hearth'" with administrator privileges"#
        );
    }
}
