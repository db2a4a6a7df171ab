//! Talking HTTP to a running Hearth: health, figures, streamed chat, the request to stop.

use crate::failure::Failure;
use hearth_core::stats::{CacheClear, CacheFlush, Health, Stats};
use hearth_library::download::Download;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

/// One server, by its address.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

/// What a streamed chat says.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// More of the answer.
    Text(String),
    /// The answer is complete; why, in OpenAI's terms.
    Finished(String),
    /// Prompt and answer lengths in tokens.
    Usage {
        /// Tokens of the prompt.
        prompt: u64,
        /// Tokens of the answer.
        answer: u64,
    },
}

/// A way into the dashboard.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Ticket {
    /// What comes after the server's address.
    pub path: String,
    /// How long it is good for.
    pub expires_s: u64,
}

/// A model that has left memory.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Unloaded {
    /// Its id.
    pub model: String,
    /// Bytes that are free now.
    pub freed: u64,
}

/// Why a chat request gave no answer.
#[derive(Debug)]
pub enum ChatError {
    /// The server refused this request and goes on: its own sentence.
    Refused(String),
    /// Nothing more is to be had from this server.
    Lost(Failure),
}

impl Client {
    /// A client for `url`, with or without `/v1` at its end.
    ///
    /// # Errors
    /// When the URL is not an `http://` one.
    pub fn new(url: &str, key: Option<String>) -> Result<Self, Failure> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/').to_owned();
        let host = base.strip_prefix("http://").filter(|rest| !rest.is_empty() && !rest.contains('/'));
        if host.is_none() {
            return Err(Failure::usage(format!("`{url}` is not an address like http://127.0.0.1:8080")));
        }
        // No proxy: a server on this computer is reached directly whatever HTTP_PROXY says.
        let http = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(5)).build();
        let http = http.map_err(|e| Failure::no(format!("cannot set up HTTP: {e}")))?;
        Ok(Client { http, base, key })
    }

    /// The server's address, without a slash at its end.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// `/health`: whether a model is ready. A server that is still loading answers too.
    ///
    /// # Errors
    /// Exit code 4 when nothing that speaks Hearth answers.
    pub async fn health(&self) -> Result<Health, Failure> {
        let reply = self.send(self.request(reqwest::Method::GET, "/health").timeout(QUICK)).await?;
        self.read(reply).await
    }

    /// `/stats`: the engine's figures.
    ///
    /// # Errors
    /// Exit code 4 when nothing that speaks Hearth answers, 1 when the server refuses.
    pub async fn stats(&self) -> Result<Stats, Failure> {
        let reply = self.send(self.request(reqwest::Method::GET, "/stats").timeout(QUICK)).await?;
        match reply.status() {
            StatusCode::OK => self.read(reply).await,
            _ => Err(self.refusal(reply).await),
        }
    }

    /// `/v1/models`: the ids that a request may name.
    ///
    /// # Errors
    /// Exit code 4 when nothing that speaks Hearth answers, 1 when the server refuses.
    pub async fn models(&self) -> Result<Vec<String>, Failure> {
        let list: Value = self.answered(self.request(reqwest::Method::GET, "/v1/models")).await?;
        let models = list["data"].as_array().into_iter().flatten();
        Ok(models.filter_map(|model| model["id"].as_str().map(str::to_owned)).collect())
    }

    /// Asks the server to shut down; it answers before it does.
    ///
    /// # Errors
    /// Exit code 4 when it cannot be reached, 1 when it refuses.
    pub async fn shut_down(&self) -> Result<(), Failure> {
        let reply = self.send(self.request(reqwest::Method::POST, "/api/hearth/shutdown").timeout(QUICK)).await?;
        if reply.status().is_success() { Ok(()) } else { Err(self.refusal(reply).await) }
    }

    /// A one-time link to the dashboard.
    ///
    /// # Errors
    /// Exit code 4 when it cannot be reached, 1 when it refuses.
    pub async fn dashboard_ticket(&self) -> Result<Ticket, Failure> {
        self.admin("/api/hearth/session/ticket").await
    }

    /// Has the prompt cache written to disk; answers when that is done.
    ///
    /// # Errors
    /// Exit code 4 when it cannot be reached, 1 when it refuses.
    pub async fn flush_cache(&self) -> Result<CacheFlush, Failure> {
        self.admin("/api/hearth/cache/flush").await
    }

    /// Has the prompt cache emptied.
    ///
    /// # Errors
    /// Exit code 4 when it cannot be reached, 1 when it refuses.
    pub async fn clear_cache(&self) -> Result<CacheClear, Failure> {
        self.admin("/api/hearth/cache/clear").await
    }

    /// Takes a model out of memory; `None`: none of this name is there.
    ///
    /// # Errors
    /// Exit code 4 when it cannot be reached, 1 when it refuses.
    pub async fn unload(&self, model: &str) -> Result<Option<Unloaded>, Failure> {
        let request = self.request(reqwest::Method::POST, "/api/hearth/models/unload").json(&json!({"model": model}));
        // Its part of the prompt cache goes to disk first.
        let reply = self.send(request.timeout(LONG)).await?;
        match reply.status() {
            StatusCode::OK => self.read(reply).await.map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refusal(reply).await),
        }
    }

    /// Has a model downloaded.
    ///
    /// # Errors
    /// Exit code 4 when it cannot be reached, 1 when it refuses.
    pub async fn start_download(&self, repo: &str, revision: &str) -> Result<Download, Failure> {
        let body = json!({"repo": repo, "revision": revision});
        let request = self.request(reqwest::Method::POST, "/api/hearth/downloads").json(&body);
        self.answered(request).await
    }

    /// All downloads.
    ///
    /// # Errors
    /// As [`Client::start_download`].
    pub async fn downloads(&self) -> Result<Vec<Download>, Failure> {
        #[derive(serde::Deserialize)]
        struct List {
            downloads: Vec<Download>,
        }
        let list: List = self.answered(self.request(reqwest::Method::GET, "/api/hearth/downloads")).await?;
        Ok(list.downloads)
    }

    /// One download.
    ///
    /// # Errors
    /// As [`Client::start_download`].
    pub async fn download(&self, id: &str) -> Result<Download, Failure> {
        self.answered(self.request(reqwest::Method::GET, &format!("/api/hearth/downloads/{id}"))).await
    }

    /// Has a download stop where it is.
    ///
    /// # Errors
    /// As [`Client::start_download`].
    pub async fn pause_download(&self, id: &str) -> Result<Download, Failure> {
        self.answered(self.request(reqwest::Method::POST, &format!("/api/hearth/downloads/{id}/pause"))).await
    }

    /// Has a download end, and what it has fetched removed.
    ///
    /// # Errors
    /// As [`Client::start_download`].
    pub async fn cancel_download(&self, id: &str) -> Result<Download, Failure> {
        self.answered(self.request(reqwest::Method::POST, &format!("/api/hearth/downloads/{id}/cancel"))).await
    }

    /// A quick request with JSON for an answer.
    async fn answered<T: serde::de::DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let reply = self.send(request.timeout(QUICK)).await?;
        if reply.status().is_success() { self.read(reply).await } else { Err(self.refusal(reply).await) }
    }

    /// An admin request that may write or remove gigabytes.
    async fn admin<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let reply = self.send(self.request(reqwest::Method::POST, path).timeout(LONG)).await?;
        match reply.status() {
            StatusCode::OK => self.read(reply).await,
            StatusCode::UNAUTHORIZED => Err(Failure::no(format!(
                "{} does not take orders from here: it belongs to another HEARTH_HOME; set that, and leave out --port",
                self.base
            ))),
            _ => Err(self.refusal(reply).await),
        }
    }

    /// One streamed chat request; `on` gets each piece as it comes. Dropping the future cancels the answer.
    ///
    /// # Errors
    /// [`ChatError`].
    pub async fn chat(&self, body: &Value, on: &mut (dyn FnMut(Piece) + Send)) -> Result<(), ChatError> {
        let request = self.request(reqwest::Method::POST, "/v1/chat/completions").json(body);
        let mut reply = self.send(request).await.map_err(ChatError::Lost)?;
        if !reply.status().is_success() {
            let status = reply.status();
            let refusal = self.refusal(reply).await;
            return Err(match status {
                StatusCode::UNAUTHORIZED => ChatError::Lost(refusal),
                _ => ChatError::Refused(refusal.message),
            });
        }
        let mut lines = Lines::default();
        loop {
            let bytes = reply.chunk().await.map_err(|e| ChatError::Lost(self.lost(&e)))?;
            let Some(bytes) = bytes else {
                return Err(ChatError::Lost(Failure::unreachable(format!(
                    "the connection to {} ended in the middle of the answer",
                    self.base
                ))));
            };
            for line in lines.push(&bytes) {
                match line.strip_prefix("data: ") {
                    Some("[DONE]") => return Ok(()),
                    Some(data) => pieces(data, on)?,
                    None => {}
                }
            }
        }
    }

    fn request(&self, method: reqwest::Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        request.send().await.map_err(|e| self.lost(&e))
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, reply: Response) -> Result<T, Failure> {
        let status = reply.status();
        reply
            .json()
            .await
            .map_err(|_| Failure::unreachable(format!("{} answers (status {status}), but is no Hearth", self.base)))
    }

    /// The server's own sentence about a request that it refused.
    async fn refusal(&self, reply: Response) -> Failure {
        let status = reply.status();
        let body: Value = reply.json().await.unwrap_or_default();
        match body["error"]["message"].as_str() {
            Some(message) => Failure::no(message),
            None => Failure::no(format!("{} answered with status {status}", self.base)),
        }
    }

    fn lost(&self, e: &reqwest::Error) -> Failure {
        let why = if e.is_timeout() {
            "it does not answer in time".to_owned()
        } else {
            // The innermost cause is the system's own reason, such as "Connection refused".
            let mut cause: &dyn std::error::Error = e;
            while let Some(inner) = cause.source() {
                cause = inner;
            }
            cause.to_string()
        };
        Failure::unreachable(format!("cannot reach {}: {why}", self.base))
    }
}

