//! The admin API under `/api/hearth/`; its key is checked before a request gets here.

use crate::error::ServerError;
use crate::state::AppState;
use axum::Json;
use axum::extract::{RawQuery, State};
use hearth_core::stats::{CacheClear, CacheFlush, CacheStats};
use hearth_machine::preflight::{self, Report};
use percent_encoding::percent_decode_str;
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

/// `GET /api/hearth/preflight`: readings of this machine and what is wrong with them, as `hearth preflight --json` shows
/// them; the status is 200 either way. `allow_cpu_process=CMD`, any number of times, forgives CPU use.
pub(crate) async fn preflight(RawQuery(query): RawQuery) -> Result<Json<Report>, ServerError> {
    let allow = allowed_commands(query.as_deref().unwrap_or_default())?;
    // The server's own process is exempt by itself. CPU use takes a while to measure: not on a thread that serves.
    let report = tokio::task::spawn_blocking(move || preflight::run(&allow, &[])).await;
    report.map(Json).map_err(|e| ServerError::Internal(format!("the preflight did not end: {e}")))
}

/// The values of `allow_cpu_process` in a query.
fn allowed_commands(query: &str) -> Result<Vec<String>, ServerError> {
    const NAME: &str = "allow_cpu_process";
    let decoded = |text: &str| -> Result<String, ServerError> {
        let text = text.replace('+', " ");
        let bytes = percent_decode_str(&text).decode_utf8();
        bytes.map(|text| text.into_owned()).map_err(|_| ServerError::bad("the query is not UTF-8 once it is decoded"))
    };
    let mut commands = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (decoded(name)?, decoded(value)?) {
            (name, _) if name != NAME => {
                return Err(ServerError::param(name.clone(), format!("expected the parameter {NAME}, found {name:?}")));
            }
            (_, command) if command.is_empty() => {
                return Err(ServerError::param(NAME, format!("{NAME} is empty; expected an exact command line")));
            }
            (_, command) => commands.push(command),
        }
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_query() {
        let read = |query: &str| allowed_commands(query).unwrap();
        assert_eq!(read(""), [""; 0]);
        let two = read("allow_cpu_process=make+-j2&allow_cpu_process=a%26b%20%2Bc%3D%C3%BC=1&");
        assert_eq!(two, ["make -j2", "a&b +c=ü=1"]);
        for (query, word) in [
            ("allow_cpu_process", "empty"),
            ("allow_cpu_process=", "empty"),
            ("allow=x", "found \"allow\""),
            ("allow_cpu_process=%ff", "UTF-8"),
        ] {
            let refusal = allowed_commands(query).unwrap_err().to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
    }
}
