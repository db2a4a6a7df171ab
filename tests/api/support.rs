//! A server on a free port of 127.0.0.1 with a scripted backend.

use hearth_server::testing::ScriptedBackend;
use hearth_server::{ServerConfig, bind, serve};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A running server; dropping it stops it.
pub struct Server {
    pub url: String,
    pub backend: Arc<ScriptedBackend>,
    _stop: oneshot::Sender<()>,
}

/// Starts a server with default settings.
pub async fn start(backend: ScriptedBackend) -> Server {
    start_with(backend, ServerConfig::default()).await
}

/// Starts a server with these settings, on a free port.
pub async fn start_with(backend: ScriptedBackend, config: ServerConfig) -> Server {
    let backend = Arc::new(backend);
    let bound = bind(ServerConfig { port: 0, ..config }).await.unwrap();
    let url = bound.url();
    let (stop, stopped) = oneshot::channel::<()>();
    let engine = backend.clone();
    tokio::spawn(async move {
        serve(bound, engine, async {
            let _ = stopped.await;
        })
        .await;
    });
    Server { url, backend, _stop: stop }
}

/// Waits until this holds; gives up after some seconds.
pub async fn eventually(what: &str, check: impl Fn() -> bool) {
    for _ in 0..1000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}
