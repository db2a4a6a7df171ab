//! One request while it is computed: its caches, its sampler, the text it has become, and the channel to whoever
//! asked. Everything here is about one row; rows know nothing of each other.

use crate::cache::LayerCache;
use crate::prompt_cache::{Attachment, Lent};
use crate::sampler::RowSampler;
use hearth_core::detokenizer::Detokenizer;
use hearth_core::event::{Delta, Finish, Timings, TokenInfo, Usage};
use hearth_core::stop::StopMatcher;
use hearth_core::{EngineError, Event, FinishReason, GenerateRequest, ServedModel};
use hearth_mlx::Tensor;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// A request on its way to becoming a row. Crosses from the handle to the engine thread.
pub struct Submitted {
    /// The row's number.
    pub id: u64,
    /// What to generate.
    pub request: GenerateRequest,
    /// Where its events go.
    pub events: mpsc::Sender<Event>,
    /// When it was submitted.
    pub at: Instant,
}

impl Submitted {
    /// Whether nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }
}

/// A token that was dispatched: entry `index` of a step's tokens `[rows]`, perhaps not computed yet.
#[derive(Clone)]
pub struct Pending {
    /// The step's tokens.
    pub tokens: Rc<Tensor>,
    /// The row's place in it.
    pub index: usize,
}

/// What became of a token.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// The row goes on.
    Continues,
    /// The row is complete.
    Finished,
}

/// An active row.
pub struct Row {
    /// What to generate.
    pub request: GenerateRequest,
    /// One cache per layer.
    pub caches: Vec<LayerCache>,
    /// What else belongs to the state that it went on from.
    pub attachments: Vec<Attachment>,
    /// Draws its tokens.
    pub sampler: RowSampler,
    /// Prompt tokens computed; of a row that was parked, tokens of prompt and answer.
    pub prefilled: usize,
    /// The token that the next decode step starts from.
    pub next: Option<Pending>,
    /// Tokens dispatched, read or not.
    pub sampled: usize,
    /// Tokens read.
    pub ids: Vec<u32>,
    /// Prompt lengths at which the prompt cache keeps the state, ascending.
    pub keep_at: Vec<usize>,
    /// Prompt tokens that a cache already held.
    cached: usize,
    max_tokens: usize,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    unsent: Vec<TokenInfo>,
    events: mpsc::Sender<Event>,
    outbox: VecDeque<Event>,
    paused: Option<Instant>,
    submitted: Instant,
    admitted: Instant,
    first_token: Option<Instant>,
}

impl Row {
    /// Admits a request whose first `cached` prompt tokens are in `state`.
    pub fn new(from: Submitted, state: Lent, cached: usize, sampler: RowSampler, context: usize) -> Self {
        let room = context.saturating_sub(from.request.prompt.len());
        let mut row = Row {
            max_tokens: from.request.max_tokens.unwrap_or(room).min(room),
            stop: StopMatcher::new(&from.request.stop),
            request: from.request,
            caches: state.caches,
            attachments: state.attachments,
            sampler,
            prefilled: cached,
            next: None,
            sampled: 0,
            ids: Vec::new(),
            keep_at: Vec::new(),
            cached,
            detokenizer: Detokenizer::default(),
            unsent: Vec::new(),
            events: from.events,
            outbox: VecDeque::new(),
            paused: None,
            submitted: from.at,
            admitted: Instant::now(),
            first_token: None,
        };
        row.send(Event::Admitted { cached_tokens: cached });
        row
    }

    /// Whether another token may be dispatched: the row is not at its limit, and its client reads.
    pub fn wants_token(&self) -> bool {
        self.next.is_some() && self.sampled < self.max_tokens && self.outbox.is_empty()
    }

