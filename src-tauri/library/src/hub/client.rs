//! Requests to the hub: time limits, redirects that never carry the token to another host, a refused token tried without, and
//! refusals turned into sentences.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};

use super::auth::{Token, is_yes};
use super::{DEFAULT_ENDPOINT, HubError, Repo};
use crate::home::Env;

/// Most redirects of one request.
const MAX_REDIRECTS: usize = 10;

/// Which hub, as whom, and how patiently.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The hub's address.
    pub endpoint: String,
    /// The user's token.
    pub token: Option<Token>,
    /// Nothing may be fetched.
    pub offline: bool,
    /// How long a question to the hub may take, redirects included.
    pub answer: Duration,
    /// How long a transfer may be silent.
    pub silence: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            offline: false,
            answer: Duration::from_secs(8),
            silence: Duration::from_secs(20),
        }
    }
}

impl HubOptions {
    /// As the environment says: `HF_ENDPOINT`, the token, `HF_HUB_OFFLINE`.
    pub fn from_env(env: Env<'_>) -> Self {
        let text = |name: &str| env(name).map(|v| v.to_string_lossy().into_owned()).filter(|v| !v.trim().is_empty());
        Self {
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: Token::find(env),
            offline: text("HF_HUB_OFFLINE").is_some_and(|v| is_yes(&v)),
            ..Self::default()
        }
    }
}

/// A client of one hub; cheap to clone.
#[derive(Debug, Clone)]
pub struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoint: Url,
    http: reqwest::Client,
    options: HubOptions,
    /// The hub refused the token, and gave the same thing without it.
    token_refused: AtomicBool,
}

/// An answer with the way it took.
#[derive(Debug)]
pub struct Reply {
    /// The last answer; its status is a success.
    pub response: Response,
    /// Who gave it.
    pub url: Url,
    /// The headers of the first redirect, which describe the file rather than its transport.
    pub first: Option<HeaderMap>,
}

/// What is asked for, for the sentence when it is not given.
#[derive(Debug, Clone, Copy)]
pub(super) enum About<'a> {
    /// A repository at a revision.
    Repo(&'a Repo, &'a str),
    /// A file of a repository.
    File(&'a Repo, &'a str),
    /// Anything else.
    Search,
}

impl Hub {
    /// A client with these settings; asks nothing yet.
    ///
    /// # Errors
    /// [`HubError::BadEndpoint`].
    pub fn new(options: HubOptions) -> Result<Self, HubError> {
        let bad = |why: String| HubError::BadEndpoint { text: options.endpoint.clone(), why };
        // A base URL without a slash at its end loses its last part when a path is joined.
        let text = format!("{}/", options.endpoint.trim().trim_end_matches('/'));
        let endpoint = Url::parse(&text).map_err(|e| bad(e.to_string()))?;
        if !matches!(endpoint.scheme(), "http" | "https") || endpoint.host_str().is_none() {
            return Err(bad("it has to begin with https:// or http://".to_owned()));
        }
        if !endpoint.username().is_empty() || endpoint.password().is_some() {
            return Err(bad("it must not hold a user or a password".to_owned()));
        }
        let http = reqwest::Client::builder()
            .user_agent(concat!("hearth/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .pool_idle_timeout(Duration::from_secs(30))
            .tcp_nodelay(true);
        let http = http.build().map_err(|e| bad(innermost(&e)))?;
        Ok(Self(Arc::new(Inner { endpoint, http, options, token_refused: AtomicBool::new(false) })))
    }

    /// The hub's address, without a slash at its end.
    pub fn endpoint(&self) -> &str {
        self.0.endpoint.as_str().trim_end_matches('/')
    }

    /// The hub's host, with the port where it is not the usual one.
    pub fn host(&self) -> String {
        host(&self.0.endpoint)
    }

    /// How long a transfer may be silent.
    pub fn silence(&self) -> Duration {
        self.0.options.silence
    }

    /// What to tell the user about a token that was refused where none was needed.
    pub fn token_note(&self) -> Option<String> {
        let token = self.0.options.token.as_ref().filter(|_| self.0.token_refused.load(Ordering::Relaxed))?;
        Some(format!(
            "the token from {} is not valid any more; this model is public, so it is downloaded without it",
            token.from
        ))
    }

    /// A URL below the hub's address. `path` has no slash at its start.
    pub(super) fn url(&self, path: &str) -> Result<Url, HubError> {
        self.0.endpoint.join(path).map_err(|e| HubError::Answer { host: self.host(), why: e.to_string() })
    }

    /// Asks the hub a question: the whole answer has to come in time.
    pub(super) async fn ask(&self, url: Url, about: About<'_>) -> Result<(Vec<u8>, Url), HubError> {
        let asked = async {
            let reply = self.send(Method::GET, url.clone(), HeaderMap::new(), about).await?;
            let bytes = reply.response.bytes().await.map_err(|e| self.broken(&reply.url, &e))?;
            Ok((bytes.to_vec(), reply.url))
        };
        let limit = self.0.options.answer;
        match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(HubError::Unreachable { host: host(&url), why: no_answer(limit) }),
        }
    }

    /// Begins to read a file (or, with `Method::HEAD`, only asks about it); returns when the head of the answer is there.
    /// `from` is the file's address at the hub, or where that redirected to earlier.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn open(
        &self,
        method: Method,
        from: Url,
        headers: HeaderMap,
        repo: &Repo,
        file: &str,
    ) -> Result<Reply, HubError> {
        let limit = self.silence();
        let at = host(&from);
        match tokio::time::timeout(limit, self.send(method, from, headers, About::File(repo, file))).await {
            Ok(reply) => reply,
            Err(_) => Err(HubError::Unreachable { host: at, why: no_answer(limit) }),
        }
    }

