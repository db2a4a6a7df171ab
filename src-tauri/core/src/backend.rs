//! The border between server and engine. The server knows only [`Backend`]; the engine implements it for real
//! models, and tests implement it with a script, so that API tests run in milliseconds.

use crate::error::EngineError;
use crate::event::Event;
use crate::limits::{Limits, LimitsPreview};
use crate::request::GenerateRequest;
use crate::stats::{CacheClear, CacheFlush, Health, Stats};
use crate::tokenizer::Tokenizer;
use serde_json::Value;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A boxed future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the server needs of an engine.
pub trait Backend: Send + Sync + 'static {
    /// Every model that a request may name, the loaded ones first.
    fn models(&self) -> BoxFuture<'_, Vec<ModelCard>>;

    /// The model for a request's `model` field; `None` or `""` is the loaded one. May wait for a load.
    ///
    /// # Errors
    /// `ModelNotFound`, `Loading`, `ModelUnusable`, `EngineLost`.
    fn resolve<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>>;

    /// Loads a model that is named as in a request; at once where it is in memory. Others that nobody uses leave where it
    /// needs their room.
    ///
    /// # Errors
    /// `ModelNotFound`, `ModelUnusable`, `ModelTooLarge`, `InsufficientMemory`, `BehindPinned`,
    /// `EngineLost`.
    fn load_model<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>>;

    /// Takes a model that is named as in a request out of memory.
    ///
    /// # Errors
    /// `ModelBusy` while requests wait for it or run, `ModelNotFound` where it is not in memory, `EngineLost`.
    fn unload_model<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Unloaded, EngineError>>;

    /// The id that another name of the user's stands for; a name that is none of those as it is.
    fn stands_for(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Whether the model of this id stays in memory, once it is there, whatever else is asked for.
    fn pin_model(&self, id: &str, pinned: bool);

    /// How long a model stays in memory without work from now on; `None`: until another one needs its room. No time: it
    /// leaves when what runs has ended.
    fn keep_alive(&self, model: &ServedModel, stay: Option<Duration>);

    /// Queues one generation on a resolved model; one that has left memory since is loaded again. Never blocks.
    ///
    /// # Errors
    /// `ContextLengthExceeded`, `PromptBeyondMemory`, `InvalidRequest`, `Overloaded`, `EngineLost`, `ShuttingDown`.
    fn submit(&self, model: &ServedModel, request: GenerateRequest) -> Result<Generation, EngineError>;

    /// Whether a model is ready, and the load's progress until it is.
    fn health(&self) -> Health;

    /// The engine's figures.
    fn stats(&self) -> Stats;

    /// Writes every entry of the prompt cache to disk; ready when all of it is durable, and says what is not.
    ///
    /// # Errors
    /// `EngineLost`.
    fn flush_cache(&self) -> BoxFuture<'_, Result<CacheFlush, EngineError>>;

    /// Empties both tiers of the prompt cache.
    ///
    /// # Errors
    /// `EngineLost`.
    fn clear_cache(&self) -> BoxFuture<'_, Result<CacheClear, EngineError>>;

    /// Changes limits at once; answers those that hold then.
    ///
    /// # Errors
    /// `InvalidRequest` naming the limit, when the loaded model would not fit (with by how much) or a number is out of
    /// its range; nothing is changed then. `EngineLost`.
    fn set_limits(&self, limits: Limits) -> BoxFuture<'_, Result<Limits, EngineError>>;

    /// The limits that hold.
    fn limits(&self) -> Limits;

    /// What these limits would mean; changes nothing.
    ///
    /// # Errors
    /// `InvalidRequest` naming a limit that is out of its range.
    fn preview_limits(&self, limits: Limits) -> Result<LimitsPreview, EngineError>;

    /// Ends a generation: its events end with `Failed`, for `EngineError::Cancelled`. False when there is none of this
    /// number.
    fn cancel(&self, id: u64) -> bool;
}

/// One running generation. Dropping it cancels the row within one step.
#[derive(Debug)]
pub struct Generation {
    /// The row's number, unique in this process.
    pub id: u64,
    /// Its events; bounded, and a slow reader pauses only its own row.
    pub events: mpsc::Receiver<Event>,
}

/// A model that has left memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unloaded {
    /// Its id.
    pub id: String,
    /// Bytes that are free now.
    pub freed: u64,
}

/// A model that requests may name.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ModelCard {
    /// The id that responses carry.
    pub id: String,
    /// Seconds since the epoch at which the model's files were made known.
    pub created: u64,
    /// Whether it is in memory.
    pub loaded: bool,
    /// `loaded`, `loading`, or `on_disk`.
    pub state: &'static str,
    /// Whether it stays in memory once it is there.
    pub pinned: bool,
    /// The context limit in tokens.
    pub context: usize,
}

/// Everything about a loaded model that a request needs before it reaches the engine.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// The id that responses carry.
    pub id: String,
    /// The folder it was loaded from.
    pub path: PathBuf,
    /// `model_type` of its config.
    pub model_type: String,
    /// Seconds since the epoch, for `/v1/models`.
    pub created: u64,
    /// Context limit in tokens, prompt and answer together.
    pub context: usize,
    /// Rows of the LM head; token ids must be below it.
    pub vocab_size: usize,
    /// End-of-sequence ids: the union of config, generation_config and tokenizer.
    pub eos: Vec<u32>,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template's source, if the model has one.
    pub chat_template: Option<String>,
    /// `tokenizer_config.json`, whose special tokens templates refer to.
    pub tokenizer_config: Arc<Value>,
    /// `generation_config.json`, the model's own sampling defaults (an empty object when absent).
    pub generation_config: Arc<Value>,
}

impl ServedModel {
    /// Refuses a text that is too long for the context even if it were made of the longest tokens only: tokenizing
    /// megabytes takes seconds.
    ///
    /// # Errors
    /// `PromptTooLong`.
    pub fn check_length(&self, text: &str) -> Result<(), EngineError> {
        let least = text.len() / self.tokenizer.longest_token().max(1);
        if least < self.context {
            return Ok(());
        }
        Err(EngineError::PromptTooLong { bytes: text.len(), least, limit: self.context })
    }
}
