//! The sizes of a model that is still on the hub: its configuration and the headers of its weight files, by range requests.

use std::path::{Path, PathBuf};

use futures::stream::{self, StreamExt};
use hearth_core::fit::Model;
use serde_json::Value;

use super::{Hub, RemoteFile, RepoInfo};
use crate::{LibraryError, headers, json};

/// Bytes asked for first: nearly every header is shorter.
const FIRST: u64 = 256 << 10;
/// Files asked for at once.
const AT_ONCE: usize = 8;
/// Largest configuration read.
const MAX_CONFIG: u64 = 8 << 20;

impl Hub {
    /// What `hearth fit` needs of a model, without downloading it. `files` are its weight files.
    ///
    /// # Errors
    /// [`LibraryError`]: the hub's refusal, or what is wrong with a file.
    pub async fn sizes(&self, info: &RepoInfo, files: &[RemoteFile]) -> Result<Model, LibraryError> {
        let path = |file: &str| PathBuf::from(format!("{}/{file}", info.repo));
        let config = self.bytes(&info.repo, &info.commit, "config.json", 0, MAX_CONFIG).await?;
        let config: Value = json::parse(&path("config.json"), &config, "a JSON object")?;
        let mut model = Model::from_config(&config, &path("config.json"))?;
        let weights = files.iter().filter(|f| f.path.ends_with(".safetensors"));
        let parts = weights.map(|file| {
            let empty = model.part();
            async move { self.header(info, file, empty, &path(&file.path)).await }
        });
        // Collected first: the closures borrow the model that the parts are merged into.
        let parts: Vec<_> = parts.collect();
        let mut parts = stream::iter(parts).buffer_unordered(AT_ONCE);
        while let Some(part) = parts.next().await {
            model.merge(&part?);
        }
        Ok(model)
    }

    async fn header(
        &self,
        info: &RepoInfo,
        file: &RemoteFile,
        mut part: Model,
        path: &Path,
    ) -> Result<Model, LibraryError> {
        let wrong = |found: String| LibraryError::mismatch(path, "the header", "a safetensors header", found);
        let end = file.size.unwrap_or(FIRST).min(FIRST);
        let mut bytes = self.bytes(&info.repo, &info.commit, &file.path, 0, end).await?;
        let length = bytes
            .first_chunk::<8>()
            .map(|b| u64::from_le_bytes(*b))
            .ok_or_else(|| wrong("less than 8 bytes".into()))?;
        if length > headers::MAX_HEADER {
            return Err(wrong(format!("a length of {length} bytes")));
        }
        if (bytes.len() as u64) < 8 + length {
            let from = bytes.len() as u64;
            bytes.extend(self.bytes(&info.repo, &info.commit, &file.path, from, 8 + length).await?);
        }
        let header = bytes.get(8..8 + length as usize).ok_or_else(|| wrong(format!("{} bytes of it", bytes.len())))?;
        headers::tensors(path, header, &mut |head| part.add(head))?;
        Ok(part)
    }
}
