//! A model hub as a client sees it: names of repositories and revisions, what a repository holds, and what can go wrong, each in
//! one sentence for a person.

mod auth;
mod client;
mod headers;
mod info;

use std::time::Duration;

pub use auth::Token;
pub(crate) use client::range;
pub use client::{Hub, HubOptions, Reply};
pub use info::{Checksum, Found, RemoteFile, RepoInfo};

/// The hub that is asked when `HF_ENDPOINT` names no other.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// A repository's name, checked: `org/name`, or `name` for the oldest ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct Repo(String);

/// A branch, tag or commit, checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Revision(String);

/// Why the hub did not give what it was asked for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HubError {
    /// The name cannot be a repository's.
    #[error(
        "{text:?} is not the name of a model on the hub; it has the form org/name, such as mlx-community/SmolLM2-135M-Instruct"
    )]
    BadRepo {
        /// What was given.
        text: String,
    },
    /// The revision cannot be one.
    #[error("{text:?} is not a revision; use a branch, a tag or a commit, such as main")]
    BadRevision {
        /// What was given.
        text: String,
    },
    /// `HF_ENDPOINT` cannot be used.
    #[error("HF_ENDPOINT is {text:?}, which is not an address such as {DEFAULT_ENDPOINT}: {why}")]
    BadEndpoint {
        /// Its value.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The user said that nothing may be fetched.
    #[error("HF_HUB_OFFLINE is set, so nothing is fetched from the hub; unset it to download")]
    Offline,
    /// No answer.
    #[error("cannot reach {host}: {why}; models on this computer work without it")]
    Unreachable {
        /// The host that was asked.
        host: String,
        /// The innermost reason.
        why: String,
    },
    /// The repository is not there, or not for this user.
    #[error("there is no model {repo} at {host}, or it is private; check the name{}", if *.token { ", or use a token that may read it" } else { ", or set HF_TOKEN to a token that may read it" })]
    NoRepo {
        /// The repository.
        repo: String,
        /// The hub.
        host: String,
        /// Whether a valid token was sent.
        token: bool,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo} has no revision {revision}; leave it out for the newest")]
    NoRevision {
        /// The repository.
        repo: String,
        /// What was asked for.
        revision: String,
    },
    /// The repository has no such file.
    #[error("{repo} has no file {file} any more; start the download again")]
    NoFile {
        /// The repository.
        repo: String,
        /// What was asked for.
        file: String,
    },
    /// The terms have to be accepted first.
    #[error("{repo} is gated: accept its terms at {page}{}", if *.token { " with the account of the token in use, then try again" } else { ", then set HF_TOKEN to a token of that account" })]
    Gated {
        /// The repository.
        repo: String,
        /// Where its terms are.
        page: String,
        /// Whether a valid token was sent.
        token: bool,
    },
    /// The hub does not give it to anybody.
    #[error("{repo} is disabled by its hub, so it cannot be downloaded")]
    Disabled {
        /// The repository.
        repo: String,
    },
    /// Too many requests.
    #[error("{host} takes no more requests for now; try again in {} s{}", .after.as_secs().max(1), if *.token { "" } else { ", or set HF_TOKEN for a higher limit" })]
    RateLimited {
        /// The host.
        host: String,
        /// How long it asks to wait.
        after: Duration,
        /// Whether a valid token was sent.
        token: bool,
    },
    /// Any other refusal.
    #[error("{host} answered with status {status}{}", if .why.is_empty() { String::new() } else { format!(": {}", .why) })]
    Refused {
        /// The host.
        host: String,
        /// Its status code.
        status: u16,
        /// Its own words, if it had any.
        why: String,
    },
    /// An answer that is not what a hub gives.
    #[error("{host} gave an answer that a model hub does not give: {why}; is HF_ENDPOINT right?")]
    Answer {
        /// The host.
        host: String,
        /// What is wrong with it.
        why: String,
    },
    /// A redirect that is not followed.
    #[error("{host} sends requests on to {to}, which is not followed: {why}")]
    Redirect {
        /// The host that redirects.
        host: String,
        /// Where to.
        to: String,
        /// Why not.
        why: &'static str,
    },
    /// The connection ended before the file did.
    #[error("the connection to {host} broke off: {why}")]
    Broken {
        /// The host.
        host: String,
        /// The innermost reason.
        why: String,
    },
    /// The connection is silent.
    #[error("{host} sent nothing for {seconds} s")]
    Stalled {
        /// The host.
        host: String,
        /// How long that was waited for.
        seconds: u64,
    },
    /// Nothing in it that MLX could load.
    #[error("{repo} has no weights in safetensors files{}", found.as_ref().map(|f| format!("; it has {f}")).unwrap_or_default())]
    NoWeights {
        /// The repository.
        repo: String,
        /// What it has instead.
        found: Option<String>,
    },
}

