//! Hearth as an app in the menu bar: the whole server in one process, a picture of what it does, and its dashboard in a
//! window. The binary `hearth-desktop` is [`run`] and nothing else.

mod shell;

pub use shell::run;
