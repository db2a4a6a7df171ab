//! `GET` and `PUT /api/hearth/settings`.

use super::{Settings, SettingsError, reply};
use crate::body::JsonObject;
use crate::desktop;
use crate::error::ServerError;
use crate::session::random_hex;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use hearth_core::Limits;
use hearth_core::error::bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl From<SettingsError> for ServerError {
    fn from(e: SettingsError) -> Self {
        match &e {
            SettingsError::Unknown(name, _) | SettingsError::Value { name, .. } => {
                ServerError::param(name.clone(), e.to_string())
            }
            SettingsError::Io { .. }
            | SettingsError::Syntax { .. }
            | SettingsError::Line { .. }
            | SettingsError::NoKey { .. } => ServerError::bad(e.to_string()),
        }
    }
}

/// `GET /api/hearth/settings`.
pub(crate) async fn read(State(state): State<AppState>) -> Json<Value> {
    Json(reply(&state.config().settings))
}

/// `PUT /api/hearth/settings`: changes some; null takes one back to its default. What the engine refuses is not kept.
pub(crate) async fn write(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ServerError> {
    let settings = state.config().settings.clone();
    let mut values: BTreeMap<String, Value> = body.into_iter().collect();
    settings.check(&values)?;
    check_reserve(&state, &values)?;
    if let Some(on) = values.get("launch_at_login") {
        desktop::launch_at_login(&state, on.as_bool().unwrap_or(false)).await?;
    }
    make_key(&settings, &mut values)?;
    let limits = limits(&values);
    if limits != Limits::default() {
        state.backend().set_limits(limits).await?;
    }
    settings.set(&values)?;
    if let Some(on) = values.get("inspector") {
        state.inspector().switch(on.as_bool().unwrap_or(true));
    }
    Ok(Json(reply(&settings)))
}

/// A reserve that leaves nothing of the budget would let no model load at the next start.
fn check_reserve(state: &AppState, values: &BTreeMap<String, Value>) -> Result<(), ServerError> {
    let Some(reserve) = values.get("reserve").and_then(Value::as_u64) else { return Ok(()) };
    let budget = values.get("memory_budget").and_then(Value::as_u64);
    let budget = budget.unwrap_or_else(|| state.backend().stats().memory.ledger.budget);
    if budget > 0 && reserve >= budget {
        let (budget, reserve) = (bytes(budget), bytes(reserve));
        let text = format!("reserve must be less than the memory budget of {budget}; it is {reserve}");
        return Err(ServerError::param("reserve", text));
    }
    Ok(())
}

/// The part of the values that the engine takes while it runs.
fn limits(values: &BTreeMap<String, Value>) -> Limits {
    let bytes = |name: &str| values.get(name).and_then(Value::as_u64);
    let count = |name: &str| bytes(name).and_then(|n| usize::try_from(n).ok());
    Limits {
        budget: bytes("memory_budget"),
        cache_ram: bytes("cache_ram"),
        cache_ssd: bytes("cache_ssd"),
        context: count("context"),
        max_rows: count("max_rows"),
    }
}

/// Whoever asks for a key, or opens the server to other machines, gets one.
fn make_key(settings: &Settings, values: &mut BTreeMap<String, Value>) -> Result<(), ServerError> {
    let then = |name: &str| values.get(name).cloned().unwrap_or_else(|| settings.get(name));
    // Also who takes the key away and leaves the switch on: without one the next start would be refused.
    if (then("lan") == true || then("api_key_required") == true) && then("api_key").is_null() {
        values.insert("api_key".into(), json!(format!("sk-hearth-{}", random_hex()?)));
    }
    Ok(())
}