impl HubError {
    /// Whether the same request may succeed a little later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::RateLimited { .. } | Self::Broken { .. } | Self::Stalled { .. } => true,
            Self::Refused { status, .. } => *status >= 500 || *status == 408,
            _ => false,
        }
    }

    /// How long the hub asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { after, .. } => Some(*after),
            _ => None,
        }
    }
}

/// Letters, digits, `.`, `_` and `-`, beginning with a letter, a digit or `_`.
fn plain(part: &str, most: usize) -> bool {
    !part.is_empty()
        && part.len() <= most
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
}

impl Repo {
    /// Checks a name. A pasted address of its page is taken too.
    ///
    /// # Errors
    /// [`HubError::BadRepo`].
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let trimmed = text.trim();
        let name = match trimmed.split_once("://") {
            Some(("http" | "https", rest)) => rest.split_once('/').map_or("", |(_, path)| path),
            _ => trimmed,
        };
        let name = name.trim_matches('/');
        let parts: Vec<&str> = name.split('/').collect();
        // The cache's folder names put `--` for `/`, so no name may have it.
        let fits = parts.len() <= 2 && parts.iter().all(|p| plain(p, 96) && !p.contains("--") && !p.ends_with('.'));
        match fits {
            true => Ok(Self(name.to_owned())),
            false => Err(HubError::BadRepo { text: text.to_owned() }),
        }
    }

    /// `org/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its folder's name in a Hugging Face cache: `models--org--name`.
    pub fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }
}

impl Revision {
    /// Checks a branch, tag or commit; branches may have slashes.
    ///
    /// # Errors
    /// [`HubError::BadRevision`].
    pub fn parse(text: &str) -> Result<Self, HubError> {
        match text.len() <= 200 && text.split('/').all(|part| plain(part, 100)) {
            true => Ok(Self(text.to_owned())),
            false => Err(HubError::BadRevision { text: text.to_owned() }),
        }
    }

    /// The newest of the main branch.
    pub fn main() -> Self {
        Self("main".to_owned())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Repo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// `org/name@revision`, or `org/name` for the main branch.
///
/// # Errors
/// [`HubError::BadRepo`] and [`HubError::BadRevision`].
pub fn parse_spec(text: &str) -> Result<(Repo, Revision), HubError> {
    match text.rsplit_once('@') {
        Some((repo, revision)) => Ok((Repo::parse(repo)?, Revision::parse(revision)?)),
        None => Ok((Repo::parse(text)?, Revision::main())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_anything_is_asked_or_written() {
        for good in ["gpt2", "mlx-community/Qwen3-0.6B-4bit", "a/b", "A_1/b.c-d", "_x/y"] {
            assert_eq!(Repo::parse(good).unwrap().as_str(), good);
        }
        assert_eq!(Repo::parse(" https://huggingface.co/org/name/ ").unwrap().as_str(), "org/name");
        assert_eq!(Repo::parse("org/name").unwrap().folder(), "models--org--name");
        let long = "x".repeat(97);
        for bad in [
            "",
            "/",
            "..",
            "../x",
            "a/../b",
            "a/b/c",
            "a/..",
            ".hidden/x",
            "a/-b",
            "a--b/c",
            "a b",
            "a/b\0",
            "ä/b",
            &long,
        ] {
            assert!(matches!(Repo::parse(bad), Err(HubError::BadRepo { .. })), "{bad:?}");
        }
        for good in ["main", "v1.0", "refs/pr/1", "0123456789abcdef0123456789abcdef01234567"] {
            assert_eq!(Revision::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "/main", "a/../b", "..", "-x", "a b", "a/", "a@b"] {
            assert!(matches!(Revision::parse(bad), Err(HubError::BadRevision { .. })), "{bad:?}");
        }
        let (repo, revision) = parse_spec("org/name@refs/pr/2").unwrap();
        assert_eq!((repo.as_str(), revision.as_str()), ("org/name", "refs/pr/2"));
        assert_eq!(parse_spec("org/name").unwrap().1, Revision::main());
    }

    #[test]
    fn what_may_pass_by_itself_is_told_apart() {
        let refused = |status| HubError::Refused { host: "h".into(), status, why: String::new() };
        assert!(refused(503).is_temporary() && refused(500).is_temporary() && !refused(403).is_temporary());
        let limited = HubError::RateLimited { host: "h".into(), after: Duration::from_secs(7), token: false };
        assert_eq!(limited.retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(
            limited.to_string(),
            "h takes no more requests for now; try again in 7 s, or set HF_TOKEN for a higher limit"
        );
        let gated = HubError::Gated { repo: "a/b".into(), page: "https://h/a/b".into(), token: true };
        assert_eq!(
            gated.to_string(),
            "a/b is gated: accept its terms at https://h/a/b with the account of the token in use, then try again"
        );
    }
}
