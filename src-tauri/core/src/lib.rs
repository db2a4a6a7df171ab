//! What every part of Hearth shares, and nothing that computes: model configs and cache layouts as data,
//! requests, events, errors, text handling, statistics, and the [`Backend`] trait between server and engine.
//! No MLX and no HTTP in here.
//!
//! ```
//! use hearth_core::sampling::SamplingParams;
//! let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
//! assert!(greedy.validate(32_000).is_ok());
//! ```

pub mod backend;
pub mod config;
pub mod detokenizer;
pub mod error;
pub mod event;
pub mod files;
pub mod fit;
pub mod kv_policy;
pub mod layout;
pub mod limits;
pub mod model_settings;
pub mod quantization;
pub mod request;
pub mod rope;
pub mod sampling;
pub mod stats;
pub mod stop;
pub mod tokenizer;

pub use backend::{Backend, Generation, ServedModel};
pub use error::{CoreError, EngineError};
pub use event::{Event, Finish, FinishReason};
pub use limits::{Limits, LimitsPreview};
pub use request::GenerateRequest;