    /// Sends a request, follows its redirects, and tries again without a token that is refused.
    async fn send(&self, method: Method, url: Url, headers: HeaderMap, about: About<'_>) -> Result<Reply, HubError> {
        if self.0.options.offline {
            return Err(HubError::Offline);
        }
        let with_token = self.0.options.token.is_some() && !self.0.token_refused.load(Ordering::Relaxed);
        let (response, at, first) = self.follow(&method, url.clone(), &headers, with_token).await?;
        if response.status() == StatusCode::UNAUTHORIZED && with_token && same_origin(&at, &self.0.endpoint) {
            let (again, at, first) = self.follow(&method, url, &headers, false).await?;
            if again.status().is_success() {
                self.0.token_refused.store(true, Ordering::Relaxed);
                return Ok(Reply { response: again, url: at, first });
            }
            return Err(self.refusal(again, &at, about, false).await);
        }
        match response.status().is_success() {
            true => Ok(Reply { response, url: at, first }),
            false => Err(self.refusal(response, &at, about, with_token).await),
        }
    }

    async fn follow(
        &self,
        method: &Method,
        mut url: Url,
        headers: &HeaderMap,
        with_token: bool,
    ) -> Result<(Response, Url, Option<HeaderMap>), HubError> {
        let mut first = None;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.0.http.request(method.clone(), url.clone()).headers(headers.clone());
            // The token is for the hub alone: storage hosts have their own signatures in the URL.
            if let Some(token) =
                self.0.options.token.as_ref().filter(|_| with_token && same_origin(&url, &self.0.endpoint))
            {
                request = request.bearer_auth(&token.value);
            }
            let response = request.send().await.map_err(|e| self.unreachable(&url, &e))?;
            let to = match response.status() {
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => response.headers().get(header::LOCATION),
                _ => None,
            };
            let Some(to) = to else { return Ok((response, url, first)) };
            let to = to.to_str().unwrap_or_default();
            let refuse = |why| HubError::Redirect { host: host(&url), to: to.to_owned(), why };
            let next = url.join(to).map_err(|_| refuse("it is not an address"))?;
            match next.scheme() {
                "https" => {}
                "http" if url.scheme() == "http" => {}
                "http" => return Err(refuse("it leaves encryption")),
                _ => return Err(refuse("it is not a web address")),
            }
            first.get_or_insert_with(|| response.headers().clone());
            url = next;
        }
        Err(HubError::Redirect { host: host(&url), to: url.to_string(), why: "there are too many of them" })
    }

    /// The sentence for an answer that is none.
    async fn refusal(&self, response: Response, at: &Url, about: About<'_>, token: bool) -> HubError {
        let status = response.status();
        let headers = response.headers().clone();
        let word = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let (code, mut why) = (word("x-error-code"), word("x-error-message"));
        if status == StatusCode::TOO_MANY_REQUESTS {
            return HubError::RateLimited { host: host(at), after: wait(&headers), token };
        }
        let own = same_origin(at, &self.0.endpoint);
        let (repo, revision, file) = match about {
            About::Repo(repo, revision) => (Some(repo), revision, ""),
            About::File(repo, file) => (Some(repo), "", file),
            About::Search => (None, "", ""),
        };
        if let Some(repo) = repo.filter(|_| own) {
            let name = repo.to_string();
            match (code.as_str(), status.as_u16()) {
                ("GatedRepo", _) => {
                    return HubError::Gated { page: format!("{}/{name}", self.endpoint()), repo: name, token };
                }
                ("RevisionNotFound", _) => return HubError::NoRevision { repo: name, revision: revision.to_owned() },
                ("EntryNotFound", _) => return HubError::NoFile { repo: name, file: file.to_owned() },
                _ if why.contains("is disabled") => return HubError::Disabled { repo: name },
                ("RepoNotFound", _) | (_, 401 | 404) => {
                    return HubError::NoRepo { repo: name, host: self.host(), token };
                }
                _ => {}
            }
        }
        if why.is_empty() && own {
            // A hub says why in a small JSON body; a stranger's page is not repeated.
            let body = tokio::time::timeout(Duration::from_secs(2), response.bytes()).await;
            let body: serde_json::Value =
                body.ok().and_then(Result::ok).and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
            why = body["error"].as_str().unwrap_or_default().chars().take(300).collect();
        }
        HubError::Refused { host: host(at), status: status.as_u16(), why }
    }

    fn unreachable(&self, url: &Url, e: &reqwest::Error) -> HubError {
        let why = if e.is_timeout() { "it does not answer".to_owned() } else { innermost(e) };
        HubError::Unreachable { host: host(url), why }
    }

    pub(super) fn broken(&self, url: &Url, e: &reqwest::Error) -> HubError {
        HubError::Broken { host: host(url), why: innermost(e) }
    }
}

