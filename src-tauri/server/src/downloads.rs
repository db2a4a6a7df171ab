//! Downloads over HTTP: asked for, listed, paused, resumed, cancelled; and searching the hub.

use crate::body::JsonObject;
use crate::error::ServerError;
use crate::state::AppState;
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use hearth_library::LibraryError;
use hearth_library::download::{Download, DownloadManager};
use hearth_library::hub::HubError;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

/// How many models a search shows.
const FOUND: usize = 30;

/// `GET /api/hearth/downloads`: all jobs, the oldest first.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Json<Value>, ServerError> {
    let manager = manager(&state)?.clone();
    let downloads = state.prepare(move || Ok(manager.list())).await?;
    Ok(Json(json!({"downloads": downloads})))
}

/// `POST /api/hearth/downloads {repo, revision?}`: begins a job, or goes on with the one for the same model.
pub(crate) async fn start(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Json<Download>, ServerError> {
    let repo = text(&body, "repo")?.ok_or_else(|| {
        ServerError::param("repo", "repo is missing; expected the name of a model on the hub, such as org/name")
    })?;
    let revision = text(&body, "revision")?;
    if let Some(other) = body.keys().find(|k| !matches!(k.as_str(), "repo" | "revision")) {
        return Err(ServerError::param(other, format!("expected the fields repo and revision, found {other:?}")));
    }
    let manager = manager(&state)?.clone();
    state.prepare(move || manager.start(&repo, revision.as_deref()).map_err(refused)).await.map(Json)
}

/// `GET /api/hearth/downloads/{id}`.
pub(crate) async fn one(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Download>, ServerError> {
    let manager = manager(&state)?.clone();
    state.prepare(move || manager.get(&id).map_err(refused)).await.map(Json)
}

/// `POST /api/hearth/downloads/{id}/pause`, `…/resume` and `…/cancel`.
pub(crate) async fn act(
    State(state): State<AppState>,
    Path((id, verb)): Path<(String, String)>,
) -> Result<Json<Download>, ServerError> {
    let manager = manager(&state)?.clone();
    let work = move || match verb.as_str() {
        "pause" => manager.pause(&id).map_err(refused),
        "resume" => manager.resume(&id).map_err(refused),
        "cancel" => manager.cancel(&id).map_err(refused),
        _ => Err(ServerError::RouteNotFound {
            method: "POST".to_owned(),
            path: format!("/api/hearth/downloads/{id}/{verb}"),
        }),
    };
    state.prepare(work).await.map(Json)
}

/// `GET /api/hearth/search?q=TEXT`: models for MLX on the hub, the most downloaded first.
pub(crate) async fn search(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ServerError> {
    let text = parameter(query.as_deref().unwrap_or_default(), "q")?
        .filter(|q| !q.trim().is_empty())
        .ok_or_else(|| ServerError::param("q", "q is missing; expected a text to look for"))?;
    let hub = manager(&state)?.hub().map_err(|e| refused(e.into()))?.clone();
    let models = hub.search(text.trim(), FOUND).await.map_err(|e| refused(e.into()))?;
    Ok(Json(json!({"models": models})))
}

/// The download manager, where this server has one.
pub(crate) fn manager(state: &AppState) -> Result<&DownloadManager, ServerError> {
    state.config().downloads.as_ref().ok_or_else(|| ServerError::Refused {
        status: StatusCode::NOT_IMPLEMENTED,
        code: "no_downloads",
        message: "this server does not download models".to_owned(),
    })
}

/// One parameter of a query, decoded; any other name is refused.
pub(crate) fn parameter(query: &str, wanted: &str) -> Result<Option<String>, ServerError> {
    let mut found = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != wanted {
            return Err(ServerError::param(name, format!("expected the parameter {wanted}, found {name:?}")));
        }
        let value = value.replace('+', " ");
        let decoded = percent_decode_str(&value).decode_utf8();
        let decoded = decoded.map_err(|_| ServerError::bad("the query is not UTF-8 once it is decoded"))?;
        found = Some(decoded.into_owned());
    }
    Ok(found)
}

fn text(body: &Map<String, Value>, name: &str) -> Result<Option<String>, ServerError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(ServerError::param(name, format!("{name}: expected a text, found {other}"))),
    }
}

/// What the library refused, with its status.
pub(crate) fn refused(e: LibraryError) -> ServerError {
    let message = e.to_string();
    let (status, code) = match &e {
        LibraryError::Hub(HubError::BadRepo { .. }) => return ServerError::param("repo", message),
        LibraryError::Hub(HubError::BadRevision { .. }) => return ServerError::param("revision", message),
        LibraryError::NoDownload { .. } => (StatusCode::NOT_FOUND, "download_not_found"),
        LibraryError::NotFound { .. } => (StatusCode::NOT_FOUND, "model_not_found"),
        LibraryError::Ambiguous { .. } => return ServerError::param("model", message),
        LibraryError::NotOurs { .. } => (StatusCode::CONFLICT, "not_ours"),
        LibraryError::Downloading { .. } => (StatusCode::CONFLICT, "downloading"),
        LibraryError::Hub(HubError::NoRepo { .. } | HubError::NoRevision { .. }) => {
            (StatusCode::NOT_FOUND, "repo_not_found")
        }
        LibraryError::Hub(HubError::Unreachable { .. }) => (StatusCode::BAD_GATEWAY, "hub_unreachable"),
        LibraryError::Hub(_) => (StatusCode::BAD_GATEWAY, "hub_refused"),
        LibraryError::DiskFull { .. } | LibraryError::NoSpace { .. } => (StatusCode::INSUFFICIENT_STORAGE, "disk_full"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "library_error"),
    };
    ServerError::Refused { status, code, message }
}
