//! `/health` and `/stats`: whether the server can answer, and the engine's figures.

use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hearth_core::stats::{Health, Stats};

/// `GET /health`: 200 once a model is ready; until then 503 with the load's progress.
pub(crate) async fn health(State(state): State<AppState>) -> Response {
    let health = state.backend().health();
    let status = match &health {
        Health::Ready { .. } => StatusCode::OK,
        Health::Loading { .. } | Health::Empty | Health::Failed { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    let loading = matches!(health, Health::Loading { .. });
    let mut response = (status, Json(health)).into_response();
    if loading {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// `GET /stats`.
pub(crate) async fn stats(State(state): State<AppState>) -> Json<Stats> {
    Json(state.backend().stats())
}
