//! Limits of memory, context and rows while the server runs, and the end of single requests.

use crate::body::JsonObject;
use crate::error::ServerError;
use crate::json::brief;
use crate::state::AppState;
use axum::Json;
use axum::extract::{Path, State};
use hearth_core::{Limits, LimitsPreview};
use serde_json::{Map, Value, json};

const NAMES: &str = "budget, cache_ram, cache_ssd, context, max_rows";

/// `GET /api/hearth/limits`: the limits that hold.
pub(crate) async fn show(State(state): State<AppState>) -> Json<Limits> {
    Json(state.backend().limits())
}

/// `PUT /api/hearth/limits`: changes those that are given, at once; answers all of them.
pub(crate) async fn change(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Json<Limits>, ServerError> {
    Ok(Json(state.backend().set_limits(read(&body)?).await?))
}

/// `POST /api/hearth/limits/preview`: what limits would mean; changes nothing.
pub(crate) async fn preview(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Json<LimitsPreview>, ServerError> {
    Ok(Json(state.backend().preview_limits(read(&body)?)?))
}

/// `POST /api/hearth/requests/{id}/cancel`: ends a request that waits or runs. The number is that of `rows` in `/stats`.
pub(crate) async fn cancel(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Value>, ServerError> {
    let number = || id.parse::<u64>().ok().filter(|id| state.backend().cancel(*id));
    match number() {
        Some(id) => Ok(Json(json!({"id": id, "cancelled": true}))),
        None => Err(ServerError::NotRunning { id }),
    }
}

/// Limits of a body: whole numbers, `null` for one that stays.
fn read(body: &Map<String, Value>) -> Result<Limits, ServerError> {
    let mut limits = Limits::default();
    for (name, value) in body {
        let number = match value {
            Value::Null => continue,
            value => value.as_u64(),
        };
        let wrong = || {
            let message = format!("`{name}` must be a whole number from 0 on; it is {}", brief(value));
            ServerError::param(name.clone(), message)
        };
        let bytes = || number.ok_or_else(wrong);
        let count = || bytes().and_then(|n| usize::try_from(n).map_err(|_| wrong()));
        match name.as_str() {
            "budget" => limits.budget = Some(bytes()?),
            "cache_ram" => limits.cache_ram = Some(bytes()?),
            "cache_ssd" => limits.cache_ssd = Some(bytes()?),
            "context" => limits.context = Some(count()?),
            "max_rows" => limits.max_rows = Some(count()?),
            _ => {
                return Err(ServerError::param(name.clone(), format!("expected one of {NAMES}; found `{name}`")));
            }
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_whole_numbers_by_name() {
        let map = |value: Value| value.as_object().cloned().unwrap_or_default();
        let all = read(&map(json!({"budget": 5, "cache_ram": 0, "cache_ssd": null, "context": 7, "max_rows": 2})));
        let expected =
            Limits { budget: Some(5), cache_ram: Some(0), cache_ssd: None, context: Some(7), max_rows: Some(2) };
        assert_eq!(all, Ok(expected));
        for wrong in [json!({"budget": -1}), json!({"budget": "5GB"}), json!({"context": 1.5}), json!({"rows": 1})] {
            let error = read(&map(wrong.clone())).unwrap_err();
            let name = wrong.as_object().unwrap().keys().next().unwrap().clone();
            assert_eq!(error.param_name(), Some(&*name), "{error}");
        }
    }
}