    /// Whether the row waits for its client to read.
    pub fn is_paused(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// How long the row has waited for its client to read.
    pub fn paused_for(&self) -> Duration {
        self.paused.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether nobody listens any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Bytes of the row's caches.
    pub fn cache_bytes(&self) -> u64 {
        self.caches.iter().map(|c| c.bytes() as u64).sum()
    }

    /// Tokens that the caches will hold in any case: what there is, and the one that follows.
    pub fn expected(&self) -> usize {
        self.request.prompt.len() + self.ids.len() + 1
    }

    /// These tokens of prompt and answer.
    pub fn tokens(&self, from: usize, n: usize) -> impl Iterator<Item = u32> {
        self.request.prompt.iter().chain(&self.ids).copied().skip(from).take(n)
    }

    /// Tokens that the caches hold the state of, those of a step that was only dispatched included.
    pub fn held_tokens(&self) -> usize {
        self.caches.first().map_or(0, LayerCache::offset)
    }

    /// Gives up its state; the request for it, to be computed again later.
    pub fn park(&mut self, id: u64, sequence: Vec<u32>) -> Submitted {
        self.caches.clear();
        self.attachments.clear();
        self.keep_at.clear();
        let request = GenerateRequest { boundaries: Vec::new(), prompt: sequence, ..self.request.clone() };
        Submitted { id, request, events: self.events.clone(), at: Instant::now() }
    }

    /// Goes on after [`Row::park`], with the state of its first `cached` tokens.
    pub fn go_on(&mut self, state: Lent, cached: usize) {
        (self.caches, self.attachments, self.prefilled) = (state.caches, state.attachments, cached);
    }

    /// Ends the row where it is, as at its limit.
    pub fn end_here(&mut self) {
        self.finish(FinishReason::Length);
    }

    /// The tokens that the caches hold the state of; `None` where that is nothing, or not known yet.
    pub fn cached_sequence(&self) -> Option<Vec<u32>> {
        let offset = self.caches.first()?.offset();
        let known = self.request.prompt.iter().chain(&self.ids).copied();
        let tokens: Vec<u32> = known.take(offset).collect();
        (offset > 0 && tokens.len() == offset).then_some(tokens)
    }

    /// Decode speed so far in tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        let seconds = self.first_token.map_or(0.0, |t| t.elapsed().as_secs_f64());
        if seconds > 0.0 { self.ids.len().saturating_sub(1) as f64 / seconds } else { 0.0 }
    }

    /// Tells how far the prompt is.
    pub fn report_prefill(&mut self) {
        // The client of a row that was parked has read on from there already.
        if self.ids.is_empty() {
            let event = Event::Prefill { done: self.prefilled, total: self.request.prompt.len() };
            self.send(event);
        }
    }

    /// Takes a token that was read: text, stop strings, limits. Sends what became final.
    pub fn take(&mut self, token: TokenInfo, model: &ServedModel) -> Outcome {
        let id = token.id;
        self.first_token.get_or_insert_with(Instant::now);
        self.ids.push(id);
        self.unsent.push(token);
        if !self.request.ignore_eos && model.eos.contains(&id) {
            self.finish(FinishReason::Stop);
            return Outcome::Finished;
        }
        let (mut text, mut released) = (String::new(), String::new());
        self.detokenizer.push(&model.tokenizer, id, &mut text);
        if let Some(stop) = self.stop.push(&text, &mut released) {
            let stop = stop.to_owned();
            self.release(released);
            self.end(FinishReason::Stop, Some(stop));
            return Outcome::Finished;
        }
        if self.ids.len() >= self.max_tokens {
            self.release(released);
            self.finish(FinishReason::Length);
            return Outcome::Finished;
        }
        if !released.is_empty() {
            self.release(released);
        }
        Outcome::Continues
    }

    /// Ends the row with an error.
    pub fn fail(&mut self, error: EngineError) {
        self.send(Event::Failed(error));
    }

    /// Releases what the stop matcher holds, then ends the row. Half a character at the end stays unsaid.
    fn finish(&mut self, reason: FinishReason) {
        let mut released = String::new();
        self.stop.finish(&mut released);
        self.release(released);
        self.end(reason, None);
    }

    fn release(&mut self, text: String) {
        if !text.is_empty() || !self.unsent.is_empty() {
            let tokens = std::mem::take(&mut self.unsent);
            self.send(Event::Delta(Delta { text, tokens }));
        }
    }

    fn end(&mut self, reason: FinishReason, stop: Option<String>) {
        let first = self.first_token.unwrap_or_else(Instant::now);
        let usage = Usage {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached,
            completion_tokens: self.ids.len(),
        };
        let timings = Timings {
            queued_s: (self.admitted - self.submitted).as_secs_f64(),
            prefill_s: (first - self.admitted).as_secs_f64(),
            decode_s: first.elapsed().as_secs_f64(),
        };
        self.send(Event::Finished(Finish { reason, stop, usage, timings }));
    }

    fn send(&mut self, event: Event) {
        self.outbox.push_back(event);
        self.flush();
    }

    /// Hands over what the client has room for. True when nothing is left.
    pub fn flush(&mut self) -> bool {
        while let Some(event) = self.outbox.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => self.paused = None,
                Err(TrySendError::Full(event)) => {
                    self.outbox.push_front(event);
                    self.paused.get_or_insert_with(Instant::now);
                    return false;
                }
                Err(TrySendError::Closed(_)) => self.outbox.clear(),
            }
        }
        true
    }
}
