//! `/health` and `/stats`: whether the server can answer, and the engine's figures.

use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hearth_core::stats::{Health, Stats};
use serde::Serialize;

/// What `/health` answers.
#[derive(Serialize)]
pub(crate) struct Body {
    #[serde(flatten)]
    health: Health,
    /// Why no model is loaded, where there is something to say. A failed one has its own message.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// And what finds the model that was in memory then.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_model: Option<String>,
}

/// `GET /health`: 200 once a model is ready; until then 503 with the load's progress.
pub(crate) async fn health(State(state): State<AppState>) -> Response {
    let health = state.backend().health();
    let status = match &health {
        Health::Ready { .. } => StatusCode::OK,
        Health::Loading { .. } | Health::Empty | Health::Failed { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    let loading = matches!(health, Health::Loading { .. });
    let body = Json(told(&state, health));
    let mut response = (status, body).into_response();
    if loading {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A state of health as clients see it.
pub(crate) fn told(state: &AppState, health: Health) -> Body {
    let there = health == Health::Empty;
    let said = |text: &Option<String>| text.clone().filter(|_| there);
    Body { message: said(&state.config().notice), last_model: said(&state.config().last_model), health }
}

/// `GET /stats`.
pub(crate) async fn stats(State(state): State<AppState>) -> Json<Stats> {
    Json(state.backend().stats())
}
