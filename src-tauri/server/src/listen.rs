//! Binding the address, accepting connections, and ending them all in good time.

use crate::config::{ServerConfig, StartError};
use crate::routes::router;
use crate::state::AppState;
use hearth_core::Backend;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// A bound address; [`serve`] answers on it. Connections made before that wait.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    config: ServerConfig,
}

impl Bound {
    /// The address in use, with the port that the system chose if 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The base URL for clients on this machine, without a trailing slash.
    pub fn url(&self) -> String {
        let host = match self.address.ip() {
            ip if ip.is_unspecified() => "127.0.0.1".to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        format!("http://{host}:{}", self.address.port())
    }
}

/// Binds the address of the config.
///
/// # Errors
/// [`StartError`]: the name does not resolve, the port is taken, or keys are missing beyond loopback.
pub async fn bind(config: ServerConfig) -> Result<Bound, StartError> {
    if config.api_keys.iter().chain(&config.admin_token).any(|key| key.trim().is_empty()) {
        return Err(StartError::EmptyKey);
    }
    let host = config.host.trim_start_matches('[').trim_end_matches(']');
    let address = match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, config.port),
        Err(_) => resolve(host, config.port).await?,
    };
    if !address.ip().is_loopback() && config.api_keys.is_empty() {
        return Err(StartError::KeyRequired { address });
    }
    let listener = TcpListener::bind(address).await.map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => StartError::InUse { address },
        _ => StartError::Bind { address, source },
    })?;
    let address = listener.local_addr().map_err(|source| StartError::Bind { address, source })?;
    Ok(Bound { listener, address, config })
}

async fn resolve(host: &str, port: u16) -> Result<SocketAddr, StartError> {
    let failed = |source| StartError::Host { host: host.to_owned(), source };
    let mut all: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect();
    all.sort_by_key(|a| !a.is_ipv4()); // what clients that are told a name try first, mostly
    all.first().copied().ok_or_else(|| failed(ErrorKind::NotFound.into()))
}

/// Answers until `shutdown` resolves or an admin asks for it. Then nothing new is accepted, idle connections
/// close, and running responses get the config's grace; whatever is left is cut, which cancels its rows.
pub async fn serve(bound: Bound, backend: Arc<dyn Backend>, shutdown: impl Future<Output = ()>) {
    let Bound { listener, config, address } = bound;
    let (read_timeout, grace) = (config.read_timeout, config.shutdown_grace);
    let slots = Arc::new(Semaphore::new(config.max_connections.max(1)));
    let state = AppState::new(config, backend);
    state.set_address(address);
    let mut background = JoinSet::new();
    background.spawn(crate::events::pump(state.clone()));
    background.spawn(crate::events::downloads(state.clone()));
    background.spawn(crate::events::folders(state.clone()));
    background.spawn(crate::logs::pump(state.clone()));
    let service = TowerToHyperService::new(router(state.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(read_timeout);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let (stream, permit) = tokio::select! {
            () = &mut shutdown => break,
            () = state.stopped() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &slots) => accepted,
        };
        let _ = stream.set_nodelay(true);
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service.clone()));
        connections.spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    // Event streams never end by themselves.
    state.stop();
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::info!(open = connections.len(), "cutting the responses that are still running");
    }
    connections.shutdown().await;
}

/// The next connection, once there is a slot for it.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    let permit = slots.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            // Out of file descriptors, or the client is gone again: neither ends the server.
            Err(e) => {
                tracing::warn!(error = %e, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
