//! hearth-core
