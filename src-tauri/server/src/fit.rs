//! `GET /api/hearth/fit`: whether a model fits on this machine, as `hearth fit --json` shows it. `model` is an id, or a
//! clear part of one, never a path; without it the loaded model is meant.

use crate::config::Learning;
use crate::error::ServerError;
use crate::settings::ModelsFile;
use crate::state::AppState;
use axum::Json;
use axum::extract::{RawQuery, State};
use hearth_core::EngineError;
use hearth_core::fit::learned::Learned;
use hearth_core::fit::memory::Sizing;
use hearth_core::fit::{self, Ask, MOST_CONTEXT, Machine, Report};
use hearth_core::kv_policy::{Asked, KvPolicy};
use hearth_core::model_settings::ModelSettings;
use hearth_library::learned::key_of;
use hearth_library::{LibraryError, headers, scan};
use hearth_machine::chips;
use percent_encoding::percent_decode_str;
use std::path::{Path, PathBuf};

/// The parameters.
#[derive(Debug, Default, PartialEq)]
struct Query {
    model: Option<String>,
    context: Option<u64>,
    memory_budget: Option<u64>,
    kv_bits: Option<u8>,
    skus: bool,
}

const NAMES: &str = "model, context, memory_budget, kv_bits, skus";

/// Answers the question that the query is.
pub(crate) async fn fit(State(state): State<AppState>, RawQuery(query): RawQuery) -> Result<Json<Report>, ServerError> {
    let query = Query::read(query.as_deref().unwrap_or_default())?;
    let loaded = match query.model {
        Some(_) => None,
        None => Some(state.backend().resolve(None).await?),
    };
    let (places, learning) = (state.config().places.clone(), state.config().learning.clone());
    let models = state.config().models_toml.clone();
    let asked = state.clone();
    let work = move || {
        let (id, path) = match (&query.model, loaded) {
            (Some(name), _) => {
                let entry = scan::resolve_id(name, &places).map_err(refused)?;
                (entry.id, entry.path)
            }
            (None, Some(model)) => (model.id.clone(), model.path.clone()),
            (None, None) => (String::new(), PathBuf::new()),
        };
        let own = models.and_then(|file| ModelsFile::open(&file).models.remove(&id)).unwrap_or_default();
        report(&id, &path, &query, &own, asked.machine(), learning.as_ref())
    };
    state.prepare(work).await.map(Json)
}

fn report(
    id: &str,
    path: &Path,
    query: &Query,
    own: &ModelSettings,
    here: Machine,
    learning: Option<&Learning>,
) -> Result<Report, ServerError> {
    let (model, _) = headers::model(path).map_err(refused)?;
    let asked = Asked::bits(query.kv_bits.or(own.kv_bits));
    let kv = KvPolicy::for_model(path, model.shape.layers, &asked).map_err(|e| refused(e.into()))?;
    let learned = match learning {
        Some(Learning { log, mlx }) => {
            let key = key_of(id, path, here.device, &kv, mlx).map_err(refused)?;
            log.of_key(&key, Sizing::new(&model, &here, &kv).weights())
        }
        None => Learned::default(),
    };
    let context = query.context.or(own.context.map(|tokens| (tokens as u64).min(model.shape.context)));
    let ask = Ask { context, budget: query.memory_budget, kv, learned };
    let skus = query.skus.then(chips::skus);
    Ok(fit::report(id, path, &model, &here, &ask, skus.as_deref()))
}

/// What is wrong with the name, or with the model.
fn refused(e: LibraryError) -> ServerError {
    match e {
        LibraryError::NotFound { name, available } => EngineError::ModelNotFound { name, available }.into(),
        LibraryError::Ambiguous { .. } => ServerError::param("model", e.to_string()),
        LibraryError::Config(e) => EngineError::ModelUnusable(e).into(),
        other => EngineError::ModelUnusable(hearth_core::CoreError::Folder(other.to_string())).into(),
    }
}

impl Query {
    fn read(query: &str) -> Result<Self, ServerError> {
        let mut read = Query::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            let wrong = |expected: &str| {
                ServerError::param(name.clone(), format!("{name}: expected {expected}, found {value:?}"))
            };
            let number = |least: u64, most: u64, expected: &str| {
                value.parse().ok().filter(|n: &u64| (least..=most).contains(n)).ok_or_else(|| wrong(expected))
            };
            match name.as_str() {
                "model" if value.is_empty() => return Err(wrong("an id or a part of one")),
                "model" => read.model = Some(value),
                "context" => {
                    let expected = format!("a whole number of tokens from 1 to {MOST_CONTEXT}");
                    read.context = Some(number(1, MOST_CONTEXT, &expected)?);
                }
                "memory_budget" => read.memory_budget = Some(number(1, u64::MAX, "a whole number of bytes from 1 on")?),
                "kv_bits" if value == "4" => read.kv_bits = Some(4),
                "kv_bits" if value == "8" => read.kv_bits = Some(8),
                "kv_bits" => return Err(wrong("4 or 8")),
                "skus" if value == "true" => read.skus = true,
                "skus" if value == "false" => read.skus = false,
                "skus" => return Err(wrong("true or false")),
                _ => {
                    let found = format!("expected one of the parameters {NAMES}, found {name:?}");
                    return Err(ServerError::param(name, found));
                }
            }
        }
        Ok(read)
    }
}

fn decoded(text: &str) -> Result<String, ServerError> {
    let text = text.replace('+', " ");
    let bytes = percent_decode_str(&text).decode_utf8();
    bytes.map(|text| text.into_owned()).map_err(|_| ServerError::bad("the query is not UTF-8 once it is decoded"))
}
