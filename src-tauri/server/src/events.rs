//! The event stream that drives the dashboard: a ring of numbered events, and the pump that compares the engine's
//! figures with the last ones and publishes what changed, while somebody listens.
//!
//! A client that comes back with the number of its last event gets what it missed; one that missed more than the ring
//! holds, or comes from another run of the server, starts with a snapshot.

use crate::desktop::DesktopStatus;
use crate::health::{Body, told};
use crate::settings::Setting;
use crate::state::AppState;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::Stream;
use hearth_core::stats::{Health, Stats};
use hearth_library::download::DownloadState;
use hearth_library::watch as folder_watch;
use hearth_machine::probes::{Probes, System};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Events that a client may have missed and still get.
const RING: usize = 2048;
/// Events that go out as one piece.
const AT_ONCE: usize = 64;
/// How often figures are compared while somebody listens.
const PUMP: Duration = Duration::from_millis(250);
/// How often memory is noted for the chart while nobody listens.
const IDLE: Duration = Duration::from_secs(5);
/// How often the machine's own memory is read while somebody listens.
const MACHINE: Duration = Duration::from_secs(2);
/// Samples of memory kept: ten minutes at one each second.
const SAMPLES: usize = 600;
/// A process's memory moves by pages all the time; less than this is no news.
const NOISE: u64 = 8 << 20;
/// Downloads that a snapshot lists at most.
const DOWNLOADS: usize = 200;

/// Memory at one moment, for the chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct MemorySample {
    /// Milliseconds since 1970.
    pub at: u64,
    /// Bytes by category of the ledger: weights, live KV, prompt cache, prefill transient, allocator cache, reserve.
    pub parts: [u64; 6],
    /// Bytes that may be used; 0 when unknown.
    pub budget: u64,
    /// Bytes of swap in use.
    pub swap: u64,
    /// `normal`, `warning`, `critical` or `unknown`.
    pub pressure: String,
}

/// The machine's own memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct MachineMemory {
    /// Bytes installed.
    pub total: u64,
    /// Bytes that programs could still take without swapping.
    pub available: u64,
    /// Bytes of swap in use.
    pub swap_used: u64,
    /// Bytes of swap there are.
    pub swap_total: u64,
}

/// What a client starts with.
#[derive(Serialize)]
struct Snapshot {
    stats: Stats,
    health: Body,
    downloads: Vec<Value>,
    settings: Value,
    requests: Value,
    machine: MachineMemory,
    history: Vec<MemorySample>,
    /// Null for a server without the app around it.
    desktop: Option<DesktopStatus>,
    version: &'static str,
}

struct Entry {
    id: u64,
    frame: Bytes,
}

struct Ring {
    entries: VecDeque<Entry>,
    last: u64,
    /// The last event with figures: it says all that those before it said.
    figures: u64,
    downloads: BTreeMap<String, Value>,
    history: VecDeque<MemorySample>,
    machine: MachineMemory,
}

impl Ring {
    /// Empties an event that a later one says all of; its number stays.
    fn forget(&mut self, id: u64) {
        let at = self.entries.front().and_then(|first| id.checked_sub(first.id));
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at as usize)) {
            entry.frame = Bytes::new();
        }
    }
}

/// The ring, and who listens.
pub struct Hub {
    ring: Mutex<Ring>,
    latest: watch::Sender<u64>,
    listeners: watch::Sender<usize>,
}

impl Default for Hub {
    fn default() -> Self {
        // Numbers of an earlier run are below those of this one, so that nobody takes these events for missed ones.
        let first = now_ms().saturating_mul(1000);
        let ring = Ring {
            entries: VecDeque::new(),
            last: first,
            figures: first,
            downloads: BTreeMap::new(),
            history: VecDeque::new(),
            machine: MachineMemory::default(),
        };
        Hub { ring: Mutex::new(ring), latest: watch::Sender::new(first), listeners: watch::Sender::new(0) }
    }
}

impl Hub {
    /// Tells everybody who listens; `name` is one word, the payload an object.
    pub fn publish(&self, name: &str, payload: &impl Serialize) {
        let Ok(data) = serde_json::to_string(payload) else { return };
        let mut ring = self.ring();
        self.push(&mut ring, name, &data);
    }

    /// Tells of a download's state, which a later snapshot holds under this id.
    pub fn publish_download(&self, id: &str, payload: &impl Serialize) {
        let Ok(value) = serde_json::to_value(payload) else { return };
        let data = value.to_string();
        let mut ring = self.ring();
        if ring.downloads.len() < DOWNLOADS || ring.downloads.contains_key(id) {
            ring.downloads.insert(id.to_owned(), value);
        }
        self.push(&mut ring, "download", &data);
    }

