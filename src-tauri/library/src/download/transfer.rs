//! Fetching one span of a file: ranges, retries, what a server may answer instead, and when that means beginning the file anew.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{self, HeaderValue};
use reqwest::{Method, StatusCode};
use tokio::sync::watch;

use super::files::{FileJob, Restart, Span};
use super::{DownloadOptions, size};
use crate::LibraryError;
use crate::hub::{Hub, HubError, Reply, Repo};

/// Longest wait between two tries that Hearth chooses by itself.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What a job is told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// Nothing: go on.
    Go,
    /// Stop, and keep everything.
    Pause,
    /// Stop, and remove what was fetched.
    Cancel,
}

/// Why a job's work ends before it is done.
#[derive(Debug)]
pub(super) enum Fault {
    /// It was told to.
    Stopped,
    /// It cannot go on.
    Error(LibraryError),
}

impl From<LibraryError> for Fault {
    fn from(e: LibraryError) -> Self {
        Self::Error(e)
    }
}

impl From<HubError> for Fault {
    fn from(e: HubError) -> Self {
        Self::Error(LibraryError::Hub(e))
    }
}

/// What all transfers of a job share.
pub(super) struct Context {
    /// The hub.
    pub hub: Hub,
    /// The repository.
    pub repo: Repo,
    /// Its commit.
    pub commit: String,
    /// How patiently.
    pub options: DownloadOptions,
    /// What the job is told.
    pub signal: watch::Receiver<Signal>,
    /// Takes sentences about what is waited for.
    pub note: Box<dyn Fn(Option<String>) + Send + Sync>,
}

/// How one try ended.
enum Tried {
    /// The span is complete, or belongs to a beginning of the file that is over.
    Settled,
    /// It broke off; worth another try.
    Broke(HubError),
}

impl Context {
    /// Waits, unless the job is told to stop.
    pub async fn pause(&self, time: Duration) -> Result<(), Fault> {
        let mut signal = self.signal.clone();
        tokio::select! {
            _ = signal.wait_for(|s| *s != Signal::Go) => Err(Fault::Stopped),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    /// How long to wait after so many failures in a row; the error itself when it was too often, or the hub asks for too long.
    pub fn wait_after(&self, failures: u32, e: HubError) -> Result<Duration, Fault> {
        let asked = e.retry_after();
        if !e.is_temporary() || failures >= self.options.tries || asked.is_some_and(|t| t > self.options.patience) {
            return Err(e.into());
        }
        let own = self.options.backoff.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_WAIT);
        Ok(asked.map_or(own, |t| t.max(own)))
    }

    /// Fetches a span to its end.
    pub async fn fetch(&self, file: &Arc<FileJob>, span: &Span) -> Result<(), Fault> {
        let mut at = span.start;
        let mut failures = 0;
        while at < span.end {
            let before = at;
            let e = match self.attempt(file, span, &mut at).await? {
                Tried::Settled => return Ok(()),
                Tried::Broke(e) => e,
            };
            failures = if at > before { 1 } else { failures + 1 };
            let wait = self.wait_after(failures, e.clone())?;
            tracing::debug!(file = file.record.path, at, "{e}; trying again in {wait:?}");
            (self.note)(Some(format!("{e}; trying again in {} s", wait.as_secs_f32().ceil())));
            self.pause(wait).await?;
        }
        Ok(())
    }

    async fn attempt(&self, file: &Arc<FileJob>, span: &Span, at: &mut u64) -> Result<Tried, Fault> {
        let path = &file.record.path;
        let (known, tag) = file.source();
        let url = match known {
            Some(url) => url,
            None => self.hub.file_url(&self.repo, &self.commit, path)?,
        };
        let mut headers = crate::hub::range(*at, span.end);
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(tag) = tag.and_then(|t| HeaderValue::from_str(&t).ok()) {
            headers.insert(header::IF_RANGE, tag);
        }
        let mut signal = self.signal.clone();
        let opened = tokio::select! {
            _ = signal.wait_for(|s| *s != Signal::Go) => return Err(Fault::Stopped),
            opened = self.hub.open(Method::GET, url, headers, &self.repo, path) => opened,
        };
        let mut reply = match opened {
            Ok(reply) => reply,
            // The range is not satisfiable: the content has another length.
            Err(HubError::Refused { status: 416, .. }) => return self.anew(file, span, Restart::Changed),
            // A signed address lasts for a while only; the hub gives a new one.
            Err(HubError::Refused { host, status: status @ 400..500, .. }) if host != self.hub.host() => {
                file.lose_source();
                return Ok(Tried::Broke(HubError::Broken { host, why: format!("it answered with status {status}") }));
            }
            Err(e) if e.is_temporary() => {
                file.lose_source();
                return Ok(Tried::Broke(e));
            }
            Err(e) => return Err(e.into()),
        };
        match self.judge(file, *at, span, &reply) {
            Some(restart) => return self.anew(file, span, restart),
            None if !file.found(span, &reply.url, reply.header("etag")) => {
                return self.anew(file, span, Restart::Changed);
            }
            None => {}
        }
        while *at < span.end {
            let piece = tokio::select! {
                biased;
                _ = signal.wait_for(|s| *s != Signal::Go) => return Err(Fault::Stopped),
                piece = reply.piece(self.hub.silence()) => piece,
            };
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    let why = format!("it sent {} less than it announced", size(span.end - *at));
                    return Ok(Tried::Broke(HubError::Broken { host: self.hub.host(), why }));
                }
                Err(e) => return Ok(Tried::Broke(e)),
            };
            if file.generation() != span.generation {
                return Ok(Tried::Settled);
            }
            let mut bytes = &piece[..(piece.len() as u64).min(span.end - *at) as usize];
            while !bytes.is_empty() {
                // A chunk is in the journal before the next one is begun: a kill costs one of each connection, never two.
                let chunk = span.part.chunk();
                let (now, rest) = bytes.split_at(((chunk - *at % chunk) as usize).min(bytes.len()));
                bytes = rest;
                span.part.write(now, *at)?;
                let from = *at;
                *at += now.len() as u64;
                file.came(now.len() as u64);
                file.wrote(span, from, *at)?;
            }
        }
        Ok(Tried::Settled)
    }

    /// What an answer means for the file: `None` if it is what was asked for.
    fn judge(&self, file: &FileJob, at: u64, span: &Span, reply: &Reply) -> Option<Restart> {
        let total = file.record.size;
        match reply.response.status() {
            StatusCode::PARTIAL_CONTENT => {
                // `bytes 0-99/1000`
                let range = reply.header("content-range")?.strip_prefix("bytes ")?;
                let (range, length) = range.split_once('/')?;
                let start = range.split_once('-')?.0;
                let right = start.parse() == Ok(at) && (length == "*" || length.parse() == Ok(total));
                (!right).then_some(Restart::Changed)
            }
            _ if at == 0 && span.end == total => {
                let length: Option<u64> = reply.header("content-length").and_then(|l| l.parse().ok());
                length.is_some_and(|l| l != total).then_some(Restart::Changed)
            }
            _ => Some(Restart::NoRange),
        }
    }

    fn anew(&self, file: &FileJob, span: &Span, why: Restart) -> Result<Tried, Fault> {
        match file.restart(span.generation, why)? {
            true => Ok(Tried::Settled),
            false => Err(LibraryError::Unstable {
                file: file.record.path.clone(),
                repo: self.repo.to_string(),
                times: super::files::MOST_RESTARTS,
            }
            .into()),
        }
    }
}
