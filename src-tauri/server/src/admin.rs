//! The admin API under `/api/hearth/`; its key is checked before a request gets here.

use crate::error::ServerError;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use hearth_core::stats::{CacheClear, CacheFlush, CacheStats};
use serde_json::{Value, json};

/// `POST /api/hearth/shutdown`: the server stops, running responses first get their grace.
pub(crate) async fn shutdown(State(state): State<AppState>) -> Json<Value> {
    state.stop();
    Json(json!({"status": "stopping"}))
}

/// `GET /api/hearth/cache`: the prompt cache's figures, as `/stats` has them.
pub(crate) async fn cache(State(state): State<AppState>) -> Json<CacheStats> {
    Json(state.backend().stats().cache)
}

/// `POST /api/hearth/cache/flush`: answers when all of the prompt cache is on disk; `failed` says what is not.
pub(crate) async fn flush_cache(State(state): State<AppState>) -> Result<Json<CacheFlush>, ServerError> {
    Ok(Json(state.backend().flush_cache().await?))
}

/// `POST /api/hearth/cache/clear`: empties both tiers of the prompt cache.
pub(crate) async fn clear_cache(State(state): State<AppState>) -> Result<Json<CacheClear>, ServerError> {
    Ok(Json(state.backend().clear_cache().await?))
}
