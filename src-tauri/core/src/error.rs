//! The errors that cross crate borders: a model that cannot be used, and a request that cannot be answered.
//! Their texts are what users read, in the CLI, the API and the UI alike.

use std::path::PathBuf;

/// Why a model folder, or something in it, cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CoreError {
    /// A file that the model needs is not there.
    #[error("{}: missing; {expected}", file.display())]
    Missing {
        /// The file that was looked for.
        file: PathBuf,
        /// What it should hold, or who refers to it.
        expected: String,
    },
    /// A file is there and does not say what it should.
    #[error("{}: {what}: expected {expected}, found {found}", file.display())]
    Invalid {
        /// The file at fault.
        file: PathBuf,
        /// The field, tensor or region at fault.
        what: String,
        /// What would have been right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The model is fine, but of a kind that Hearth does not run.
    #[error("{}: {what} `{found}` is not supported; supported: {supported}", file.display())]
    Unsupported {
        /// The file that says so.
        file: PathBuf,
        /// What is not supported (`model_type`, `rope_type`, …).
        what: String,
        /// Its value.
        found: String,
        /// The values that are.
        supported: String,
    },
    /// The folder's files are not usable together; the text names the file, what was expected and what was found.
    #[error("{0}")]
    Folder(String),
    /// The operating system refused.
    #[error("{}: {message}", file.display())]
    Io {
        /// The file or folder at fault.
        file: PathBuf,
        /// The system's own words.
        message: String,
    },
}

/// Why a request was refused or ended. Every variant maps to one status code in each dialect.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// No model of that name (404 `model_not_found`).
    #[error("{}", not_found(name, available))]
    ModelNotFound {
        /// The name in the request.
        name: String,
        /// What could have been asked for.
        available: Vec<String>,
    },
    /// The model is still loading (503 with Retry-After).
    #[error("the model is still loading ({percent} %); try again in a moment")]
    Loading {
        /// Load progress in percent.
        percent: u8,
    },
    /// The model cannot be loaded or used (500, and exit code 3 in the CLI).
    #[error("{0}")]
    ModelUnusable(CoreError),
    /// The prompt can never fit (400 `context_length_exceeded`).
    #[error("the prompt has {prompt} tokens and the context limit is {limit}; shorten the prompt by {} or more", count(prompt + 1 - limit))]
    ContextLengthExceeded {
        /// Prompt length in tokens.
        prompt: usize,
        /// The context limit in tokens, prompt and answer together.
        limit: usize,
    },
    /// The prompt is so long that counting its tokens is not worth while (400 `context_length_exceeded`).
    #[error(
        "the prompt has {bytes} bytes, which are {least} tokens or more, and the context limit is {limit}; shorten the prompt"
    )]
    PromptTooLong {
        /// Prompt length in bytes.
        bytes: usize,
        /// Tokens that it has at least.
        least: usize,
        /// The context limit in tokens, prompt and answer together.
        limit: usize,
    },
    /// A parameter is out of its range (400).
    #[error("{message}")]
    InvalidRequest {
        /// The parameter's name as clients write it.
        param: String,
        /// What is wrong with it, its range, and the value.
        message: String,
    },
    /// Too many requests wait already (429 with Retry-After).
    #[error("{waiting} requests are waiting already and the limit is {limit}; try again in {retry_after_s} s")]
    Overloaded {
        /// Requests in the queue.
        waiting: usize,
        /// The queue's limit.
        limit: usize,
        /// Suggested wait in seconds.
        retry_after_s: u64,
    },
    /// The request waited longer than the limit (503 with Retry-After).
    #[error("the request waited {waited_s} s for a free row and none came; try again in {retry_after_s} s")]
    WaitedTooLong {
        /// How long it waited, in seconds.
        waited_s: u64,
        /// Suggested wait in seconds.
        retry_after_s: u64,
    },
    /// A step or a row failed while computing (500).
    #[error("the engine could not compute this request: {message}")]
    Compute {
        /// What MLX or the engine said.
        message: String,
    },
    /// The engine thread ended (503); it is started anew.
    #[error("the engine stopped and is being restarted; try again in a moment")]
    EngineLost,
    /// Hearth is shutting down (503).
    #[error("Hearth is shutting down")]
    ShuttingDown,
}

fn not_found(name: &str, available: &[String]) -> String {
    match (name, available) {
        ("", []) => "no model is loaded; start one with `hearth serve MODEL`".to_owned(),
        (_, []) => format!("model `{name}` is not here, and no model is loaded; start one with `hearth serve MODEL`"),
        _ => format!("model `{name}` is not here; available: {}", available.join(", ")),
    }
}

/// "1 token", "2 tokens".
fn count(tokens: usize) -> String {
    format!("{tokens} token{}", if tokens == 1 { "" } else { "s" })
}

impl EngineError {
    /// A refusal of one parameter: its name, what is allowed, what was given.
    pub fn param(param: &str, allowed: &str, found: impl std::fmt::Display) -> Self {
        EngineError::InvalidRequest {
            param: param.to_owned(),
            message: format!("`{param}` must be {allowed}; it is {found}"),
        }
    }
}
