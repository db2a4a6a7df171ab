//! What a repository holds, and what the hub finds for a text.

use reqwest::Method;
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{About, Hub, range};
use super::{HubError, Reply, Repo, Revision};

/// How a file is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checksum {
    /// SHA-256 of the content, in hex: files in large-file storage.
    Sha256(String),
    /// Git's own hash of the content, in hex: all other files.
    Git(String),
}

impl Checksum {
    /// The hash in hex, which is also the file's name among the blobs of a cache.
    pub fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::Git(hex) => hex,
        }
    }

    /// The checksum that an ETag is, by its length.
    fn of_etag(etag: &str) -> Option<Self> {
        let hex = etag.trim().trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
        match hex.len() {
            _ if !hex.bytes().all(|b| b.is_ascii_hexdigit()) => None,
            64 => Some(Self::Sha256(hex)),
            40 => Some(Self::Git(hex)),
            _ => None,
        }
    }
}

/// One file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the repository, checked to stay inside.
    pub path: String,
    /// Its length in bytes, if the hub said it.
    pub size: Option<u64>,
    /// Its checksum, if the hub said it.
    pub checksum: Option<Checksum>,
}

/// A repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoInfo {
    /// What it is called now; another name than the one asked for if it was renamed.
    pub repo: Repo,
    /// The commit.
    pub commit: String,
    /// Whether its files need accepted terms.
    pub gated: bool,
    /// Its files.
    pub files: Vec<RemoteFile>,
}

/// One line of a search's result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The repository.
    pub repo: String,
    /// How often it was downloaded in the last 30 days.
    pub downloads: u64,
    /// How many people like it.
    pub likes: u64,
    /// When it last changed, as the hub writes it.
    pub updated: Option<String>,
    /// Whether its files need accepted terms.
    pub gated: bool,
}

#[derive(Deserialize)]
struct Answer {
    id: String,
    sha: String,
    #[serde(default)]
    gated: Value,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Hub {
    /// The files of `repo` at `revision`.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn info(&self, repo: &Repo, revision: &Revision) -> Result<RepoInfo, HubError> {
        let escaped = escaped(revision.as_str(), true);
        let url = self.url(&format!("api/models/{repo}/revision/{escaped}?blobs=true"))?;
        let (bytes, at) = self.ask(url, About::Repo(repo, revision.as_str())).await?;
        let wrong = |why: String| HubError::Answer { host: super::client::host(&at), why };
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        if answer.sha.len() != 40 || !answer.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong("the commit is not one".to_owned()));
        }
        Ok(RepoInfo {
            repo: Repo::parse(&answer.id).map_err(|e| wrong(e.to_string()))?,
            commit: answer.sha,
            gated: is_gated(&answer.gated),
            files: answer.siblings.into_iter().filter_map(Sibling::file).collect(),
        })
    }

    /// The address of a file at the hub.
    ///
    /// # Errors
    /// [`HubError::Answer`] for a path that no URL can hold.
    pub fn file_url(&self, repo: &Repo, commit: &str, path: &str) -> Result<Url, HubError> {
        self.url(&format!("{repo}/resolve/{commit}/{}", escaped(path, false)))
    }

    /// Length and checksum of a file whose listing does not say them, as mirrors leave them out.
    ///
    /// # Errors
    /// [`HubError`]; [`HubError::Answer`] where they cannot be had at all.
    pub async fn describe(&self, repo: &Repo, commit: &str, path: &str) -> Result<(u64, Checksum), HubError> {
        let url = self.file_url(repo, commit, path)?;
        let reply = self.open(Method::HEAD, url, HeaderMap::new(), repo, path).await?;
        // What the hub itself says is of the file; storage behind it may have tags of its own.
        let own = |name: &str| {
            let first = reply.first.as_ref().and_then(|h| h.get(name)).and_then(|v| v.to_str().ok());
            first.or_else(|| reply.header(name)).map(str::to_owned)
        };
        let size = own("x-linked-size").or_else(|| reply.header("content-length").map(str::to_owned));
        let size = size.and_then(|s| s.parse().ok());
        let checksum = own("x-linked-etag").or_else(|| own("etag")).and_then(|e| Checksum::of_etag(&e));
        match (size, checksum) {
            (Some(size), Some(checksum)) => Ok((size, checksum)),
            _ => Err(HubError::Answer { host: self.host(), why: format!("it says no length or checksum of {path}") }),
        }
    }

    /// Bytes `start..end` of a small part of a file.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn bytes(
        &self,
        repo: &Repo,
        commit: &str,
        path: &str,
        start: u64,
        end: u64,
    ) -> Result<Vec<u8>, HubError> {
        let url = self.file_url(repo, commit, path)?;
        let mut reply: Reply = self.open(Method::GET, url, range(start, end), repo, path).await?;
        // Whoever ignores the range sends the file from its start.
        let skip = if reply.response.status() == reqwest::StatusCode::PARTIAL_CONTENT { 0 } else { start };
        let wanted = (skip + end - start) as usize;
        let mut all: Vec<u8> = Vec::new();
        while all.len() < wanted {
            match reply.piece(self.silence()).await? {
                Some(piece) => all.extend_from_slice(&piece),
                None => break,
            }
        }
        all.truncate(wanted);
        Ok(all.split_off((skip as usize).min(all.len())))
    }

    /// Models for MLX that fit a text, the most downloaded first.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn search(&self, text: &str, limit: usize) -> Result<Vec<Found>, HubError> {
        let mut url = self.url("api/models")?;
        url.query_pairs_mut()
            .append_pair("search", text)
            .append_pair("filter", "mlx")
            .append_pair("sort", "downloads")
            .append_pair("direction", "-1")
            .append_pair("limit", &limit.to_string());
        for field in ["downloads", "likes", "lastModified", "gated"] {
            url.query_pairs_mut().append_pair("expand[]", field);
        }
        let (bytes, at) = self.ask(url, About::Search).await?;
        let wrong = |why: String| HubError::Answer { host: super::client::host(&at), why };
        let list: Vec<Value> = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        let found = |v: &Value| {
            let number = |key: &str| v[key].as_u64().unwrap_or(0);
            let repo = v["id"].as_str().or_else(|| v["modelId"].as_str())?;
            Some(Found {
                // A name that could not be pulled is of no use.
                repo: Repo::parse(repo).ok()?.as_str().to_owned(),
                downloads: number("downloads"),
                likes: number("likes"),
                updated: v["lastModified"].as_str().map(str::to_owned),
                gated: is_gated(&v["gated"]),
            })
        };
        Ok(list.iter().filter_map(found).take(limit).collect())
    }
}

