//! What can go wrong inside the engine. At the border it becomes hearth-core's `EngineError`.

use hearth_core::{CoreError, EngineError};
use hearth_mlx::MlxError;

/// An error inside the engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// MLX refused an operation.
    #[error(transparent)]
    Mlx(#[from] MlxError),
    /// A model's files are not usable.
    #[error(transparent)]
    Model(#[from] CoreError),
    /// A layer was given a cache of another kind: the model's file and its cache layout disagree.
    #[error("a cache of another kind for a layer of {layer}: a mistake in the model's code")]
    WrongCache {
        /// The layer's kind.
        layer: &'static str,
    },
    /// A cached state is not what this model's layers keep.
    #[error("a cached state does not fit the model: found {found}")]
    Stored {
        /// What was found.
        found: String,
    },
}

/// The engine's result.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for EngineError {
    fn from(e: Error) -> Self {
        match e {
            Error::Mlx(e) => EngineError::Compute { message: e.to_string() },
            Error::Model(e) => EngineError::ModelUnusable(e),
            e @ (Error::WrongCache { .. } | Error::Stored { .. }) => EngineError::Compute { message: e.to_string() },
        }
    }
}
