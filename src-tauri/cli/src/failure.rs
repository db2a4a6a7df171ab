//! Why a command did not do what it was asked: a sentence for the user and the exit code that goes with it.

use hearth_core::{CoreError, EngineError};
use hearth_host::HostError;
use hearth_library::LibraryError;
use std::fmt;
use std::process::ExitCode;

/// The documented exit codes beside 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The answer is no.
    No = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A model or file is unusable.
    Unusable = 3,
    /// The server cannot be reached.
    Unreachable = 4,
}

/// A command's failure.
#[derive(Debug)]
pub struct Failure {
    /// What the process exits with.
    pub code: Code,
    /// What the user reads; empty when everything has been said.
    pub message: String,
}

impl Failure {
    /// The answer is no.
    pub fn no(message: impl Into<String>) -> Self {
        Failure { code: Code::No, message: message.into() }
    }

    /// The command line is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure { code: Code::Usage, message: message.into() }
    }

    /// A model or file is unusable.
    pub fn unusable(message: impl Into<String>) -> Self {
        Failure { code: Code::Unusable, message: message.into() }
    }

    /// The server cannot be reached.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Failure { code: Code::Unreachable, message: message.into() }
    }

    /// Prints the message and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            crate::output::say!("error: {}", self.message);
        }
        ExitCode::from(self.code as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<CoreError> for Failure {
    fn from(e: CoreError) -> Self {
        Failure::unusable(e.to_string())
    }
}

impl From<LibraryError> for Failure {
    fn from(e: LibraryError) -> Self {
        Failure::unusable(e.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(e: EngineError) -> Self {
        let code = match &e {
            EngineError::ModelUnusable(_)
            | EngineError::ModelNotFound { .. }
            | EngineError::ModelAmbiguous { .. }
            | EngineError::ModelTooLarge { .. } => Code::Unusable,
            EngineError::InvalidRequest { .. } => Code::Usage,
            _ => Code::No,
        };
        Failure { code, message: e.to_string() }
    }
}

impl From<HostError> for Failure {
    fn from(e: HostError) -> Self {
        match e {
            HostError::Library(e) => e.into(),
            HostError::Engine(e) => e.into(),
            HostError::Io(e) => e.into(),
            HostError::Settings(e) => Failure::unusable(e.to_string()),
            HostError::Start(e) => Failure::no(e.to_string()),
        }
    }
}

/// Everything unforeseen: the answer is no.
impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        Failure::no(format!("{e:#}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Failure::no(e.to_string())
    }
}