    /// Whether anybody listens.
    pub fn is_heard(&self) -> bool {
        *self.listeners.borrow() > 0
    }

    fn push(&self, ring: &mut Ring, name: &str, data: &str) {
        ring.last += 1;
        let frame = Bytes::from(format!("id: {}\nevent: {name}\ndata: {data}\n\n", ring.last));
        if ring.entries.len() == RING {
            ring.entries.pop_front();
        }
        if name == "stats" {
            ring.forget(ring.figures);
            ring.figures = ring.last;
        }
        ring.entries.push_back(Entry { id: ring.last, frame });
        // Under the ring's lock, so that the numbers that listeners see never go back.
        self.latest.send_replace(ring.last);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came after this event, some at once, with the number up to which that is all; `None` when the ring does not
    /// reach back that far, or the number is not from this run.
    fn after(&self, id: u64) -> Option<(u64, Bytes)> {
        let ring = self.ring();
        let first = ring.last + 1 - ring.entries.len() as u64;
        if id > ring.last || id + 1 < first {
            return None;
        }
        let (mut out, mut last, mut count) = (BytesMut::new(), id, 0);
        for entry in ring.entries.iter().skip((id + 1 - first) as usize) {
            last = entry.id;
            count += usize::from(!entry.frame.is_empty());
            out.extend_from_slice(&entry.frame);
            if count == AT_ONCE {
                break;
            }
        }
        Some((last, out.freeze()))
    }

    fn note(&self, sample: MemorySample) {
        let mut ring = self.ring();
        let same = |old: &MemorySample| MemorySample { at: sample.at, ..old.clone() } == sample;
        if ring.history.back().is_some_and(same) {
            return;
        }
        if ring.history.len() == SAMPLES {
            ring.history.pop_front();
        }
        ring.history.push_back(sample);
    }
}

/// `GET /api/hearth/events`.
pub(crate) async fn events(State(state): State<AppState>, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    let by_header = headers.get("last-event-id").and_then(|v| v.to_str().ok());
    let by_query = query.as_deref().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("after="));
    let after = by_header.or(by_query).and_then(|id| id.trim().parse().ok());
    crate::sse::response(stream(state, after))
}

/// Counts a listener for as long as it lives.
struct Listening(AppState);

impl Listening {
    fn new(state: AppState) -> Self {
        state.events().listeners.send_modify(|n| *n += 1);
        Listening(state)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.events().listeners.send_modify(|n| *n = n.saturating_sub(1));
    }
}

struct Position {
    listening: Listening,
    latest: watch::Receiver<u64>,
    /// The last event that this client has; `None`: it needs a snapshot.
    last: Option<u64>,
    begun: bool,
}

fn stream(state: AppState, after: Option<u64>) -> impl Stream<Item = Bytes> + Send + 'static {
    let latest = state.events().latest.subscribe();
    let position = Position { listening: Listening::new(state), latest, last: after, begun: false };
    futures::stream::unfold(position, |mut p: Position| async move {
        let piece = next(&mut p).await?;
        Some((piece, p))
    })
}

/// The next piece for one client; `None` when the server stops.
async fn next(p: &mut Position) -> Option<Bytes> {
    let state = p.listening.0.clone();
    loop {
        p.latest.borrow_and_update();
        match p.last.and_then(|last| state.events().after(last)) {
            None => {
                let (id, frame) = snapshot(&state);
                p.last = Some(id);
                p.begun = true;
                return Some(frame);
            }
            Some((last, piece)) => {
                p.last = Some(last);
                let begun = std::mem::replace(&mut p.begun, true);
                match piece.is_empty() {
                    false => return Some(piece),
                    // Nothing was missed: headers and a first byte have to go out all the same.
                    true if !begun => return Some(Bytes::from_static(b": nothing missed\n\n")),
                    true => {}
                }
            }
        }
        tokio::select! {
            () = state.stopped() => return None,
            changed = timeout(state.config().ping_interval, p.latest.changed()) => match changed {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(Bytes::from_static(b": ping\n\n")),
            },
        }
    }
}

