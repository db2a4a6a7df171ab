//! `/v1/models` and `/v1/models/{id}`.

use crate::error::ServerError;
use crate::state::AppState;
use axum::Json;
use axum::extract::{Request, State};
use hearth_core::EngineError;
use hearth_core::backend::ModelCard;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

/// `GET /v1/models`.
pub(crate) async fn list(State(state): State<AppState>) -> Json<Value> {
    let data: Vec<Value> = state.backend().models().await.iter().map(card).collect();
    Json(json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{id}`; the id's slashes may be percent-encoded or not.
pub(crate) async fn one(State(state): State<AppState>, request: Request) -> Result<Json<Value>, ServerError> {
    let raw = request.uri().path().strip_prefix("/v1/models/").unwrap_or_default();
    let name = percent_decode_str(raw).decode_utf8_lossy();
    let models = state.backend().models().await;
    let id = state.backend().stands_for(&name);
    match models.iter().find(|m| m.id == id) {
        Some(model) => Ok(Json(card(model))),
        None => {
            let available = models.into_iter().map(|m| m.id).collect();
            Err(EngineError::ModelNotFound { name: name.into_owned(), available }.into())
        }
    }
}

fn card(model: &ModelCard) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "hearth",
        "loaded": model.loaded,
        "state": model.state,
        "pinned": model.pinned,
        "max_model_len": model.context,
    })
}
