//! The models on disk over HTTP: the list, loading and unloading, pinning, and removing one; and the catalogue of models
//! that could be.

use crate::body::JsonObject;
use crate::downloads::{manager, parameter, refused};
use crate::error::ServerError;
use crate::settings::ModelsFile;
use crate::state::AppState;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use hearth_core::EngineError;
use hearth_core::stats::Health;
use hearth_library::catalogue::{Catalogue, Preview};
use hearth_library::remove::{self, Removal};
use hearth_library::scan;
use hearth_library::shelf::{self, LibraryModel};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// A load that ends within this time, well or not, is answered with its end.
const MOMENT: Duration = Duration::from_millis(300);

/// `GET /api/hearth/models`: every model on disk with what it can do and whether it fits; places that cannot be read now.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Json<Value>, ServerError> {
    let cards = state.backend().models().await;
    let (_, loading) = in_memory(&state);
    let (places, asked) = (state.config().places.clone(), state.clone());
    let work = move || {
        let found = scan::scan(&places);
        let models: Vec<Value> = shelf::describe_all(found.models, &asked.machine())
            .into_iter()
            .map(|model| {
                let card = cards.iter().find(|card| card.id == model.entry.id);
                let loaded = card.is_some_and(|card| card.loaded);
                let state = state_of(&model, loaded, loading.as_deref());
                let mut value = serde_json::to_value(&model).unwrap_or_default();
                value["state"] = state.into();
                value["pinned"] = card.is_some_and(|card| card.pinned).into();
                value
            })
            .collect();
        Ok(json!({"models": models, "away": found.away, "importable": found.importable}))
    };
    state.prepare(work).await.map(Json)
}

/// `GET /api/hearth/catalogue`: the built-in list of models, with what is on disk and what the hub has said of it.
pub(crate) async fn catalogue(State(state): State<AppState>) -> Result<Json<Value>, ServerError> {
    let places = state.config().places.clone();
    let (manager, asked) = (state.config().downloads.clone(), state.clone());
    let work = move || {
        let list = Catalogue::built_in().map_err(refused)?;
        let here: BTreeSet<String> = scan::scan(&places).models.into_iter().map(|m| m.id).collect();
        let machine = asked.machine();
        let models: Vec<Value> = list
            .models
            .iter()
            .map(|model| {
                let said = manager.as_ref().and_then(|m| m.known_preview(&model.repo));
                let mut value = serde_json::to_value(model).unwrap_or_default();
                value["size_class"] = model.size_class().into();
                value["on_disk"] = here.contains(&model.repo).into();
                value["bytes"] = said.as_ref().and_then(|p| p.bytes).or(model.bytes).into();
                let fit = said.and_then(|p| p.fit).or_else(|| model.estimate(&machine));
                value["fit"] = serde_json::to_value(fit).unwrap_or_default();
                value
            })
            .collect();
        Ok(json!({"version": list.version, "date": list.date, "models": models}))
    };
    state.prepare(work).await.map(Json)
}

