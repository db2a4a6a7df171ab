//! Which clients can use this server, and the test that makes the call that a client makes: over a real connection to
//! the server's own port.

use crate::body::JsonObject;
use crate::error::ServerError;
use crate::params::Fields;
use crate::state::AppState;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::ServiceExt;

/// How long a test may take; a model that computes a long prompt for somebody else is not at fault.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of an answer that are read.
const MOST: usize = 1 << 20;

/// A way of talking to the server.
#[derive(Debug, Clone, Copy)]
struct Dialect {
    name: &'static str,
    /// The route that tells whether the dialect is served.
    path: &'static str,
    method: &'static str,
    /// The request's body, `MODEL` standing for the model's id; empty for none.
    body: &'static str,
    /// What has to be in the answer.
    expected: &'static str,
}

const CHAT: Dialect = Dialect {
    name: "OpenAI chat",
    path: "/v1/chat/completions",
    method: "POST",
    body: r#"{"model":"MODEL","messages":[{"role":"user","content":"Say hello."}],"max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}"#,
    expected: "[DONE]",
};
const COMPLETIONS: Dialect = Dialect {
    name: "OpenAI completions",
    path: "/v1/completions",
    method: "POST",
    body: r#"{"model":"MODEL","prompt":"Hello","max_tokens":4,"stream":true}"#,
    expected: "[DONE]",
};
const MODELS: Dialect =
    Dialect { name: "OpenAI models", path: "/v1/models", method: "GET", body: "", expected: "\"data\"" };
const RESPONSES: Dialect = Dialect {
    name: "OpenAI responses",
    path: "/v1/responses",
    method: "POST",
    body: r#"{"model":"MODEL","input":"Say hello.","max_output_tokens":16,"stream":true}"#,
    expected: "response.completed",
};
const MESSAGES: Dialect = Dialect {
    name: "Anthropic messages",
    path: "/v1/messages",
    method: "POST",
    body: r#"{"model":"MODEL","messages":[{"role":"user","content":"Say hello."}],"max_tokens":4,"stream":true}"#,
    expected: "message_stop",
};
const LM_STUDIO: Dialect =
    Dialect { name: "LM Studio models", path: "/api/v0/models", method: "GET", body: "", expected: "\"data\"" };
const OLLAMA: Dialect =
    Dialect { name: "Ollama tags", path: "/api/tags", method: "GET", body: "", expected: "\"models\"" };

/// The clients that the connect page shows, and the calls that each of them begins with.
const CLIENTS: &[(&str, &str, &[Dialect])] = &[
    ("continue", "Continue", &[CHAT, COMPLETIONS]),
    ("cline", "Cline", &[CHAT]),
    ("copilot", "GitHub Copilot", &[MODELS, CHAT]),
    ("zed", "Zed", &[CHAT]),
    ("zed-lmstudio", "Zed (LM Studio)", &[LM_STUDIO, CHAT]),
    ("jetbrains", "JetBrains", &[MODELS, CHAT]),
    ("jetbrains-ollama", "JetBrains (Ollama)", &[OLLAMA]),
    ("xcode", "Xcode", &[MODELS, CHAT]),
    ("claude-code", "Claude Code", &[MESSAGES]),
    ("codex", "Codex", &[RESPONSES]),
    ("open-webui", "Open WebUI", &[MODELS, CHAT]),
    ("python", "Python SDK", &[CHAT]),
    ("node", "Node SDK", &[CHAT]),
    ("curl", "curl", &[CHAT]),
];

/// One client of the connect page.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ConnectClient {
    /// A short name.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether everything that it needs is served.
    pub served: bool,
    /// What it needs.
    pub needs: Vec<String>,
}

/// Where clients reach this server, and which can.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct Connect {
    /// The base address on this machine, without a slash at the end.
    pub address: String,
    /// Whether other machines can reach it.
    pub lan: bool,
    /// Whether requests need a key.
    pub key_required: bool,
    /// The key to use, where one is needed and may be shown.
    pub key: Option<String>,
    /// The clients.
    pub clients: Vec<ConnectClient>,
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ConnectTest {
    /// Whether all calls were answered as the client expects.
    pub ok: bool,
    /// The last call's status code; 0 when there was no answer.
    pub status: u16,
    /// Milliseconds that all calls took together.
    pub ms: f64,
    /// What happened.
    pub message: String,
}

