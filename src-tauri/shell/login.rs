//! Starting at login: `SMAppService` on macOS, an autostart file of the desktop on Linux. What the system says is the
//! truth; the setting only asks for it.

/// Why the login item could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The system refused.
    #[error("Hearth cannot be made to start at login: {0}")]
    Refused(String),
}

#[cfg(target_os = "macos")]
mod system {
    //! `SMAppService`: the user sees the item in System Settings, and may turn it off there.

    use super::LoginError;
    use objc2_service_management::{SMAppService, SMAppServiceStatus};

    pub fn is_on() -> Option<bool> {
        // SAFETY: both calls take nothing and may be made from any thread.
        let status = unsafe { SMAppService::mainAppService().status() };
        match status {
            SMAppServiceStatus::Enabled => Some(true),
            SMAppServiceStatus::NotRegistered | SMAppServiceStatus::RequiresApproval => Some(false),
            // Not run from a bundle, as with `cargo run`: there is nothing that could be started.
            _ => None,
        }
    }

    pub fn set(on: bool) -> Result<(), LoginError> {
        // SAFETY: as above; an error comes back as a value.
        let done = unsafe {
            let service = SMAppService::mainAppService();
            if on { service.registerAndReturnError() } else { service.unregisterAndReturnError() }
        };
        done.map_err(|error| {
            LoginError::Refused(format!(
                "{}; allow it in System Settings, General, Login Items",
                error.localizedDescription()
            ))
        })
    }
}

#[cfg(not(target_os = "macos"))]
mod system {
    //! `hearth.desktop` in the autostart folder, as the XDG specification has it.

    use super::LoginError;
    use std::fs;
    use std::path::{Path, PathBuf};

    const FILE: &str = "hearth.desktop";

    pub fn is_on() -> Option<bool> {
        folder().map(|folder| is_on_in(&folder))
    }

    pub fn set(on: bool) -> Result<(), LoginError> {
        let folder = folder().ok_or_else(|| LoginError::Refused("this user has no home folder".into()))?;
        let program = std::env::current_exe().map_err(|e| LoginError::Refused(e.to_string()))?;
        set_in(&folder, &program, on)
    }

    fn folder() -> Option<PathBuf> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
        Some(config.join("autostart"))
    }

    fn is_on_in(folder: &Path) -> bool {
        // Desktops turn an item off by a line in it, rather than by removing it.
        fs::read_to_string(folder.join(FILE)).is_ok_and(|text| !text.lines().any(|line| line.trim() == "Hidden=true"))
    }

    fn set_in(folder: &Path, program: &Path, on: bool) -> Result<(), LoginError> {
        let file = folder.join(FILE);
        let done = if on {
            fs::create_dir_all(folder).and_then(|()| fs::write(&file, entry(program)))
        } else {
            match fs::remove_file(&file) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            }
        };
        done.map_err(|e| LoginError::Refused(format!("{}: {e}", file.display())))
    }

    fn entry(program: &Path) -> String {
        // In a desktop entry's Exec a quoted argument escapes these, and the backslash once more as a string.
        let mut quoted = String::new();
        for c in program.display().to_string().chars() {
            match c {
                '"' | '`' | '$' => quoted.extend(['\\', '\\', c]),
                '\\' => quoted.push_str(r"\\\\"),
                '%' => quoted.push_str("%%"),
                _ => quoted.push(c),
            }
        }
        format!("[Desktop Entry]\nType=Application\nName=Hearth\nExec=\"{quoted}\"\nTerminal=false\n")
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn an_autostart_file_comes_and_goes() {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("config/autostart");
            assert!(!is_on_in(&folder));
            set_in(&folder, Path::new("/opt/my apps/hearth-desktop"), true).unwrap();
            assert!(is_on_in(&folder));
            let text = fs::read_to_string(folder.join(FILE)).unwrap();
            assert!(text.contains("\nExec=\"/opt/my apps/hearth-desktop\"\n"), "{text}");
            fs::write(folder.join(FILE), format!("{text}Hidden=true\n")).unwrap();
            assert!(!is_on_in(&folder), "the desktop turned it off");
            set_in(&folder, Path::new("/x"), false).unwrap();
            set_in(&folder, Path::new("/x"), false).unwrap();
            assert!(!folder.join(FILE).exists());
        }

        #[test]
        fn odd_paths_are_quoted() {
            assert!(entry(Path::new("/a\"b$c%d")).contains(r#"Exec="/a\\"b\\$c%%d""#));
        }
    }
}

/// Whether Hearth starts at login; `None` where that cannot be had.
pub fn is_on() -> Option<bool> {
    system::is_on()
}

/// Turns it on or off.
///
/// # Errors
/// [`LoginError::Refused`] with what the system says.
pub fn set(on: bool) -> Result<(), LoginError> {
    system::set(on)
}