/// The state of everything, under the number of the last event before it: later events may repeat, and never miss.
fn snapshot(state: &AppState) -> (u64, Bytes) {
    let (id, downloads, history, machine) = {
        let ring = state.events().ring();
        let downloads = ring.downloads.values().cloned().collect();
        (ring.last, downloads, ring.history.iter().cloned().collect(), ring.machine.clone())
    };
    let machine = if machine.total == 0 { read_machine() } else { machine };
    let snapshot = Snapshot {
        stats: state.backend().stats(),
        health: told(state, state.backend().health()),
        downloads,
        settings: json!(state.config().settings.all()),
        requests: state.inspector().list(),
        machine,
        history,
        desktop: state.config().desktop.as_ref().map(|app| app.status()),
        version: env!("CARGO_PKG_VERSION"),
    };
    // Our own types always serialize: string keys, no foreign code.
    let data = serde_json::to_string(&snapshot).unwrap_or_default();
    (id, Bytes::from(format!("retry: 1000\nid: {id}\nevent: snapshot\ndata: {data}\n\n")))
}

/// Compares and publishes for as long as it is polled.
pub(crate) async fn pump(state: AppState) {
    let mut listeners = state.events().listeners.subscribe();
    let mut known = Known::default();
    loop {
        let heard = *listeners.borrow_and_update() > 0;
        known.look(&state, heard);
        if heard {
            sleep(PUMP).await;
        } else {
            // The chart begins with what was before the page was opened.
            let _ = timeout(IDLE, listeners.changed()).await;
        }
    }
}

