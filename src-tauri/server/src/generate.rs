//! From a started generation to a response, in whatever dialect an [`Encoder`] writes: whole, or as a stream
//! with pings. Dropping the response's future or body drops the generations, which cancels their rows.

use crate::error::ServerError;
use crate::inspector::Prepared;
use crate::sse::{self, Frames};
use crate::state::AppState;
use crate::transcripts::Recorder;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hearth_core::backend::{Generation, ServedModel};
use hearth_core::event::{Delta, Event, Finish, FinishReason, Timings, TokenInfo, Usage};
use hearth_core::{EngineError, GenerateRequest};
use serde_json::Value;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Most events that go into one piece of a stream, so that a fast row cannot starve the socket.
const MOST_AT_ONCE: usize = 32;

/// How a dialect writes what happens.
pub(crate) trait Encoder: Send + 'static {
    /// The stream begins.
    fn begin(&mut self, out: &mut Frames);
    /// A row has new text or tokens.
    fn delta(&mut self, row: usize, delta: &Delta, out: &mut Frames);
    /// A row is complete.
    fn finish(&mut self, row: usize, finish: &Finish, out: &mut Frames);
    /// All rows are complete.
    fn end(&mut self, out: &mut Frames);
    /// The stream ends with an error.
    fn error(&mut self, error: &ServerError, out: &mut Frames) {
        out.data(&error.envelope());
    }
    /// The response of a request that is not streamed, one entry for each row.
    fn whole(&mut self, rows: &[Collected]) -> Value;
}

/// A complete row.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) finish: Finish,
}

/// One row under the inspector's eyes: dropped before it ended, its client went away.
struct Watched {
    state: AppState,
    id: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.state.inspector().gone(&self.state, self.id);
    }
}

/// The rows of one request.
pub(crate) struct Running {
    /// A row's generation; `None` when it has ended.
    rows: Vec<Option<Generation>>,
    /// Writes down a row, so that a later prompt can begin with its very ids.
    recorders: Vec<Option<Recorder>>,
    /// Tells the inspector what becomes of each row.
    watched: Vec<Watched>,
    /// Events that were looked at before the stream began.
    ready: VecDeque<(usize, Event)>,
    turn: usize,
}

impl Running {
    /// Submits the rows, and waits until the first of them is admitted. `keep_alive` is how long the model is to stay
    /// afterwards, where the request says so.
    ///
    /// # Errors
    /// What the engine refuses or fails with before that.
    pub(crate) async fn start(
        state: &AppState,
        model: &Arc<ServedModel>,
        requests: Vec<(GenerateRequest, Option<Recorder>)>,
        keep_alive: Option<Option<Duration>>,
    ) -> Result<Self, ServerError> {
        let (requests, recorders): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let (mut rows, mut watched) = (Vec::new(), Vec::new());
        for request in requests {
            let prepared = Prepared::new(&request);
            let generation = state.backend().submit(model, request)?;
            state.inspector().queued(state, generation.id, model, prepared);
            watched.push(Watched { state: state.clone(), id: generation.id });
            rows.push(Some(generation));
        }
        if let Some(stay) = keep_alive {
            state.backend().keep_alive(model, stay);
        }
        let mut running = Running { rows, recorders, watched, ready: VecDeque::new(), turn: 0 };
        match running.next().await {
            Some((_, Event::Failed(e))) => Err(e.into()),
            Some(first) => {
                running.ready.push_front(first);
                Ok(running)
            }
            None => Ok(running),
        }
    }

    /// Rows that end before they begin: nothing to generate after prompts of these lengths.
    pub(crate) fn nothing(prompts: impl Iterator<Item = usize>) -> Self {
        let ready = prompts.enumerate().map(|(row, prompt_tokens)| {
            let usage = Usage { prompt_tokens, ..Usage::default() };
            let (reason, timings) = (FinishReason::Length, Timings::default());
            (row, Event::Finished(Finish { reason, stop: None, usage, timings }))
        });
        Running { rows: Vec::new(), recorders: Vec::new(), watched: Vec::new(), ready: ready.collect(), turn: 0 }
    }

