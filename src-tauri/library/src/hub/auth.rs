//! The user's token for the hub: where it comes from, and that it never shows.

use hearth_core::files::read_text;
use std::path::PathBuf;

use crate::home::Env;

/// A token and where it was found. Its value is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub(super) value: String,
    /// `HF_TOKEN`, or the file's path.
    pub from: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token from {}", self.from)
    }
}

impl Token {
    /// A token with these words for where it is from; `None` if it cannot be one.
    pub fn new(value: &str, from: impl Into<String>) -> Option<Self> {
        let value = value.trim();
        let fits = !value.is_empty() && value.len() < 4096 && value.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self { value: value.to_owned(), from: from.into() })
    }

    /// The user's token, as the hub's own clients find it: `HF_TOKEN`, then the file that a log-in leaves
    /// (`HF_TOKEN_PATH`, `HF_HOME/token`, `~/.cache/huggingface/token`).
    pub fn find(env: Env<'_>) -> Option<Self> {
        let set = |name: &str| env(name).filter(|v| !v.is_empty());
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(token) = set(name).and_then(|v| Self::new(&v.to_string_lossy(), name)) {
                return Some(token);
            }
        }
        if set("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|v| is_yes(&v.to_string_lossy())) {
            return None;
        }
        let path = match set("HF_TOKEN_PATH") {
            Some(path) => PathBuf::from(path),
            None => crate::scan::hf_home(env)?.join("token"),
        };
        Self::new(&read_text(&path).ok()?, path.display().to_string())
    }
}

/// Whether a switch in the environment is on.
pub(super) fn is_yes(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::ffi::OsString;

    #[test]
    fn the_environment_comes_before_the_file_and_nothing_shows_the_value() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let mut vars: HashMap<&str, OsString> = HashMap::from([("HF_HOME", dir.path().into())]);
        let find = |vars: &HashMap<&str, OsString>| Token::find(&|name| vars.get(name).cloned());
        let token = find(&vars).unwrap();
        assert_eq!(token.value, "hf_file");
        assert!(token.from.ends_with("token") && !format!("{token:?}").contains("hf_file"));
        vars.insert("HF_TOKEN", " hf_env ".into());
        assert_eq!(find(&vars).unwrap().value, "hf_env");
        vars.insert("HF_TOKEN", "not\na token".into());
        assert_eq!(find(&vars).unwrap().value, "hf_file");
        vars.insert("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1".into());
        assert_eq!(find(&vars), None);
    }
}
