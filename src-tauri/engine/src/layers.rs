//! The parts that models are built from. Data goes through as `[tokens, width]`: the tokens of all rows of a
//! step, one row's after another's, so that linear layers see one matrix and only attention knows about rows.

pub mod attention;
pub mod decoder;
pub mod embedding;
pub mod gated_delta;
pub mod linear;
pub mod mlp;
pub mod norm;
pub mod rotary;
pub mod short_conv;
