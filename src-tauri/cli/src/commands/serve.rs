//! `hearth serve`: bind, say so, load, say so, answer until told to stop.

use crate::args::ServeArgs;
use crate::client::Client;
use crate::commands::{local, model, preferences};
use crate::failure::Failure;
use crate::output::{self, say};
use hearth_core::Backend;
use hearth_core::stats::CacheStats;
use hearth_engine::{CacheOptions, EngineHandle, EngineOptions, Serving};
use hearth_host::unclean::{self, Recorder};
use hearth_host::{Host, HostError, Saved, common, has_to_be_saved, leave_at_once};
use hearth_library::home::{Home, Ownership};
use hearth_library::marker;
use hearth_library::scan::{ModelEntry, Places, scan};
use hearth_server::{ServerConfig, StartError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Serves until a signal or `hearth stop`.
///
/// # Errors
/// Before listening: a wrong option (2), no such model (3), a taken home or port (1). After: a model that cannot be
/// used (3).
pub async fn run(mut args: ServeArgs, home: &Home) -> Result<(), Failure> {
    let settings = preferences::apply(&mut args, home)?;
    let token = hearth_host::new_token()?;
    let config = config(&args, common::server(home, &settings, &args.logs, token.clone()), token);
    if config.host != "localhost" && config.host.parse::<std::net::IpAddr>().is_err() {
        return Err(Failure::usage(format!("`--host` must be an IP address or localhost; it is {}", config.host)));
    }
    if !config.is_loopback() && config.api_keys.is_empty() {
        return Err(Failure::usage(format!(
            "{} can be reached from other computers, so an API key is required: add --api-key KEY, or leave out --host",
            config.host
        )));
    }
    let places = config.places.clone();
    let cache = cache(&args, home)?;
    // From here on a signal ends the server in order, however early it comes.
    let (stop, running) = stop_on_signals()?;
    let entry = match args.model {
        None if !settings.switch("auto_load", true) => None,
        _ => model::pick(args.model.as_deref(), home)?,
    };
    let owner = home.acquire()?;
    // What was in memory when a server went down is not loaded again by itself: it may go down again.
    let left = marker::left_behind(home, &owner, unclean::boot().as_deref()).filter(|_| args.model.is_none());
    let entry = entry.filter(|_| left.is_none());
    let config = ServerConfig {
        notice: left.as_ref().map(unclean::why),
        last_model: left.as_ref().and_then(unclean::model),
        ..config
    };
    let lock = match owner {
        Ownership::Owned(lock) => lock,
        Ownership::Held(holder) => {
            return Err(Failure::no(format!(
                "{holder}; stop it with `hearth stop`, or set HEARTH_HOME to another folder to run a second one"
            )));
        }
    };
    let listening = match hearth_host::listen(home, lock, config, 0).await {
        Ok(listening) => listening,
        Err(HostError::Start(e)) => return Err(refused(e).await),
        Err(e) => return Err(e.into()),
    };
    output::line(&format!("listening on {}", listening.url()))?;

    let mut host = listening.start(EngineOptions {
        max_rows: args.max_rows as usize,
        prefill_chunk: args.engine.prefill_chunk as usize,
        context: args.engine.context.map(|n| n as usize),
        memory: local::memory(&args.engine, home),
        cache,
        // Nor does a request load anything then, before somebody has: it may go down again.
        serving: Serving { held: left.is_some(), ..serving(&args, &places, home) },
        ..EngineOptions::default()
    })?;
    let _ = running.set((host.engine().clone(), host.recorder().clone()));
    let served = answer(&mut host, stop, async |host| match (&entry, &left) {
        (None, Some(left)) => output::line(&format!("no model is loaded: {}", unclean::why(left))),
        (None, None) => output::line(&format!("no model is loaded: {}", empty(&places, home))),
        (Some(entry), _) => {
            host.loading(entry, args.engine.context.map(u64::from));
            match ready(host, entry).await {
                // Nobody asked for this one: it was the last, or the only one.
                Err(failure) if args.model.is_none() => {
                    failure.report();
                    output::line(&format!("no model is loaded: {}", empty(&places, home)))
                }
                done => done,
            }
        }
    });
    // It ends because it was told to, or says why it does.
    match served.await {
        Ok(()) => end(host, 0).await,
        Err(failure) => {
            failure.report();
            end(host, failure.code as i32).await?;
            Err(Failure { message: String::new(), ..failure })
        }
    }
}

/// How to get a model into a server that has none.
fn empty(places: &Places, home: &Home) -> String {
    match scan(places).models.iter().any(ModelEntry::is_complete) {
        true => "a request loads the one that it names, of those that `hearth ls` lists".to_owned(),
        false => model::unclear("serve", home).message,
    }
}

/// How long the prompt cache may take to get to disk when the server ends.
const SAVING: Duration = Duration::from_secs(60);

/// Ends the engine when its prompt cache is on disk, and says what became of that.
async fn end(mut host: Host, code: i32) -> Result<(), Failure> {
    let started = Instant::now();
    let saved = host.save(SAVING).await;
    let said = match &saved {
        Saved::All { bytes, dir } => {
            output::line(&format!("the prompt cache is saved: {} in {}", output::size(*bytes), dir.display()))
        }
        _ => Ok(()),
    };
    if let Some(why) = saved.lost() {
        say!("{why}");
    }
    // What a cancelled row leaves after the flush is saved by the engine itself.
    let patience = match saved {
        Saved::Nothing => local::BUSY,
        _ => SAVING.saturating_sub(started.elapsed()).max(local::BUSY),
    };
    if !host.close(patience).await {
        tracing::debug!("the engine is busy and is left behind");
        leave_at_once(code);
    }
    said
}

/// What a user hears who does not wait for the prompt cache; `None` when nothing is lost by it.
fn cut_short(cache: &CacheStats) -> Option<String> {
    let in_memory = output::counted(cache.ram.entries as u64, "entry", "entries");
    has_to_be_saved(cache).then(|| {
        format!(
            "not saved: what is not on disk yet of the prompt cache in memory ({in_memory}, {})",
            output::size(cache.ram.bytes)
        )
    })
}

/// Which models are served: the one that was named, by any name, or all that are on disk.
fn serving(args: &ServeArgs, places: &Places, home: &Home) -> Serving {
    let places = args.model.is_none().then(|| places.clone());
    Serving { ttl: args.model_ttl.and_then(|stay| stay.0), ..common::serving(home, places) }
}

/// The prompt cache's settings.
fn cache(args: &ServeArgs, home: &Home) -> Result<CacheOptions, Failure> {
    let flags = &args.cache;
    let dir = match &flags.cache_dir {
        Some(dir) => std::path::absolute(dir)
            .map_err(|e| Failure::usage(format!("`--cache-dir` {} cannot be used: {e}", dir.display())))?,
        None => home.cache(),
    };
    Ok(CacheOptions {
        ram: flags.cache_ram.unwrap_or_else(hearth_host::default_cache_ram),
        ssd: flags.cache_ssd.unwrap_or(hearth_host::DEFAULT_CACHE_SSD),
        dir: Some(dir),
        kv: preferences::kv(&flags.kv)?,
        idle: Duration::from_secs(flags.cache_idle.into()),
    })
}

/// Serves while `then` runs and after it, until `stop`; ends early when `then` fails.
async fn answer(
    host: &mut Host,
    mut stop: watch::Receiver<bool>,
    then: impl AsyncFnOnce(&mut Host) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (end, mut ended) = watch::channel(false);
    let mut server = host.serve(async move {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            _ = ended.wait_for(|end| *end) => {}
        }
    });
    let ended_early = |e: tokio::task::JoinError| Failure::no(format!("the server ended: {e}"));
    let done = tokio::select! {
        // A signal during the load ends the server, and with it the wait for the load.
        ended = &mut server => return ended.map_err(ended_early),
        done = then(host) => done,
    };
    if done.is_err() {
        end.send_replace(true);
    }
    let ended = server.await.map_err(ended_early);
    // `end` lives until here: a dropped sender would end the wait as well.
    drop(end);
    done.and(ended)
}