/// `GET /api/hearth/catalogue/preview?repo=ORG/NAME`: what the hub says of any model: bytes, and whether it fits on this machine, from
/// headers alone.
pub(crate) async fn preview(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<Preview>, ServerError> {
    let repo = parameter(query.as_deref().unwrap_or_default(), "repo")?
        .ok_or_else(|| ServerError::param("repo", "repo is missing; expected the name of a model on the hub"))?;
    let asked = state.clone();
    let here = state.prepare(move || Ok(asked.machine())).await?;
    manager(&state)?.preview(&repo, &here).await.map(Json).map_err(refused)
}

/// `POST /api/hearth/models/load {"model"}`: begins to load a model, and answers 202 with its id while it does; 200 where
/// it is in memory within a moment. What goes wrong later is in `/health` and the log.
pub(crate) async fn load(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<(StatusCode, Json<Value>), ServerError> {
    let name = named(&body, &["model"])?;
    let (backend, told) = (state.backend().clone(), state.clone());
    let wanted = name.clone();
    // It goes on when the client is gone.
    let mut load = tokio::spawn(async move {
        let loaded = backend.load_model(&wanted).await;
        if let Err(error) = &loaded {
            tracing::warn!(%error, "a model is not loaded");
            // With another model in memory `/health` goes on being about that one.
            told.events().publish("load_failed", &json!({"model": wanted, "message": error.to_string()}));
        }
        loaded
    });
    match tokio::time::timeout(MOMENT, &mut load).await {
        Err(_) => Ok((StatusCode::ACCEPTED, Json(json!({"model": name})))),
        Ok(Ok(loaded)) => Ok((StatusCode::OK, Json(json!({"model": loaded?.id})))),
        Ok(Err(error)) => Err(ServerError::Internal(error.to_string())),
    }
}

/// `POST /api/hearth/models/unload {"model"}`: takes a model, named as in a request, out of memory: its id, and the bytes
/// that are free then.
pub(crate) async fn unload(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ServerError> {
    let name = named(&body, &["model"])?;
    let gone = state.backend().unload_model(&name).await?;
    Ok(Json(json!({"model": gone.id, "freed": gone.freed})))
}

/// `POST /api/hearth/models/pin {"model", "pinned"}`: whether a model stays in memory whatever else is asked for, now and,
/// by `models.toml`, after the next start.
pub(crate) async fn pin(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ServerError> {
    let name = named(&body, &["model", "pinned"])?;
    let pinned = body.get("pinned").and_then(Value::as_bool);
    let pinned = pinned.ok_or_else(|| ServerError::param("pinned", "`pinned` must be true or false"))?;
    let mut ids: Vec<String> = state.backend().models().await.into_iter().map(|model| model.id).collect();
    let name = state.backend().stands_for(&name);
    let fitting = scan::fitting(&name, ids.iter().map(String::as_str));
    let name = match *fitting {
        [only] => ids.swap_remove(only),
        [] => return Err(EngineError::ModelNotFound { name, available: ids }.into()),
        _ => {
            let candidates = fitting.iter().filter_map(|&n| ids.get(n).cloned()).collect();
            return Err(EngineError::ModelAmbiguous { name, candidates }.into());
        }
    };
    if let Some(path) = state.config().models_toml.clone() {
        let id = name.clone();
        // What cannot be kept is not begun: the file says why.
        state.prepare(move || Ok(ModelsFile::set_pin(&path, &id, pinned)?)).await?;
    }
    state.backend().pin_model(&name, pinned);
    Ok(Json(json!({"model": name, "pinned": pinned})))
}

/// `model` of a body that has no other fields than these.
fn named(body: &Map<String, Value>, fields: &[&str]) -> Result<String, ServerError> {
    if let Some(name) = body.keys().find(|name| !fields.contains(&name.as_str())) {
        return Err(ServerError::param(name, format!("expected {}; found `{name}`", fields.join(", "))));
    }
    match body.get("model").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(ServerError::param("model", "`model` must be the id of a model")),
    }
}

/// The ids of the loaded models and of the loading one.
fn in_memory(state: &AppState) -> (Vec<String>, Option<String>) {
    let loading = match state.backend().health() {
        Health::Loading { model, .. } => Some(model),
        _ => None,
    };
    (state.backend().stats().models.into_iter().map(|m| m.id).collect(), loading)
}

fn state_of(model: &LibraryModel, loaded: bool, loading: Option<&str>) -> &'static str {
    let id = Some(model.entry.id.as_str());
    match () {
        () if loaded => "loaded",
        () if loading == id => "loading",
        () if !model.complete => "incomplete",
        () if !model.entry.is_complete() => "unusable",
        () => "on_disk",
    }
}

/// `GET /api/hearth/models/removal?model=ID`: what removing it would free, and what would stay.
pub(crate) async fn removal(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<Removal>, ServerError> {
    let (model, _) = asked(query.as_deref().unwrap_or_default())?;
    let places = state.config().places.clone();
    state.prepare(move || planned(&model, &places)).await.map(Json)
}

/// `DELETE /api/hearth/models?model=ID[&foreign=true]`: removes it; `foreign` for one that Hearth has not made.
pub(crate) async fn delete(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<Removal>, ServerError> {
    let (model, foreign) = asked(query.as_deref().unwrap_or_default())?;
    let places = state.config().places.clone();
    let (loaded, loading) = in_memory(&state);
    let work = move || {
        let removal = planned(&model, &places)?;
        if loaded.iter().chain(&loading).any(|id| *id == removal.id) {
            return Err(ServerError::Refused {
                status: StatusCode::CONFLICT,
                code: "model_in_use",
                message: format!("{} is loaded; unload it first", removal.id),
            });
        }
        remove::remove(&removal, foreign).map_err(refused)
    };
    state.prepare(work).await.map(Json)
}

fn planned(model: &str, places: &scan::Places) -> Result<Removal, ServerError> {
    let entry = scan::find(model, places).map_err(refused)?;
    // A part of a name is good enough to look at a model, not to remove it.
    if entry.id != model {
        return Err(ServerError::param("model", format!("model: expected the whole id {}, found {model:?}", entry.id)));
    }
    remove::plan(&entry).map_err(refused)
}

/// `model` and `foreign` of a query.
fn asked(query: &str) -> Result<(String, bool), ServerError> {
    let (mut model, mut foreign) = (None, false);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8();
        let value = value.map_err(|_| ServerError::bad("the query is not UTF-8 once it is decoded"))?;
        match (name, &*value) {
            ("model", id) if !id.is_empty() => model = Some(id.to_owned()),
            ("foreign", "true") => foreign = true,
            ("foreign", "false") => foreign = false,
            ("model" | "foreign", _) => {
                return Err(ServerError::param(
                    name,
                    format!("{name}: expected an id, or true or false; found {value:?}"),
                ));
            }
            _ => return Err(ServerError::param(name, format!("expected model or foreign, found {name:?}"))),
        }
    }
    model.map(|m| (m, foreign)).ok_or_else(|| ServerError::param("model", "model is missing; expected an id"))
}
