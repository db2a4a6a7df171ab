//! GGUF: reading such a file and importing it, losslessly, as a Hugging Face/MLX model folder.
//!
//! `reader` parses and checks the header, `config` and `tokenizer` turn its metadata into `config.json` and the tokenizer files,
//! `tensors` says how each tensor type is repacked, and `import` streams the weights and puts the folder together.

mod config;
mod import;
mod pretokenizer;
mod reader;
mod rope;
mod tensors;
mod tokenizer;

pub use import::{ImportReport, import_gguf};
pub use reader::{GgufFile, GgufTensor, TensorType, Value};
