//! Models on disk: importing GGUF files, opening and checking model folders, finding them, and Hearth's own state folder.
//!
//! Nothing here computes with weights: no MLX, no HTTP. Everything works on headers, so that opening or listing takes milliseconds
//! however large the weights are; only [`gguf::import_gguf`] reads and writes weight bytes, in constant memory.

mod error;
pub mod folder;
pub mod gguf;
pub mod headers;
pub mod home;
mod json;
pub mod scan;
pub mod summary;

pub use error::LibraryError;