/// Passes on what the download manager tells, for as long as it is polled.
pub(crate) async fn downloads(state: AppState) {
    let Some(manager) = state.config().downloads.clone() else { return };
    let mut news = manager.subscribe();
    // Those of earlier runs are on disk, and nobody tells of them.
    let earlier = tokio::task::spawn_blocking(move || manager.list()).await.unwrap_or_default();
    for download in earlier {
        state.events().publish_download(&download.id, &download);
    }
    loop {
        match news.recv().await {
            Ok(download) => {
                state.events().publish_download(&download.id, &download);
                if download.state == DownloadState::Done {
                    state.events().publish("models", &json!({}));
                }
            }
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Tells when models may have come or gone on disk, for as long as it is polled.
pub(crate) async fn folders(state: AppState) {
    let places = state.config().places.clone();
    if places.iter().next().is_none() {
        return;
    }
    let teller = state.clone();
    let changed = move || teller.events().publish("models", &json!({}));
    // A large cache has thousands of folders.
    match tokio::task::spawn_blocking(move || folder_watch::watch(&places, changed)).await {
        Ok(Ok(watcher)) => {
            // What came before it began.
            state.events().publish("models", &json!({}));
            state.stopped().await;
            drop(watcher);
        }
        Ok(Err(error)) => tracing::warn!(%error, "the models' folders are not watched"),
        Err(_) => {}
    }
}

/// What was published last.
#[derive(Default)]
struct Known {
    stats: Option<Stats>,
    health: Option<Health>,
    settings: Option<BTreeMap<String, Setting>>,
    machine: MachineMemory,
    machine_read: Option<Instant>,
    noted: Option<Instant>,
    guard: u64,
}

impl Known {
    fn look(&mut self, state: &AppState, heard: bool) {
        let hub = state.events();
        let stats = state.backend().stats();
        let due = |read: Option<Instant>, every: Duration| read.is_none_or(|at| at.elapsed() >= every);
        if due(self.machine_read, if heard { MACHINE } else { IDLE }) {
            self.machine_read = Some(Instant::now());
            let machine = read_machine();
            if differs(&machine, &self.machine) {
                self.machine = machine.clone();
                hub.ring().machine = machine.clone();
                if heard {
                    hub.publish("machine", &machine);
                }
            }
        }
        if due(self.noted, Duration::from_secs(1)) {
            self.noted = Some(Instant::now());
            hub.note(sample(&stats, &self.machine));
        }
        // The app changes settings as well as the dashboard.
        let settings = state.config().settings.all();
        if heard && self.settings.as_ref().is_some_and(|old| *old != settings) {
            hub.publish("settings", &json!({"settings": settings}));
        }
        self.settings = Some(settings);
        if !heard {
            return;
        }
        let health = state.backend().health();
        if self.health.as_ref() != Some(&health) {
            hub.publish("health", &told(state, health.clone()));
            self.health = Some(health);
        }
        let of = |stats: &Stats| stats.models.iter().map(|m| (m.id.clone(), m.pinned)).collect::<BTreeSet<_>>();
        let moved = self.stats.as_ref().is_some_and(|old| of(old) != of(&stats));
        for action in stats.memory.guard.actions.iter().filter(|a| a.id > self.guard) {
            hub.publish("guard", action);
        }
        self.guard = stats.memory.guard.actions.iter().map(|a| a.id).fold(self.guard, u64::max);
        if self.stats.as_ref().is_none_or(|old| changed(old, &stats)) {
            hub.publish("stats", &stats);
            self.stats = Some(stats);
        }
        // After the figures, which say what is in memory.
        if moved {
            hub.publish("models", &json!({}));
        }
    }
}

/// Whether the figures differ in more than the clock and a few pages of memory.
fn changed(old: &Stats, new: &Stats) -> bool {
    let mut new = new.clone();
    new.uptime_s = old.uptime_s;
    let (o, n) = (&old.memory, &mut new.memory);
    if o.process.abs_diff(n.process) < NOISE {
        n.process = o.process;
    }
    if o.ledger.unaccounted.abs_diff(n.ledger.unaccounted) < NOISE {
        n.ledger.unaccounted = o.ledger.unaccounted;
    }
    &new != old
}

fn differs(a: &MachineMemory, b: &MachineMemory) -> bool {
    let far = |a: u64, b: u64| a.abs_diff(b) >= 64 << 20;
    a.total != b.total
        || a.swap_total != b.swap_total
        || far(a.available, b.available)
        || a.swap_used.abs_diff(b.swap_used) >= 1 << 20
}

fn read_machine() -> MachineMemory {
    let memory = hearth_machine::memory();
    let swap = System::here().swap();
    MachineMemory {
        total: memory.total,
        available: memory.available,
        swap_used: swap.map_or(0, |s| s.used),
        swap_total: swap.map_or(0, |s| s.total),
    }
}

fn sample(stats: &Stats, machine: &MachineMemory) -> MemorySample {
    let (l, guard) = (&stats.memory.ledger, &stats.memory.guard);
    MemorySample {
        at: now_ms(),
        parts: [l.weights, l.kv, l.prompt_cache, l.prefill_transient, l.allocator_cache, l.reserve],
        budget: l.budget,
        swap: machine.swap_used,
        pressure: json!(guard.pressure).as_str().unwrap_or("unknown").to_owned(),
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(piece: Option<(u64, Bytes)>) -> String {
        String::from_utf8(piece.unwrap().1.to_vec()).unwrap()
    }

    #[test]
    fn what_was_missed_is_replayed_and_what_is_too_old_is_not() {
        let hub = Hub::default();
        let start = *hub.latest.borrow();
        for n in 0..3 {
            hub.publish("log", &json!({"n": n}));
        }
        let all = text(hub.after(start));
        assert_eq!(all.matches("event: log").count(), 3, "{all}");
        assert!(all.starts_with(&format!("id: {}\nevent: log\ndata: {{\"n\":0}}\n\n", start + 1)), "{all}");
        assert_eq!(text(hub.after(start + 2)).matches("event: log").count(), 1);
        assert_eq!(text(hub.after(start + 3)), "");
        assert!(hub.after(start + 4).is_none(), "a number that was never given");
        assert!(hub.after(start - 1).is_none(), "of an earlier run");
        for n in 0..RING {
            hub.publish("log", &json!({"n": n}));
        }
        assert!(hub.after(start + 2).is_none(), "it has left the ring");
        let (last, piece) = hub.after(start + 3).unwrap();
        assert_eq!(last, start + 3 + AT_ONCE as u64);
        assert_eq!(String::from_utf8_lossy(&piece).matches("event: log").count(), AT_ONCE);
    }

    #[test]
    fn old_figures_are_not_replayed() {
        let hub = Hub::default();
        let start = *hub.latest.borrow();
        for n in 0..100 {
            hub.publish("stats", &json!({"n": n}));
        }
        let (last, piece) = hub.after(start).unwrap();
        assert_eq!(
            (last, text(Some((last, piece)))),
            (start + 100, format!("id: {}\nevent: stats\ndata: {{\"n\":99}}\n\n", start + 100))
        );
        assert_eq!(text(hub.after(start + 100)), "");
    }

    #[test]
    fn the_clock_alone_is_no_news() {
        let old = Stats::default();
        let mut new = Stats { uptime_s: 5.0, ..Stats::default() };
        new.memory.process = NOISE - 1;
        assert!(!changed(&old, &new));
        new.memory.process = NOISE;
        assert!(changed(&old, &new));
        let new = Stats { waiting: 1, ..Stats::default() };
        assert!(changed(&old, &new));
    }

    #[test]
    fn the_history_grows_only_by_changes() {
        let hub = Hub::default();
        let sample = |at, weights| MemorySample {
            at,
            parts: [weights, 0, 0, 0, 0, 0],
            budget: 10,
            swap: 0,
            pressure: "normal".into(),
        };
        hub.note(sample(1, 1));
        hub.note(sample(2, 1));
        hub.note(sample(3, 2));
        let kept: Vec<u64> = hub.ring().history.iter().map(|s| s.at).collect();
        assert_eq!(kept, [1, 3]);
    }
}
