//! hearth-cli
fn main() {}
