//! quantization
