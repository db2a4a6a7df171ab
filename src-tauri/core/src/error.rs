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
    /// The name fits several models (404 `model_not_found`).
    #[error("{}", ambiguous(name, candidates))]
    ModelAmbiguous {
        /// The name that was asked for.
        name: String,
        /// The ids that it fits.
        candidates: Vec<String>,
    },
    /// Nothing is loaded by a request until somebody loads a model: the last server did not end in order (404).
    #[error(
        "model `{model}` is on this computer, and not loaded: the last server did not end in order, so a request loads \
         nothing until you have started a model in the dashboard, or ended this server and run `hearth serve {model}`"
    )]
    ModelHeld {
        /// The model's id.
        model: String,
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
    /// The prompt can never fit into the memory budget (400 `context_length_exceeded`).
    #[error(
        "the prompt has {prompt} tokens and the context limit is {limit}, which is what the memory budget has room for: the \
         prompt needs {} with the model, and the budget is {}; shorten the prompt by {} or more, or raise --memory-budget",
        more(*needed, *budget).0, more(*needed, *budget).1, count((prompt + 1).saturating_sub(*limit).max(1))
    )]
    PromptBeyondMemory {
        /// Prompt length in tokens.
        prompt: usize,
        /// The context that the budget has room for, in tokens.
        limit: usize,
        /// Bytes that model, reserve and this prompt would need: more than the budget.
        needed: u64,
        /// The budget in bytes.
        budget: u64,
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
    /// There is no memory for the request now (503 `insufficient_memory` with Retry-After).
    #[error(
        "not enough memory now: the request needs {} and {} can be had within the budget of {}; try again in {retry_after_s} s",
        more(*needed, *free).0, more(*needed, *free).1, bytes(*budget)
    )]
    InsufficientMemory {
        /// Bytes that the request would take: more than `free`.
        needed: u64,
        /// Bytes that could be had.
        free: u64,
        /// The budget in bytes.
        budget: u64,
        /// Suggested wait in seconds.
        retry_after_s: u64,
    },
    /// There is no memory for the model as long as others are pinned (503 `insufficient_memory`).
    #[error(
        "{model} needs {} and {} can be had within the budget of {} while {} stay{} pinned; unpin {}, or raise \
         --memory-budget",
        more(*needed, *free).0, more(*needed, *free).1, bytes(*budget), pinned.join(" and "),
        if pinned.len() == 1 { "s" } else { "" }, if pinned.len() == 1 { "it" } else { "one" }
    )]
    BehindPinned {
        /// The model's id.
        model: String,
        /// Bytes that it would take at least: more than `free`.
        needed: u64,
        /// Bytes that could be had.
        free: u64,
        /// The budget in bytes.
        budget: u64,
        /// The ids of those that do not leave.
        pinned: Vec<String>,
    },
    /// The model cannot be loaded within the memory budget (400 `model_too_large`, and exit code 3 in the CLI).
    #[error(
        "{model} needs {} ({} of weights, {} in reserve, the rest for a context of {context} tokens) and the memory budget is \
         {}: raise --memory-budget, lower --reserve, or take a smaller model",
        more(*needed, *budget).0, bytes(*weights), bytes(*reserve), more(*needed, *budget).1
    )]
    ModelTooLarge {
        /// The model's id.
        model: String,
        /// Bytes that it would take at least: more than `budget`.
        needed: u64,
        /// Of these, weights.
        weights: u64,
        /// Of these, the reserve.
        reserve: u64,
        /// Tokens of the shortest context that makes sense.
        context: usize,
        /// The budget in bytes.
        budget: u64,
    },
    /// The model has work and stays in memory (409 `model_in_use`).
    #[error("{model} has {} to answer; try again when that is done, or cancel it", match requests { 1 => "a request".to_owned(), n => format!("{n} requests") })]
    ModelBusy {
        /// The model's id.
        model: String,
        /// Requests that wait or run.
        requests: usize,
    },
    /// Somebody ended the request by its number (499).
    #[error("the request was cancelled by the server's user")]
    Cancelled,
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
        ("", all) => format!("no model is loaded, and the request names none; available: {}", all.join(", ")),
        (_, []) => format!("model `{name}` is not here, and no model is loaded; start one with `hearth serve MODEL`"),
        _ => format!("model `{name}` is not here; available: {}", available.join(", ")),
    }
}

/// What to say of a name that fits several models.
pub fn ambiguous(name: &str, candidates: &[String]) -> String {
    format!("{name:?} fits {} models: {}; give more of the name", candidates.len(), candidates.join(", "))
}

/// A number of bytes as people read it.
pub fn bytes(bytes: u64) -> String {
    let (unit, name) = unit(bytes);
    format!("{:.1} {name}", bytes as f64 / unit as f64)
}

fn unit(bytes: u64) -> (u64, &'static str) {
    match bytes {
        0..10_000 => (1, "B"),
        10_000..10_000_000 => (1000, "kB"),
        10_000_000..10_000_000_000 => (1_000_000, "MB"),
        _ => (1_000_000_000, "GB"),
    }
}

/// Two sizes, the first of which is more than the second, so that their texts say so as well: one unit, and the more
/// digits the closer they are.
fn more(large: u64, small: u64) -> (String, String) {
    let (unit, name) = unit(large);
    for digits in 0..=9 {
        let text = |n: u64| format!("{:.*} {name}", digits, n as f64 / unit as f64);
        let step = unit as f64 / 10f64.powi(digits as i32);
        if large <= small || digits > 0 && (large - small) as f64 >= step {
            return (text(large), text(small));
        }
    }
    (format!("{large} B"), format!("{small} B"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_reads_as_more() {
        for (large, small) in [
            (2_000_000_000, 1_500_000_000),
            (10_000_001, 10_000_000),
            (1_234_567_890_123, 1_234_567_890_122),
            (17, 16),
            (1, 0),
            (12_000_000_000, 11_960_000_000),
        ] {
            let (a, b) = more(large, small);
            let number = |text: &str| text.split(' ').next().unwrap().parse::<f64>().unwrap();
            assert!(number(&a) > number(&b), "{a} against {b}");
            assert_eq!(a.split(' ').nth(1), b.split(' ').nth(1), "one unit");
        }
    }

    #[test]
    fn refusals_name_both_numbers_and_the_remedy() {
        let never = EngineError::PromptBeyondMemory { prompt: 900, limit: 512, needed: 31_000_000, budget: 30_000_000 };
        let never = never.to_string();
        assert!(
            never.contains("900 tokens") && never.contains("31.0 MB") && never.contains("by 389 tokens"),
            "{never}"
        );
        let now = EngineError::InsufficientMemory { needed: 2000, free: 1999, budget: 1 << 30, retry_after_s: 5 };
        let now = now.to_string();
        assert!(now.contains("2000.0 B and 1999.0 B") || now.contains("2000 B and 1999 B"), "{now}");
        assert!(!now.contains("context"), "{now}");
        let behind = |pinned: &[&str]| {
            let pinned = pinned.iter().map(|&id| id.to_owned()).collect();
            let (needed, free, budget) = (31_000_000, 30_000_000, 1 << 30);
            EngineError::BehindPinned { model: "c".into(), needed, free, budget, pinned }.to_string()
        };
        let one = behind(&["a"]);
        assert!(one.contains("c needs 31.0 MB and 30.0 MB") && one.contains("while a stays pinned; unpin it"), "{one}");
        assert!(behind(&["a", "b"]).contains("while a and b stay pinned; unpin one, or raise --memory-budget"));
    }
}