/// How long an answer that costs no computation may take.
const QUICK: Duration = Duration::from_secs(5);
/// How long the disk may take.
const LONG: Duration = Duration::from_secs(600);

/// Reads one chunk of a streamed chat.
fn pieces(data: &str, on: &mut (dyn FnMut(Piece) + Send)) -> Result<(), ChatError> {
    let chunk: Value = serde_json::from_str(data).unwrap_or_else(|_| json!({}));
    if let Some(message) = chunk["error"]["message"].as_str() {
        return Err(ChatError::Refused(message.to_owned()));
    }
    let choice = &chunk["choices"][0];
    if let Some(text) = choice["delta"]["content"].as_str().filter(|t| !t.is_empty()) {
        on(Piece::Text(text.to_owned()));
    }
    if let Some(reason) = choice["finish_reason"].as_str() {
        on(Piece::Finished(reason.to_owned()));
    }
    let usage = &chunk["usage"];
    if let (Some(prompt), Some(answer)) = (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()) {
        on(Piece::Usage { prompt, answer });
    }
    Ok(())
}

/// Cuts a byte stream into lines, wherever its pieces end.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Takes more bytes and returns the lines that are complete now, without their ends.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|&b| b == b'\n') else { return Vec::new() };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_for_every_cut() {
        let text = "data: {\"ä\": 1}\r\n\r\n: ping\n\ndata: [DONE]\n\n";
        let whole = Lines::default().push(text.as_bytes());
        assert_eq!(whole, ["data: {\"ä\": 1}", "", ": ping", "", "data: [DONE]", ""]);
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut all = lines.push(&text.as_bytes()[..cut]);
            all.extend(lines.push(&text.as_bytes()[cut..]));
            assert_eq!(all, whole, "cut at {cut}");
        }
    }

    #[test]
    fn chunks_become_pieces() {
        let mut got = Vec::new();
        let mut on = |piece| got.push(piece);
        pieces(r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#, &mut on).unwrap();
        pieces(r#"{"choices":[{"delta":{"content":"Hi"},"finish_reason":null}]}"#, &mut on).unwrap();
        pieces(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, &mut on).unwrap();
        pieces(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#, &mut on).unwrap();
        let failed = pieces(r#"{"error":{"message":"no"}}"#, &mut on);
        assert!(matches!(failed, Err(ChatError::Refused(m)) if m == "no"));
        let expected =
            [Piece::Text("Hi".into()), Piece::Finished("stop".into()), Piece::Usage { prompt: 3, answer: 2 }];
        assert_eq!(got, expected);
    }

    #[test]
    fn addresses_are_taken_with_and_without_v1() {
        for url in ["http://127.0.0.1:8080", "http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1/"] {
            assert_eq!(Client::new(url, None).unwrap().base(), "http://127.0.0.1:8080");
        }
        for url in ["127.0.0.1:8080", "https://a", "http://", "http://a/b"] {
            assert_eq!(Client::new(url, None).unwrap_err().code, crate::failure::Code::Usage, "{url}");
        }
    }
}
