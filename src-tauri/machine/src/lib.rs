//! hearth-machine
