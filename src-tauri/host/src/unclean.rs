//! What to say after a server that did not end in order, and the record that tells of it: kept current while this one
//! has a model, gone when it ends as it should.

use crate::words::{self, size};
use hearth_core::Backend;
use hearth_core::stats::{Health, Stats};
use hearth_engine::EngineHandle;
use hearth_library::home::{Home, now};
use hearth_library::marker::{Cause, Marker, Running, Unclean};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often to look whether there is something new to put down.
const LOOK: Duration = Duration::from_millis(250);
/// The record is written anew this often, and at once when a model comes or goes.
const REWRITE: Duration = Duration::from_secs(15);

/// Why nothing is loaded, and how to go on.
pub fn why(unclean: &Unclean) -> String {
    let last = &unclean.last;
    let name = if last.model.is_empty() { "MODEL".to_owned() } else { quoted(&last.model) };
    format!(
        "{}; to load it again, start it in the dashboard, or end this server and run `hearth serve {name}`{}",
        what_happened(unclean),
        if last.model.is_empty() { "" } else { ", with a smaller --context or --memory-budget if memory was short" }
    )
}

/// What finds the model that was in memory, where the record names one.
pub fn model(unclean: &Unclean) -> Option<String> {
    Some(unclean.last.model.clone()).filter(|model| !model.is_empty())
}

/// What was running, how it ended, and what it had.
pub fn what_happened(unclean: &Unclean) -> String {
    let last = &unclean.last;
    if last.model.is_empty() {
        return "the last server did not end in order, and its record of what it was doing cannot be read".to_owned();
    }
    let doing = if last.loading { format!("while it loaded {}", last.model) } else { format!("with {}", last.model) };
    let how = match unclean.cause {
        Cause::Killed => format!("the last server (process {}) was killed or crashed {doing}", last.pid),
        Cause::Reboot => format!("the computer went down or was started anew while a server ran {doing}"),
    };
    let ago = words::ago(last.at, now());
    let had = match (last.used, last.budget) {
        (Some(used), Some(budget)) if !last.loading => {
            format!("{} of its budget of {} in use", size(used), size(budget))
        }
        (_, Some(budget)) => format!("{} of memory and a budget of {}", size(last.process), size(budget)),
        _ => format!("{} of memory", size(last.process)),
    };
    let rows = match last.rows {
        0 => String::new(),
        n => format!(" and {} running", words::counted(n as u64, "request", "requests")),
    };
    format!("{how}; it had {had}{rows} when it last said so, {ago}")
}