/// Loads the model and says so.
async fn ready(host: &mut Host, entry: &ModelEntry) -> Result<(), Failure> {
    let started = Instant::now();
    let model = model::load(host.engine(), entry).await?;
    host.loaded(entry, &model)?;
    let took = started.elapsed().as_secs_f64();
    output::line(&format!("ready: {} ({} tokens context, loaded in {took:.1} s)", model.id, model.context))
}

/// The server's settings: these, and what the flags say of who may reach it.
fn config(args: &ServeArgs, common: ServerConfig, token: String) -> ServerConfig {
    let mut api_keys = args.api_keys.clone();
    if !api_keys.is_empty() {
        // `hearth ps` and `hearth run` have the admin token, and no API key.
        api_keys.push(token);
    }
    ServerConfig {
        host: args.host.clone(),
        port: args.port,
        api_keys,
        allowed_hosts: args.allow_hosts.clone(),
        allowed_origins: args.allow_origins.clone(),
        keep_client_headers: args.keep_client_headers,
        // With the engine's own second this stays under the three that a stop may take.
        shutdown_grace: Duration::from_millis(1500),
        ..common
    }
}

/// Why binding failed, and who has the port if it is another Hearth.
async fn refused(e: StartError) -> Failure {
    match &e {
        StartError::InUse { address } => {
            let health = match Client::new(&format!("http://{address}"), None) {
                Ok(client) => client.health().await.ok(),
                Err(_) => None,
            };
            match health {
                Some(health) => Failure::no(format!("{e}; it is a Hearth {}", local::doing(&health))),
                None => Failure::no(e.to_string()),
            }
        }
        StartError::KeyRequired { .. } | StartError::EmptyKey | StartError::Host { .. } => {
            Failure::usage(e.to_string())
        }
        StartError::Bind { .. } => Failure::no(e.to_string()),
    }
}