/// `GET /api/hearth/connect`.
pub(crate) async fn overview(State(state): State<AppState>) -> Json<Connect> {
    let mut clients = Vec::new();
    for (id, name, dialects) in CLIENTS {
        let mut served = true;
        for dialect in *dialects {
            served &= is_served(&state, dialect.path).await;
        }
        let needs = dialects.iter().map(|d| format!("{} ({})", d.name, d.path)).collect();
        clients.push(ConnectClient { id: (*id).into(), name: (*name).into(), served, needs });
    }
    let config = state.config();
    Json(Connect {
        address: own_url(&state),
        lan: state.address().is_some_and(|a| !a.ip().is_loopback()),
        key_required: !config.api_keys.is_empty(),
        key: config.api_keys.first().filter(|key| Some(*key) != config.admin_token.as_ref()).cloned(),
        clients,
    })
}

/// `POST /api/hearth/connect/test` with `{"client": "zed"}`.
pub(crate) async fn test(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Json<ConnectTest>, ServerError> {
    let given = Fields::new(&body).string("client")?.unwrap_or_default();
    let Some((_, name, dialects)) = CLIENTS.iter().find(|(id, _, _)| *id == given) else {
        let ids: Vec<&str> = CLIENTS.iter().map(|(id, _, _)| *id).collect();
        return Err(ServerError::param(
            "client",
            format!("`client` must be one of {}; it is {given:?}", ids.join(", ")),
        ));
    };
    let started = Instant::now();
    let mut result = ConnectTest { ok: true, status: 0, ms: 0.0, message: String::new() };
    for dialect in *dialects {
        let outcome = match timeout(PATIENCE, call(&state, name, dialect)).await {
            Ok(outcome) => outcome,
            Err(_) => Err((0, format!("{} gave no answer in {} s.", dialect.path, PATIENCE.as_secs()))),
        };
        match outcome {
            Ok((status, message)) => (result.status, result.message) = (status, message),
            Err((status, message)) => {
                (result.ok, result.status, result.message) = (false, status, message);
                break;
            }
        }
    }
    result.ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(Json(result))
}

/// The base address for clients on this machine.
fn own_url(state: &AppState) -> String {
    let address = own_address(state);
    format!("http://{address}")
}

fn own_address(state: &AppState) -> SocketAddr {
    let config = state.config();
    let bound = state.address().unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), config.port));
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

fn request(state: &AppState, method: Method, path: &str) -> axum::http::request::Builder {
    let request = Request::builder().method(method).uri(path).header(header::HOST, own_address(state).to_string());
    match state.config().api_keys.first() {
        Some(key) => request.header(header::AUTHORIZATION, format!("Bearer {key}")),
        None => request,
    }
}

/// Whether there is such a route: one that exists refuses an odd method, one that does not is not found.
async fn is_served(state: &AppState, path: &str) -> bool {
    let Ok(request) = Request::patch(path).body(Body::empty()) else { return false };
    match crate::routes::routes().with_state(state.clone()).oneshot(request).await {
        Ok(response) => response.status() == StatusCode::METHOD_NOT_ALLOWED,
        Err(never) => match never {},
    }
}

/// Makes one call over a connection of its own: the status and what to say of it.
async fn call(state: &AppState, client: &str, dialect: &Dialect) -> Result<(u16, String), (u16, String)> {
    let lost = |e: &dyn std::fmt::Display| (0, format!("{} cannot be reached: {e}.", own_url(state)));
    let model = state.backend().models().await.into_iter().next().map(|m| m.id).unwrap_or_default();
    let body = dialect.body.replace("\"MODEL\"", &json!(model).to_string());
    let method = if dialect.method == "GET" { Method::GET } else { Method::POST };
    let request = request(state, method, dialect.path)
        .header(header::USER_AGENT, format!("Hearth connect test ({client})"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| lost(&e))?;
    let stream = TcpStream::connect(own_address(state)).await.map_err(|e| lost(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| lost(&e))?;
    let connection = tokio::spawn(connection);
    let answer = async {
        let response = sender.send_request(request).await.map_err(|e| lost(&e))?;
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MOST);
        let body = body.collect().await.map_err(|e| (status.as_u16(), format!("The answer broke off: {e}.")))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    };
    let answer: Result<(StatusCode, String), (u16, String)> = answer.await;
    connection.abort();
    let (status, text) = answer?;
    let code = status.as_u16();
    if status.is_success() && text.contains(dialect.expected) {
        return Ok((code, format!("{} answered as {client} expects.", dialect.path)));
    }
    if status == StatusCode::NOT_FOUND && !is_served(state, dialect.path).await {
        return Err((code, format!("{} is not served yet, and {client} needs it.", dialect.path)));
    }
    let told: Value = serde_json::from_str(&text).unwrap_or_default();
    let message = told["error"]["message"].as_str().map(str::to_owned);
    Err((code, message.unwrap_or_else(|| format!("{} answered with status {code} and not as expected.", dialect.path))))
}
