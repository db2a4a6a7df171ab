//! Models, caches, sampling and the scheduler, on one thread that owns every array.
//!
//! [`Engine::start`] spawns the engine thread and returns an [`EngineHandle`]: Send, Clone, and the `Backend` that
//! the server talks to. Nothing outside this crate ever holds an MLX array.

mod cache;
pub mod convert;
#[allow(dead_code, unused_imports)]
mod disk;
mod error;
mod guard;
mod handle;
mod layers;
mod ledger;
mod limits;
mod loader;
mod models;
mod namespace;
mod prompt_cache;
mod rooms;
mod row;
mod sampler;
mod scheduler;
mod sizes;
mod step;
mod unpack;
mod weights;
mod worker;

pub mod lookups;
pub mod parity;

pub use error::Error;
pub use handle::{CacheOptions, Engine, EngineHandle, EngineOptions, MemoryOptions, Serving};
