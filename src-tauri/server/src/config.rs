//! What the server can be told before it starts, and why it may refuse to start.

use crate::desktop::Desktop;
use crate::logs::LogRing;
use crate::session::Sessions;
use crate::settings::Settings;
use hearth_library::download::DownloadManager;
use hearth_library::learned::Log;
use hearth_library::scan::Places;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where measurements are kept, and which of them count.
#[derive(Debug, Clone)]
pub struct Learning {
    /// The log.
    pub log: Log,
    /// The engine's version of MLX.
    pub mlx: String,
}

/// Settings of the HTTP server. [`ServerConfig::default`] is loopback only, without keys.
#[derive(Clone)]
pub struct ServerConfig {
    /// Address or name to bind; beyond loopback only with [`ServerConfig::api_keys`].
    pub host: String,
    /// Port; 0 lets the system choose.
    pub port: u16,
    /// Keys that requests may carry as `Authorization: Bearer …` or `x-api-key`. Empty: any key, or none, will do.
    pub api_keys: Vec<String>,
    /// `Host` names accepted besides loopback, with or without a port (`host.docker.internal`).
    pub allowed_hosts: Vec<String>,
    /// Origins of pages that may use the API, besides its own; `*` at the end matches any rest
    /// (`vscode-webview://*`), `*` alone any origin.
    pub allowed_origins: Vec<String>,
    /// Largest body of a request, in bytes; over it: 413.
    pub body_limit: usize,
    /// Leave a client's volatile header line at the start of the system prompt where it is. Without this it is taken
    /// out: it is new with every request, and neither the prompt cache nor the model has any use for it.
    pub keep_client_headers: bool,
    /// The key of the admin routes; without one they refuse everything.
    pub admin_token: Option<String>,
    /// What `/health` says beside `empty`: why no model was loaded.
    pub notice: Option<String>,
    /// And what finds the model that was in memory then.
    pub last_model: Option<String>,
    /// What was measured on this machine, for `fit`.
    pub learning: Option<Learning>,
    /// Downloads models; without it those routes say that there are none.
    pub downloads: Option<DownloadManager>,
    /// Where models are looked for by name, beside the loaded one.
    pub places: Places,
    /// What the user set, and where each value comes from.
    pub settings: Settings,
    /// `models.toml`, where pins are kept; without it they end with the process.
    pub models_toml: Option<PathBuf>,
    /// The last log lines.
    pub logs: LogRing,
    /// Browsers that were let in; whoever starts a server anew hands them on.
    pub sessions: Sessions,
    /// The app around the server, where there is one.
    pub desktop: Option<Arc<dyn Desktop>>,
    /// A stream that was silent this long gets a comment, so that clients do not time out.
    pub ping_interval: Duration,
    /// A stream's headers are sent when its row is admitted, and at the latest after this long.
    pub header_delay: Duration,
    /// Time for a request's headers, and for the silence between two pieces of its body.
    pub read_timeout: Duration,
    /// Most connections at once; further ones wait in the system's queue.
    pub max_connections: usize,
    /// After a shutdown began, running responses get this long before they are cut.
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            host: "127.0.0.1".into(),
            port: 8080,
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            body_limit: 32 * 1024 * 1024,
            keep_client_headers: false,
            admin_token: None,
            notice: None,
            last_model: None,
            learning: None,
            downloads: None,
            places: Places::default(),
            settings: Settings::default(),
            models_toml: None,
            logs: LogRing::default(),
            sessions: Sessions::default(),
            desktop: None,
            ping_interval: Duration::from_secs(10),
            header_delay: Duration::from_secs(10),
            read_timeout: Duration::from_secs(60),
            max_connections: 1024,
            shutdown_grace: Duration::from_secs(2),
        }
    }
}

/// Keys stay out of logs.
impl std::fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerConfig")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("api_keys", &self.api_keys.len())
            .field("allowed_hosts", &self.allowed_hosts)
            .field("allowed_origins", &self.allowed_origins)
            .field("body_limit", &self.body_limit)
            .field("keep_client_headers", &self.keep_client_headers)
            .field("admin_token", &self.admin_token.is_some())
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// Whether the configured host is a loopback address by its spelling; a name other than `localhost` counts
    /// as beyond loopback until it is resolved.
    pub fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// Why the server could not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The host is no address and no name that resolves.
    #[error("the host `{host}` cannot be resolved: {source}; use an address such as 127.0.0.1")]
    Host {
        /// The host as it was given.
        host: String,
        /// The resolver's answer.
        source: std::io::Error,
    },
    /// Bound beyond loopback without keys: anyone on the network could use the server.
    #[error("{address} can be reached from other machines, so an API key is required; give one, or bind 127.0.0.1")]
    KeyRequired {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// An empty key would let everyone in.
    #[error("an API key or admin token is empty; give it a value or leave it out")]
    EmptyKey,
    /// Another program listens there.
    #[error("port {} on {} is in use; choose another port, or stop the program that holds it", address.port(), address.ip())]
    InUse {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The operating system refused the address.
    #[error("{address} cannot be bound: {source}")]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
}