impl Reply {
    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// [`HubError::Broken`], and [`HubError::Stalled`] after `silence`.
    pub async fn piece(&mut self, silence: Duration) -> Result<Option<bytes::Bytes>, HubError> {
        match tokio::time::timeout(silence, self.response.chunk()).await {
            Ok(piece) => piece.map_err(|e| HubError::Broken { host: host(&self.url), why: innermost(&e) }),
            Err(_) => Err(HubError::Stalled { host: host(&self.url), seconds: silence.as_secs() }),
        }
    }

    /// A header of the last answer.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|v| v.to_str().ok())
    }
}

/// A `Range` header for `start..end`.
pub(crate) fn range(start: u64, end: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&format!("bytes={start}-{}", end.saturating_sub(1))) {
        headers.insert(header::RANGE, value);
    }
    headers
}

fn no_answer(limit: Duration) -> String {
    format!("it did not answer in {} s", limit.as_secs())
}

/// How long a hub that is busy asks to wait; a moment if it does not say.
fn wait(headers: &HeaderMap) -> Duration {
    const MOST: u64 = 3600;
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let seconds = text("retry-after").and_then(|v| v.trim().parse::<u64>().ok());
    // `"api";r=0;t=55`: nothing remains, new ones come in 55 s.
    let reset = || text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t=")?.parse::<u64>().ok());
    Duration::from_secs(seconds.or_else(reset).unwrap_or(5).clamp(1, MOST))
}

fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme() && a.host_str() == b.host_str() && a.port_or_known_default() == b.port_or_known_default()
}

/// Host and port of a URL, for people. Never its query, which may hold a signature.
pub(crate) fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{name}:{port}"),
        None => name.to_owned(),
    }
}

/// The system's own reason, such as "Connection refused", without the wrapping around it.
fn innermost(e: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = e;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    // The error's own text may repeat the URL with its signature.
    text.split(" for url").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_from_either_header() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            wait(&headers).as_secs()
        };
        assert_eq!(with("retry-after", "17"), 17);
        assert_eq!(with("retry-after", "0"), 1);
        assert_eq!(with("ratelimit", "\"api\";r=0;t=55"), 55);
        assert_eq!(with("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), 5);
        assert_eq!(with("retry-after", "99999999"), 3600);
    }

    #[test]
    fn addresses_are_checked() {
        let new = |endpoint: &str| Hub::new(HubOptions { endpoint: endpoint.into(), ..HubOptions::default() });
        for bad in ["", "huggingface.co", "ftp://x", "https://", "https://user:secret@x"] {
            assert!(matches!(new(bad), Err(HubError::BadEndpoint { .. })), "{bad:?}");
        }
        let hub = new(" http://127.0.0.1:9/mirror/ ").unwrap();
        assert_eq!(hub.endpoint(), "http://127.0.0.1:9/mirror");
        assert_eq!(hub.url("api/models").unwrap().as_str(), "http://127.0.0.1:9/mirror/api/models");
        let url = |text: &str| Url::parse(text).unwrap();
        assert!(same_origin(&url("https://a/x"), &url("https://a:443/y")));
        for other in ["http://a/", "https://b/", "https://a:444/", "https://x.a/"] {
            assert!(!same_origin(&url("https://a/"), &url(other)), "{other}");
        }
    }
}
