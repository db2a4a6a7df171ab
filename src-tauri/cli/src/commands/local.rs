//! A server inside this process, for commands that need one and find none running.

use crate::args::EngineArgs;
use crate::commands::model;
use crate::failure::Failure;
use hearth_core::stats::Health;
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions, MemoryOptions};
use hearth_library::home::Home;
use hearth_library::learned::Log;
use hearth_server::{ServerConfig, bind, serve};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long an engine with nothing to save may take to end.
pub const BUSY: Duration = Duration::from_secs(1);

/// A server on a free port of loopback, for this process only.
pub struct Local {
    url: String,
    engine: EngineHandle,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Local {
    /// Loads the model and serves it.
    ///
    /// # Errors
    /// When there is no clear model, or it cannot be used.
    pub async fn start(name: Option<&str>, home: &Home) -> Result<Self, Failure> {
        let Some(entry) = model::pick(name, home)? else {
            return Err(model::unclear("run", home));
        };
        // A chat's turns find each other in memory; nothing of it stays on disk.
        let cache = CacheOptions { ram: hearth_host::default_cache_ram(), ssd: 0, ..CacheOptions::default() };
        let engine = Engine::start(EngineOptions { cache, ..EngineOptions::default() })?;
        model::load(&engine, &entry).await?;
        let config = ServerConfig { port: 0, shutdown_grace: Duration::from_millis(200), ..ServerConfig::default() };
        let bound = bind(config).await.map_err(|e| Failure::no(e.to_string()))?;
        let url = bound.url();
        let (stop, stopped) = oneshot::channel();
        let backend = Arc::new(engine.clone());
        let task = tokio::spawn(serve(bound, backend, async { drop(stopped.await) }));
        Ok(Local { url, engine, stop, task })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends server and engine.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
        shut_down(self.engine, BUSY, 0).await;
    }
}

/// What a Hearth is doing, for a sentence about one.
pub fn doing(health: &Health) -> String {
    match health {
        Health::Ready { model } => format!("that serves {model}"),
        Health::Loading { model, percent } => format!("that is still loading {model} ({percent} %)"),
        Health::Empty => "without a model".to_owned(),
        Health::Failed { message } => format!("that failed: {message}"),
    }
}

/// What the flags and what was measured say about memory.
pub fn memory(args: &EngineArgs, home: &Home) -> MemoryOptions {
    MemoryOptions {
        budget: args.memory_budget,
        budget_from: args.budget_from().to_owned(),
        reserve: args.reserve,
        learned: Some(Log::of(home)),
        ..MemoryOptions::default()
    }
}

/// Ends the engine, and waits `patience` for it. One that is in the middle of a long computation is not waited for any
/// longer: the process ends without running its exit handlers, since MLX's would pull away what the engine thread still
/// uses. `code` is its exit code then.
pub async fn shut_down(engine: EngineHandle, patience: Duration, code: i32) {
    let ended = tokio::task::spawn_blocking(move || engine.shutdown());
    if tokio::time::timeout(patience, ended).await.is_err() {
        tracing::debug!("the engine is busy and is left behind");
        hearth_host::leave_at_once(code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_loads_is_not_one_without_a_model() {
        let loading = Health::Loading { model: "m".into(), percent: 40 };
        assert_eq!(doing(&loading), "that is still loading m (40 %)");
        assert_eq!(doing(&Health::Empty), "without a model");
    }
}
