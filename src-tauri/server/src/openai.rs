//! The OpenAI dialect.

pub(crate) mod chat;
pub(crate) mod completions;
mod logprobs;
pub(crate) mod models;
mod wire;
