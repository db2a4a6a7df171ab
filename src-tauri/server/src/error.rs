//! Every refusal of a request: its status code, its OpenAI error envelope, and when to try again.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hearth_core::EngineError;
use serde_json::{Value, json};

/// Why a request got no answer. Becomes `{"error": {"message", "type", "param", "code"}}` with the right status.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ServerError {
    /// The request itself is wrong (400).
    #[error("{message}")]
    BadRequest {
        /// What is wrong, what is allowed, what was found.
        message: String,
        /// The parameter at fault, as the client wrote it.
        param: Option<String>,
        /// A word that programs can test.
        code: Option<&'static str>,
    },
    /// No key, or a wrong one (401).
    #[error("{0}")]
    Unauthorized(&'static str),
    /// A Host or Origin that may not use this server (403).
    #[error("{0}")]
    Forbidden(String),
    /// No such route (404).
    #[error("there is no {method} {path} here; the OpenAI routes start with /v1/")]
    RouteNotFound {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// The route is there, with another method (405).
    #[error("{path} does not take {method}")]
    MethodNotAllowed {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// No request of this number waits or runs (404).
    #[error("no request {id} waits or runs; `rows` in /stats has the numbers")]
    NotRunning {
        /// The number as it was given.
        id: String,
    },
    /// The body stopped arriving (408).
    #[error("the request's body stopped arriving for {seconds} s")]
    BodyTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The body is too large (413).
    #[error("the request's body is larger than the limit of {limit} bytes")]
    BodyTooLarge {
        /// The limit.
        limit: usize,
    },
    /// The engine refused or failed; its variant decides the status.
    #[error("{0}")]
    Engine(EngineError),
    /// Another part refused, and has said why and with which status.
    #[error("{message}")]
    Refused {
        /// The status code.
        status: StatusCode,
        /// A word that programs can test.
        code: &'static str,
        /// Why.
        message: String,
    },
    /// A defect of the server, caught (500).
    #[error("the server failed while it handled this request: {0}; please report it")]
    Internal(String),
}

impl From<EngineError> for ServerError {
    fn from(error: EngineError) -> Self {
        ServerError::Engine(error)
    }
}

impl ServerError {
    /// A 400 without a parameter.
    pub fn bad(message: impl Into<String>) -> Self {
        ServerError::BadRequest { message: message.into(), param: None, code: None }
    }

    /// A 400 that names a parameter.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        ServerError::BadRequest { message: message.into(), param: Some(param.into()), code: None }
    }

    /// A 400 for something that Hearth does not do (yet).
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        ServerError::BadRequest { message: message.into(), param: Some(param.into()), code: Some("unsupported") }
    }

    /// The status code.
    pub fn status(&self) -> StatusCode {
        match self {
            ServerError::BadRequest { .. } => StatusCode::BAD_REQUEST,
            ServerError::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            ServerError::Forbidden(_) => StatusCode::FORBIDDEN,
            ServerError::RouteNotFound { .. } | ServerError::NotRunning { .. } => StatusCode::NOT_FOUND,
            ServerError::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ServerError::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            ServerError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ServerError::Refused { status, .. } => *status,
            ServerError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            ServerError::Engine(e) => match e {
                EngineError::ModelNotFound { .. }
                | EngineError::ModelAmbiguous { .. }
                | EngineError::ModelHeld { .. } => StatusCode::NOT_FOUND,
                EngineError::ContextLengthExceeded { .. }
                | EngineError::PromptBeyondMemory { .. }
                | EngineError::ModelTooLarge { .. }
                | EngineError::PromptTooLong { .. }
                | EngineError::InvalidRequest { .. } => StatusCode::BAD_REQUEST,
                EngineError::ModelBusy { .. } => StatusCode::CONFLICT,
                EngineError::Overloaded { .. } => StatusCode::TOO_MANY_REQUESTS,
                // No standard one says it, and clients must not try this request again by themselves.
                EngineError::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::GONE),
                EngineError::Loading { .. }
                | EngineError::InsufficientMemory { .. }
                | EngineError::BehindPinned { .. }
                | EngineError::WaitedTooLong { .. }
                | EngineError::EngineLost
                | EngineError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
                EngineError::ModelUnusable(_) | EngineError::Compute { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            },
        }
    }

    /// The envelope's `type`.
    pub fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The envelope's `code`.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            ServerError::BadRequest { code, .. } => *code,
            ServerError::Unauthorized(_) => Some("invalid_api_key"),
            ServerError::Forbidden(_) => Some("forbidden"),
            ServerError::RouteNotFound { .. } => Some("not_found"),
            ServerError::NotRunning { .. } => Some("not_running"),
            ServerError::MethodNotAllowed { .. } => Some("method_not_allowed"),
            ServerError::BodyTimeout { .. } => Some("body_timeout"),
            ServerError::BodyTooLarge { .. } => Some("body_too_large"),
            ServerError::Refused { code, .. } => Some(code),
            ServerError::Internal(_) => Some("internal_error"),
            ServerError::Engine(e) => match e {
                EngineError::ModelNotFound { .. }
                | EngineError::ModelAmbiguous { .. }
                | EngineError::ModelHeld { .. } => Some("model_not_found"),
                EngineError::Loading { .. } => Some("model_loading"),
                EngineError::ModelUnusable(_) => Some("model_unusable"),
                EngineError::ContextLengthExceeded { .. }
                | EngineError::PromptBeyondMemory { .. }
                | EngineError::PromptTooLong { .. } => Some("context_length_exceeded"),
                EngineError::InsufficientMemory { .. } | EngineError::BehindPinned { .. } => {
                    Some("insufficient_memory")
                }
                EngineError::ModelTooLarge { .. } => Some("model_too_large"),
                EngineError::ModelBusy { .. } => Some("model_in_use"),
                EngineError::InvalidRequest { .. } => None,
                EngineError::Overloaded { .. } => Some("overloaded"),
                EngineError::WaitedTooLong { .. } => Some("waited_too_long"),
                EngineError::Cancelled => Some("cancelled"),
                EngineError::Compute { .. } => Some("compute_error"),
                EngineError::EngineLost => Some("engine_lost"),
                EngineError::ShuttingDown => Some("shutting_down"),
            },
        }
    }

    /// The envelope's `param`.
    pub fn param_name(&self) -> Option<&str> {
        match self {
            ServerError::BadRequest { param, .. } => param.as_deref(),
            ServerError::Engine(EngineError::InvalidRequest { param, .. }) => Some(param),
            ServerError::Engine(
                EngineError::ModelNotFound { .. } | EngineError::ModelAmbiguous { .. } | EngineError::ModelHeld { .. },
            ) => Some("model"),
            _ => None,
        }
    }

    /// Seconds after which the same request may succeed.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            ServerError::Engine(EngineError::Loading { .. } | EngineError::EngineLost) => Some(2),
            ServerError::Engine(EngineError::ShuttingDown) => Some(10),
            ServerError::Engine(
                EngineError::Overloaded { retry_after_s, .. }
                | EngineError::WaitedTooLong { retry_after_s, .. }
                | EngineError::InsufficientMemory { retry_after_s, .. },
            ) => Some((*retry_after_s).max(1)),
            _ => None,
        }
    }

    /// The error envelope.
    pub fn envelope(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param_name(),
            "code": self.code(),
        }})
    }
}

impl IntoResponse for ServerError {
    fn into_response(self) -> Response {
        if self.status().is_server_error() {
            tracing::warn!(status = self.status().as_u16(), error = ?self.to_string(), "request failed");
        }
        let mut response = (self.status(), axum::Json(self.envelope())).into_response();
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
