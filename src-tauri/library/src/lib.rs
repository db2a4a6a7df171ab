//! hearth-library
