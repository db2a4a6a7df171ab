//! The last log lines in memory, for the dashboard's log page and for bug reports.

use crate::events::now_ms;
use crate::state::AppState;
use axum::Json;
use axum::extract::{RawQuery, State};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines kept.
const KEPT: usize = 1000;
/// Longest message kept, in bytes.
const LONGEST: usize = 4096;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct LogLine {
    /// Its number, higher than that of every line before it, also of an earlier run.
    pub id: u64,
    /// Milliseconds since 1970.
    pub at: u64,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// The module that said it.
    pub target: String,
    /// The message and its fields.
    pub message: String,
}

/// The last lines; cheap to clone. A clone is a layer for `tracing`.
#[derive(Debug, Clone)]
pub struct LogRing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lines: Mutex<Lines>,
    news: broadcast::Sender<LogLine>,
}

#[derive(Debug)]
struct Lines {
    kept: VecDeque<LogLine>,
    last: u64,
}

impl Default for Lines {
    fn default() -> Self {
        Lines { kept: VecDeque::new(), last: now_ms().saturating_mul(1000) }
    }
}

impl Default for LogRing {
    fn default() -> Self {
        LogRing(Arc::new(Inner { lines: Mutex::default(), news: broadcast::Sender::new(256) }))
    }
}

impl LogRing {
    fn push(&self, mut line: LogLine) {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.last += 1;
        line.id = lines.last;
        if lines.kept.len() == KEPT {
            lines.kept.pop_front();
        }
        lines.kept.push_back(line.clone());
        // Under the lock, so that lines are told in their order. Nobody has to listen.
        let _ = self.0.news.send(line);
    }

    /// The last lines, oldest first.
    pub fn last(&self, count: usize) -> Vec<LogLine> {
        let lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.kept.iter().skip(lines.kept.len().saturating_sub(count)).cloned().collect()
    }
}

impl<S: Subscriber> Layer<S> for LogRing {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        // Other libraries' chatter would push our own lines out.
        if *meta.level() > Level::INFO || (*meta.level() > Level::WARN && !meta.target().starts_with("hearth")) {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let mut message = text.message + &text.fields;
        if message.len() > LONGEST {
            message.truncate(message.floor_char_boundary(LONGEST));
        }
        let level = meta.level().as_str().to_ascii_lowercase();
        self.push(LogLine { id: 0, at: now_ms(), level, target: meta.target().to_owned(), message });
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            let _ = write!(self.fields, " {}={value}", field.name());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}

/// `GET /api/hearth/logs?lines=`: the last lines, oldest first; 200 without a number.
pub(crate) async fn logs(State(state): State<AppState>, RawQuery(query): RawQuery) -> Json<Value> {
    let count = query.as_deref().unwrap_or_default().split('&').find_map(|p| p.strip_prefix("lines="));
    let count = count.and_then(|n| n.parse().ok()).unwrap_or(200);
    Json(json!({"lines": state.config().logs.last(count)}))
}

/// Passes new lines on to the event stream while somebody listens.
pub(crate) async fn pump(state: AppState) {
    let mut news = state.config().logs.0.news.subscribe();
    loop {
        match news.recv().await {
            Ok(line) if state.events().is_heard() => state.events().publish("log", &line),
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn lines_are_kept_with_their_fields_and_only_the_last_ones() {
        let ring = LogRing::default();
        let subscriber = tracing_subscriber::registry().with(ring.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "hearth_server", path = "/v1/models", status = 200, "answered");
            tracing::debug!(target: "hearth_server", "too quiet");
            tracing::info!(target: "hyper", "somebody else's");
            tracing::warn!(target: "hyper", "somebody else's, and loud");
        });
        let lines = ring.last(10);
        let told: Vec<_> = lines.iter().map(|l| (l.level.as_str(), l.message.as_str())).collect();
        assert_eq!(told, [("info", "answered path=/v1/models status=200"), ("warn", "somebody else's, and loud")]);
        for n in 0..KEPT {
            ring.push(LogLine { id: 0, at: 0, level: "info".into(), target: "t".into(), message: n.to_string() });
        }
        assert_eq!(ring.last(usize::MAX).len(), KEPT);
        assert_eq!(ring.last(1)[0].message, (KEPT - 1).to_string());
    }
}
