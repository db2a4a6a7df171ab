//! Models on disk and on the hub: importing GGUF files, opening and checking model folders, finding, downloading and removing them,
//! and Hearth's own state folder.
//!
//! Nothing here computes with weights: no MLX, and no HTTP server. Everything works on headers, so that opening or listing takes
//! milliseconds however large the weights are; only [`gguf::import_gguf`] and [`download`] read and write weight bytes, in constant
//! memory.

pub mod capabilities;
pub mod catalogue;
pub mod download;
mod error;
pub mod folder;
pub mod gguf;
pub mod headers;
mod hf_cache;
pub mod home;
pub mod hub;
mod json;
pub mod learned;
pub mod marker;
mod opening;
pub mod remove;
pub mod scan;
pub mod shelf;
pub mod staging;
pub mod summary;
pub mod watch;

pub use error::LibraryError;
