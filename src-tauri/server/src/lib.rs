//! hearth-server