impl Sibling {
    /// The file; `None` for a path that would leave its folder.
    fn file(self) -> Option<RemoteFile> {
        let inside = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\0']);
        if !self.rfilename.split('/').all(inside) || self.rfilename.len() > 1000 {
            return None;
        }
        let hex = |text: String, length: usize| {
            let text = text.to_ascii_lowercase();
            (text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit())).then_some(text)
        };
        let (size, checksum) = match self.lfs {
            Some(lfs) => (lfs.size.or(self.size), lfs.sha256.and_then(|s| hex(s, 64)).map(Checksum::Sha256)),
            None => (self.size, self.blob_id.and_then(|s| hex(s, 40)).map(Checksum::Git)),
        };
        Some(RemoteFile { path: self.rfilename, size, checksum })
    }
}

/// `gated` is false, or says who decides.
fn is_gated(value: &Value) -> bool {
    match value {
        Value::Bool(yes) => *yes,
        Value::String(_) => true,
        _ => false,
    }
}

/// A path as it stands in a URL; a revision's slashes are escaped too.
fn escaped(text: &str, slashes: bool) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');
    const PART: &AsciiSet = &PATH.add(b'/');
    utf8_percent_encode(text, if slashes { PART } else { PATH }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_read_and_paths_that_leave_the_folder_are_dropped() {
        let read = |text: &str| serde_json::from_str::<Sibling>(text).unwrap().file();
        let (git, sha) = ("a".repeat(40), "B".repeat(64));
        let plain = read(&format!(r#"{{"rfilename":"config.json","size":7,"blobId":"{git}"}}"#)).unwrap();
        assert_eq!((plain.size, plain.checksum), (Some(7), Some(Checksum::Git(git.clone()))));
        let large = format!(
            r#"{{"rfilename":"a/m.safetensors","size":9,"blobId":"{git}","lfs":{{"sha256":"{sha}","size":9,"pointerSize":3}}}}"#
        );
        assert_eq!(read(&large).unwrap().checksum, Some(Checksum::Sha256("b".repeat(64))));
        assert_eq!(read(r#"{"rfilename":"x.json"}"#).unwrap().checksum, None);
        for bad in ["../x", "/etc/passwd", "a//b", "a/./b", "a/..", "a\\\\b", ""] {
            assert_eq!(read(&format!(r#"{{"rfilename":"{bad}"}}"#)), None, "{bad}");
        }
    }

    #[test]
    fn tags_and_paths() {
        assert_eq!(Checksum::of_etag(&format!("\"{}\"", "0".repeat(64))), Some(Checksum::Sha256("0".repeat(64))));
        assert_eq!(Checksum::of_etag(&format!("W/\"{}\"", "f".repeat(40))), Some(Checksum::Git("f".repeat(40))));
        assert_eq!(Checksum::of_etag("\"5d41402abc4b2a76b9719d911017c592-3\""), None);
        assert_eq!(escaped("refs/pr/1", true), "refs%2Fpr%2F1");
        assert_eq!(escaped("a b/ü#?.json", false), "a%20b/%C3%BC%23%3F.json");
        assert!(
            is_gated(&"auto".into()) && is_gated(&true.into()) && !is_gated(&false.into()) && !is_gated(&Value::Null)
        );
    }
}