    /// The next event of any row; `None` when all rows have ended. Each row ends with `Finished` or `Failed`.
    async fn next(&mut self) -> Option<(usize, Event)> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        poll_fn(|cx| {
            let count = self.rows.len();
            let mut open = false;
            for offset in 0..count {
                let row = (self.turn + offset) % count;
                let Some(generation) = &mut self.rows[row] else { continue };
                open = true;
                let Poll::Ready(event) = generation.events.poll_recv(cx) else { continue };
                self.turn = row + 1;
                let event = match event {
                    // Only a client that is gone cancels, and this one is not: the engine gave up the row.
                    Some(Event::Finished(Finish { reason: FinishReason::Cancelled, .. })) => {
                        Event::Failed(EngineError::ShuttingDown)
                    }
                    Some(event) => event,
                    None => Event::Failed(EngineError::EngineLost),
                };
                if matches!(event, Event::Finished(_) | Event::Failed(_)) {
                    self.rows[row] = None;
                }
                self.record(row, &event);
                return Poll::Ready(Some((row, event)));
            }
            if open { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    fn record(&mut self, row: usize, event: &Event) {
        if let Some(watched) = self.watched.get(row) {
            watched.state.inspector().event(&watched.state, watched.id, event);
        }
        let Some(recorder) = self.recorders.get_mut(row) else { return };
        match event {
            Event::Admitted { .. } | Event::Prefill { .. } => {}
            Event::Delta(delta) => recorder.iter_mut().for_each(|r| r.delta(delta)),
            Event::Finished(finish) => {
                if let Some(recorder) = recorder.take() {
                    recorder.finished(finish);
                }
            }
            Event::Failed(_) => *recorder = None,
        }
    }

    /// Everything, when all rows have ended.
    ///
    /// # Errors
    /// The first row's failure; the others are cancelled.
    async fn collect(mut self) -> Result<Vec<Collected>, ServerError> {
        let count = self.rows.len().max(self.ready.len());
        let mut parts: Vec<Delta> = vec![Delta::default(); count];
        let mut ends: Vec<Option<Finish>> = vec![None; count];
        while let Some((row, event)) = self.next().await {
            match event {
                Event::Admitted { .. } | Event::Prefill { .. } => {}
                Event::Delta(delta) => {
                    parts[row].text.push_str(&delta.text);
                    parts[row].tokens.extend(delta.tokens);
                }
                Event::Finished(finish) => ends[row] = Some(finish),
                Event::Failed(e) => return Err(e.into()),
            }
        }
        let rows = parts.into_iter().zip(ends);
        rows.map(|(Delta { text, tokens }, finish)| {
            let finish = finish.ok_or(EngineError::EngineLost)?;
            Ok(Collected { text, tokens, finish })
        })
        .collect()
    }
}

/// The response to a request whose rows `start` starts.
///
/// # Errors
/// Whatever happens before the headers are sent.
pub(crate) async fn respond<E: Encoder>(
    state: &AppState,
    stream: bool,
    start: impl Future<Output = Result<(Running, E), ServerError>> + Send + 'static,
) -> Result<Response, ServerError> {
    if !stream {
        let (running, mut encoder) = start.await?;
        let rows = running.collect().await?;
        return Ok(axum::Json(encoder.whole(&rows)).into_response());
    }
    let mut start = start.boxed();
    let phase = match timeout(state.config().header_delay, &mut start).await {
        Ok(started) => {
            let (running, encoder) = started?;
            Phase::Begin(running, encoder)
        }
        Err(_) => Phase::Starting(start),
    };
    let first_ping = if matches!(phase, Phase::Starting(_)) { Instant::now() } else { far(state) };
    let streaming = Streaming { phase, ping: state.config().ping_interval, deadline: first_ping };
    Ok(sse::response(futures::stream::unfold(streaming, Streaming::step)))
}

fn far(state: &AppState) -> Instant {
    Instant::now() + state.config().ping_interval
}

type Starting<E> = BoxFuture<'static, Result<(Running, E), ServerError>>;

enum Phase<E> {
    Starting(Starting<E>),
    Begin(Running, E),
    Running(Running, E),
    Done,
}

/// A stream on its way: its next piece is made when the socket asks for it.
struct Streaming<E> {
    phase: Phase<E>,
    ping: Duration,
    /// When silence has lasted long enough for a ping.
    deadline: Instant,
}

impl<E: Encoder> Streaming<E> {
    async fn step(mut self) -> Option<(Bytes, Self)> {
        let mut out = Frames::default();
        while out.is_empty() {
            self.phase = match self.phase {
                Phase::Done => return None,
                Phase::Begin(running, mut encoder) => {
                    encoder.begin(&mut out);
                    Phase::Running(running, encoder)
                }
                Phase::Starting(mut start) => match timeout_at(self.deadline, &mut start).await {
                    Err(_) => {
                        out.ping();
                        Phase::Starting(start)
                    }
                    Ok(Ok((running, encoder))) => Phase::Begin(running, encoder),
                    Ok(Err(e)) => {
                        out.data(&e.envelope());
                        Phase::Done
                    }
                },
                Phase::Running(running, encoder) => advance(running, encoder, self.deadline, &mut out).await,
            };
        }
        self.deadline = Instant::now() + self.ping;
        Some((out.take(), self))
    }
}

/// Encodes the next event and those that are there already, or a ping at the deadline.
async fn advance<E: Encoder>(mut running: Running, mut encoder: E, deadline: Instant, out: &mut Frames) -> Phase<E> {
    let Ok(first) = timeout_at(deadline, running.next()).await else {
        out.ping();
        return Phase::Running(running, encoder);
    };
    let mut event = first;
    for _ in 0..MOST_AT_ONCE {
        match event {
            None => {
                encoder.end(out);
                return Phase::Done;
            }
            Some((_, Event::Failed(e))) => {
                encoder.error(&e.into(), out);
                return Phase::Done;
            }
            Some((row, Event::Delta(delta))) => encoder.delta(row, &delta, out),
            Some((row, Event::Finished(finish))) => encoder.finish(row, &finish, out),
            Some((_, Event::Admitted { .. } | Event::Prefill { .. })) => {}
        }
        match running.next().now_or_never() {
            Some(next) => event = next,
            None => return Phase::Running(running, encoder),
        }
    }
    match event {
        Some(event) => running.ready.push_front(event),
        None => {
            encoder.end(out);
            return Phase::Done;
        }
    }
    Phase::Running(running, encoder)
}