/// The engine and what records it, once there are any.
type Running = Arc<OnceLock<(EngineHandle, Recorder)>>;

/// Turns true at the first SIGINT, SIGTERM or SIGHUP. A second one ends the process at once, and says what the engine
/// has not saved, once there is one.
fn stop_on_signals() -> Result<(watch::Receiver<bool>, Running), Failure> {
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        signals.push(signal(kind).map_err(|e| Failure::no(format!("cannot watch for signals: {e}")))?);
    }
    let (send, receive) = watch::channel(false);
    let seen = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let running = Running::default();
    for mut one in signals {
        let (send, seen, running) = (send.clone(), seen.clone(), running.clone());
        tokio::spawn(async move {
            while one.recv().await.is_some() {
                if seen.swap(true, std::sync::atomic::Ordering::Relaxed) {
                    if let Some((engine, recorder)) = running.get() {
                        // Whoever presses twice knows what was running.
                        recorder.end();
                        if let Some(lost) = cut_short(&engine.stats().cache) {
                            say!("{lost}");
                        }
                    }
                    leave_at_once(130);
                }
                send.send_replace(true);
            }
        });
    }
    Ok((receive, running))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{RamCacheStats, SsdCacheStats, SsdState};

    #[test]
    fn who_does_not_wait_hears_what_is_lost() {
        let ram = RamCacheStats { entries: 1, bytes: 12_400_000, ..RamCacheStats::default() };
        let ssd = SsdCacheStats { state: SsdState::Ready, ..SsdCacheStats::default() };
        let said = cut_short(&CacheStats { ram: ram.clone(), ssd: ssd.clone() }).unwrap();
        assert!(said.starts_with("not saved: ") && said.ends_with("(1 entry, 12.4 MB)"), "{said}");
        assert_eq!(cut_short(&CacheStats { ram, ssd: SsdCacheStats::default() }), None, "the tier is off");
        assert_eq!(cut_short(&CacheStats { ram: RamCacheStats::default(), ssd }), None, "nothing is there");
    }
}
