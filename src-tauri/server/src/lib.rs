//! The HTTP side of Hearth: the OpenAI dialect over the [`hearth_core::Backend`] trait, chat templates, request
//! checking, streams, and the safety rules of a server on localhost. No MLX in here: tests run it against a
//! scripted backend in milliseconds.
//!
//! ```no_run
//! # async fn example(backend: std::sync::Arc<dyn hearth_core::Backend>) -> Result<(), hearth_server::StartError> {
//! let bound = hearth_server::bind(hearth_server::ServerConfig::default()).await?;
//! println!("listening on {}", bound.url());
//! hearth_server::serve(bound, backend, async { tokio::signal::ctrl_c().await.unwrap_or(()) }).await;
//! # Ok(())
//! # }
//! ```

mod admin;
mod body;
mod client_header;
mod config;
mod connect;
mod desktop;
mod downloads;
mod error;
pub mod events;
mod fit;
mod generate;
mod health;
mod inspector;
mod json;
mod limits;
mod listen;
pub mod logs;
mod models_admin;
mod openai;
mod params;
mod prompt;
mod routes;
mod safety;
mod session;
pub mod settings;
mod specials;
mod sse;
mod state;
mod template;
mod tokens;
mod transcripts;
mod ui;

#[cfg(feature = "testing")]
pub mod testing;

pub use config::{Learning, ServerConfig, StartError};
pub use connect::{Connect, ConnectClient, ConnectTest};
pub use desktop::{CommandStatus, Desktop, DesktopStatus};
pub use error::ServerError;
pub use inspector::RequestSummary;
pub use listen::{Bound, bind, serve};
pub use params::model_defaults;
pub use routes::router;
pub use session::Sessions;
pub use state::AppState;
pub use template::{ChatTemplate, RenderInput, source as template_source};
