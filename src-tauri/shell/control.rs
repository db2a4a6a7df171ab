//! What the app asks of a server over HTTP: links to its dashboard, and whether it still answers.

use hearth_library::home::ServerRecord;
use reqwest::{Client, StatusCode};
use serde_json::Value;
use std::time::Duration;

/// A server on this machine answers within this, or not at all.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the server did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no server yet, or none any more.
    #[error("Hearth does not serve at the moment")]
    NotServing,
    /// It refused, in its own words.
    #[error("{0}")]
    Refused(String),
    /// It did not answer.
    #[error("the server does not answer: {0}")]
    Lost(#[from] reqwest::Error),
}

/// A server and the key of its admin routes.
#[derive(Debug, Clone)]
pub struct Control {
    client: Client,
    base: String,
    token: String,
}

impl Control {
    /// The server at this base URL.
    ///
    /// # Errors
    /// When there can be no HTTP client.
    pub fn new(base: &str, token: &str) -> std::io::Result<Self> {
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().map_err(std::io::Error::other)?;
        Ok(Control { client, base: base.to_owned(), token: token.to_owned() })
    }

    /// The server of another process of this user, by what it says of itself in the home.
    pub fn of(record: &ServerRecord) -> Option<Self> {
        let host = match record.host.as_str() {
            "0.0.0.0" | "::" => "127.0.0.1".to_owned(),
            v6 if v6.contains(':') => format!("[{v6}]"),
            other => other.to_owned(),
        };
        Self::new(&format!("http://{host}:{}", record.port), record.token.as_deref()?).ok()
    }

    /// The base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// A link to a page of the dashboard, good once.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn link(&self, page: &str) -> Result<String, ControlError> {
        let answer = self.post("/api/hearth/session/ticket").await?;
        let path = answer["path"].as_str().ok_or_else(|| ControlError::Refused("the server gave no link".into()))?;
        let query = path.trim_start_matches('/');
        Ok(link(&self.base, query, page))
    }

    /// Whether it answers at all.
    pub async fn answers(&self, within: Duration) -> bool {
        self.client.get(format!("{}/health", self.base)).timeout(within).send().await.is_ok()
    }

    async fn post(&self, path: &str) -> Result<Value, ControlError> {
        let request = self.client.post(format!("{}{path}", self.base)).bearer_auth(&self.token);
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        match status.is_success() {
            true => Ok(answer),
            false => Err(ControlError::Refused(refusal(status, &answer))),
        }
    }
}

/// `http://127.0.0.1:8080/popover?ticket=…` or `…/?ticket=…#/models`.
fn link(base: &str, query: &str, page: &str) -> String {
    match page.strip_prefix('#') {
        Some(_) => format!("{base}/{query}{page}"),
        None => format!("{base}{page}{query}"),
    }
}

/// The server's sentence, or else its status.
fn refusal(status: StatusCode, answer: &Value) -> String {
    match answer["error"]["message"].as_str() {
        Some(message) => message.to_owned(),
        None => format!("the server answered with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn links_keep_page_and_ticket() {
        let base = "http://127.0.0.1:8080";
        assert_eq!(link(base, "?ticket=1", "/"), "http://127.0.0.1:8080/?ticket=1");
        assert_eq!(link(base, "?ticket=1", "/popover"), "http://127.0.0.1:8080/popover?ticket=1");
        assert_eq!(link(base, "?ticket=1", "#/models"), "http://127.0.0.1:8080/?ticket=1#/models");
    }

    #[test]
    fn a_refusal_is_the_servers_own_sentence() {
        let answer = json!({"error": {"message": "it does not fit: 2.0 GB short"}});
        assert_eq!(refusal(StatusCode::BAD_REQUEST, &answer), "it does not fit: 2.0 GB short");
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, &Value::Null), "the server answered with 502 Bad Gateway");
    }

    #[test]
    fn another_process_is_reached_where_it_listens() {
        let mut record =
            ServerRecord { pid: 1, host: "0.0.0.0".into(), port: 81, model: None, started: 0, token: Some("t".into()) };
        assert_eq!(Control::of(&record).unwrap().base(), "http://127.0.0.1:81");
        record.host = "::1".into();
        assert_eq!(Control::of(&record).unwrap().base(), "http://[::1]:81");
        record.token = None;
        assert!(Control::of(&record).is_none(), "without its key there is nothing to ask for");
    }
}