/// A name as a shell takes it.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./@:+~".contains(c);
    if name.chars().all(plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

/// Which start of the computer this is.
pub fn boot() -> Option<String> {
    hearth_machine::boot_id()
}

/// The record of this process, which several threads may write and one ends.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Record>>);

struct Record {
    marker: Marker,
    running: Running,
    /// Whether the file is this process's.
    written: bool,
    /// After an end nothing is written any more.
    over: bool,
}

impl Recorder {
    /// A record of this process, with nothing written yet.
    pub fn new(home: &Home) -> Self {
        let running = Running {
            pid: std::process::id(),
            started: now(),
            boot: boot(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Running::default()
        };
        let record = Record { marker: Marker::new(home), running, written: false, over: false };
        Recorder(Arc::new(Mutex::new(record)))
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This model is about to be loaded: from now on an end without [`Recorder::end`] is an unclean one, and what was on
    /// record of an earlier one is settled.
    pub fn loading(&self, model: &str, context: Option<u64>, budget: Option<u64>) {
        let mut record = self.lock();
        let known = Running { model: model.to_owned(), loading: true, context, budget, ..record.running.clone() };
        record.running = Running { process: hearth_machine::memory().process, ..known };
        record.write();
    }

    /// What the engine says now. `name` is how `hearth serve` would find a model again.
    pub(crate) fn update(&self, health: &Health, stats: &Stats) {
        let mut record = self.lock();
        let (id, loading) = match health {
            Health::Ready { model } => (model, false),
            Health::Loading { model, .. } => (model, true),
            // Nothing is in memory: nothing to remember.
            _ => return record.clear(),
        };
        let ledger = &stats.memory.ledger;
        let known = |bytes: u64| (bytes > 0).then_some(bytes);
        // A folder's path stays as it was named, where it is that folder's model.
        let same = record.running.model.rsplit('/').next() == id.rsplit('/').next();
        let model = if same { record.running.model.clone() } else { id.clone() };
        record.running = Running {
            model,
            loading,
            context: stats.model.as_ref().map(|m| m.context as u64).or(record.running.context),
            budget: known(ledger.budget).or(record.running.budget),
            // Without the reserve, which nobody uses.
            used: known(ledger.total.saturating_sub(ledger.reserve)),
            process: stats.memory.process,
            rows: stats.rows.len(),
            ..record.running.clone()
        };
        record.write();
    }

    /// The end is in order.
    pub fn end(&self) {
        let mut record = self.lock();
        record.clear();
        record.over = true;
    }
}

impl Record {
    fn write(&mut self) {
        if self.over {
            return;
        }
        match self.marker.write(&self.running) {
            Ok(()) => self.written = true,
            // On a full disk it is served all the same.
            Err(error) => tracing::warn!(%error, "what is running cannot be put on record"),
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.written)
            && let Err(error) = self.marker.clear()
        {
            tracing::warn!(%error, "the record of what is running cannot be removed");
        }
    }
}

/// A thread that looks at the engine while it runs. Dropping it waits for the thread.
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Keeps the record current, and shows each look to `look` as well.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        recorder: Recorder,
        engine: EngineHandle,
        mut look: impl FnMut(&Health, &Stats) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        // Not on a thread that serves: a disk may take its time.
        let thread = std::thread::Builder::new().name("hearth-record".into()).spawn(move || {
            let (mut last, mut written) = (None, Instant::now());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                let (health, stats) = (engine.health(), engine.stats());
                look(&health, &stats);
                let now = kind(&health);
                if last.as_ref() != Some(&now) || written.elapsed() >= REWRITE {
                    recorder.update(&health, &stats);
                    (last, written) = (Some(now), Instant::now());
                }
            }
            // A model that came since the last look settles what was on record all the same.
            let health = engine.health();
            if last.as_ref() != Some(&kind(&health)) {
                recorder.update(&health, &engine.stats());
            }
        })?;
        Ok(Watch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What changes when a model comes or goes.
fn kind(health: &Health) -> (u8, String) {
    match health {
        Health::Ready { model } => (0, model.clone()),
        Health::Loading { model, .. } => (1, model.clone()),
        _ => (2, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{LedgerStats, MemoryStats, RowStats};
    use hearth_library::marker::unclean;

    fn last(change: impl FnOnce(&mut Running)) -> String {
        let mut last = Running {
            pid: 77,
            model: "org/m".into(),
            budget: Some(12_000_000_000),
            used: Some(11_900_000_000),
            process: 5_000_000_000,
            rows: 3,
            at: now() - 65,
            ..Running::default()
        };
        change(&mut last);
        why(&Unclean { last, cause: Cause::Killed })
    }

    #[test]
    fn the_sentence_says_what_ran_how_it_ended_what_it_had_and_how_to_go_on() {
        let said = last(|_| ());
        for part in [
            "the last server (process 77) was killed or crashed with org/m",
            "it had 11.9 GB of its budget of 12.0 GB in use and 3 requests running",
            "1 min 5 s ago",
            "`hearth serve org/m`",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let loading = last(|r| (r.loading, r.rows) = (true, 0));
        assert!(
            loading.contains("while it loaded org/m; it had 5.0 GB of memory and a budget of 12.0 GB when"),
            "{loading}"
        );
        let odd = last(|r| r.model = "/my models/it's".into());
        assert!(odd.contains(r"`hearth serve '/my models/it'\''s'`"), "{odd}");
        let unknown = last(|r| r.model.clear());
        assert!(unknown.contains("cannot be read") && unknown.contains("`hearth serve MODEL`"), "{unknown}");
        let down =
            what_happened(&Unclean { last: Running { model: "m".into(), ..Running::default() }, cause: Cause::Reboot });
        assert!(down.starts_with("the computer went down or was started anew while a server ran with m"), "{down}");
    }

    #[test]
    fn the_record_follows_the_engine_and_goes_with_an_end_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let recorder = Recorder::new(&home);
        let read = || unclean(&home, boot().as_deref()).unwrap().map(|found| found.last);
        recorder.update(&Health::Empty, &Stats::default());
        assert_eq!(read(), None, "nothing is in memory");
        recorder.loading("/models/tiny", Some(100), None);
        let found = read().unwrap();
        assert_eq!((found.model.as_str(), found.loading, found.context), ("/models/tiny", true, Some(100)));
        assert!(found.process > 0 && found.pid == std::process::id());
        let ledger = LedgerStats { budget: 9, total: 8, reserve: 1, ..LedgerStats::default() };
        let memory = MemoryStats { ledger, process: 5, ..MemoryStats::default() };
        let stats = Stats { memory, rows: vec![RowStats::default()], ..Stats::default() };
        recorder.update(&Health::Ready { model: "tiny".into() }, &stats);
        let found = read().unwrap();
        assert_eq!((found.model.as_str(), found.loading), ("/models/tiny", false), "by the name that finds it again");
        assert_eq!((found.budget, found.used, found.process, found.rows), (Some(9), Some(7), 5, 1));
        recorder.update(&Health::Ready { model: "org/other".into() }, &stats);
        assert_eq!(read().unwrap().model, "org/other");
        recorder.update(&Health::Failed { message: "no".into() }, &stats);
        assert_eq!(read(), None, "it failed in order");
        recorder.loading("m", None, None);
        recorder.end();
        assert_eq!(read(), None);
        recorder.loading("m", None, None);
        assert_eq!(read(), None, "nothing after the end");
    }

    #[test]
    fn another_ones_record_is_not_touched_while_nothing_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        Marker::new(&home).write(&Running { pid: 1, model: "before".into(), ..Running::default() }).unwrap();
        let recorder = Recorder::new(&home);
        recorder.update(&Health::Empty, &Stats::default());
        recorder.end();
        assert_eq!(unclean(&home, None).unwrap().unwrap().last.model, "before");
    }
}
