//! The admin API under `/api/hearth/`; its key is checked before a request gets here.

use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// `POST /api/hearth/shutdown`: the server stops, running responses first get their grace.
pub(crate) async fn shutdown(State(state): State<AppState>) -> Json<Value> {
    state.stop();
    Json(json!({"status": "stopping"}))
}
