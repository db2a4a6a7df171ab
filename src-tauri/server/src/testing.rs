//! A backend that plays a script instead of running a model, and the small model it pretends to serve. API tests
//! drive the whole server with it in milliseconds: answers, delays, failures, and a count of who hung up.

use hearth_core::backend::{Backend, BoxFuture, Generation, ModelCard, ServedModel, Unloaded};
use hearth_core::detokenizer::Detokenizer;
use hearth_core::event::{Delta, Event, Finish, FinishReason, Timings, TokenInfo, Usage};
use hearth_core::stats::{CacheClear, CacheFlush, CacheStats, Health, ModelStats, STATS_VERSION, Stats};
use hearth_core::stop::StopMatcher;
use hearth_core::tokenizer::Tokenizer;
use hearth_core::{EngineError, GenerateRequest, Limits, LimitsPreview};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Barrier, mpsc};

/// Id of the token that ends an answer.
pub const EOS: u32 = 256;
/// Id of the token that begins a text, in tokenizers that have one.
pub const BOS: u32 = 257;
/// Rows of the pretended LM head: a few more than the tokenizer has ids, as in real models.
pub const VOCAB: usize = 300;
/// A template with ChatML's markers.
pub const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// One step of a script.
#[derive(Debug, Clone)]
pub enum Step {
    /// The row leaves the queue with this many cached tokens. Scripts without it begin with `Admit(0)`.
    Admit(usize),
    /// This many prompt tokens are computed.
    Prefill(usize),
    /// Nothing happens for a while.
    Wait(Duration),
    /// Nothing happens until as many rows as the barrier counts have come to it.
    Meet(Arc<Barrier>),
    /// Nothing happens any more, until the client hangs up.
    Hang,
    /// One token.
    Token(u32),
    /// The tokens of a text, one for each byte.
    Text(String),
    /// The row fails.
    Fail(EngineError),
    /// The engine gives the row up.
    Cancel,
    /// The engine is gone: the row's events end without an end.
    Vanish,
}

type Answer = dyn Fn(&GenerateRequest) -> Vec<Step> + Send + Sync;

/// The scripted backend. Every submitted request gets the steps that its function returns; past the last step the
/// row ends with [`EOS`]. `max_tokens`, stop strings and whole characters are kept as a real engine keeps them.
pub struct ScriptedBackend {
    model: Arc<ServedModel>,
    answer: Box<Answer>,
    refusal: Mutex<Option<EngineError>>,
    health: Mutex<Health>,
    cache: Mutex<(CacheStats, CacheFlush)>,
    limits: Mutex<Limits>,
    rows: Rows,
    requests: Mutex<Vec<GenerateRequest>>,
    unloaded: Mutex<BTreeSet<String>>,
    pins: Mutex<BTreeSet<String>>,
    stays: Mutex<Vec<Option<Duration>>>,
    counts: Arc<Counts>,
    ids: AtomicU64,
}

/// The rows that run, and how to end each.
type Rows = Arc<Mutex<BTreeMap<u64, Arc<tokio::sync::Notify>>>>;

/// What the scripted model takes of its budget: limits below it are refused.
pub const TAKEN: u64 = 100_000_000;
/// Bytes that a token of the scripted model takes.
pub const PER_TOKEN: u64 = 1000;

#[derive(Debug, Default)]
struct Counts {
    active: AtomicUsize,
    cancelled: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedBackend {
    /// A backend that serves [`model`] and answers by this function.
    pub fn new(answer: impl Fn(&GenerateRequest) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::with_model(model(), answer)
    }

    /// A backend that serves this model.
    pub fn with_model(
        model: ServedModel,
        answer: impl Fn(&GenerateRequest) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        ScriptedBackend {
            health: Mutex::new(Health::Ready { model: model.id.clone() }),
            model: Arc::new(model),
            answer: Box::new(answer),
            refusal: Mutex::default(),
            cache: Mutex::new((CacheStats::default(), CacheFlush { entries: 3, bytes: 4096, failed: Vec::new() })),
            limits: Mutex::new(Limits {
                budget: Some(1_000_000_000),
                cache_ram: Some(1 << 20),
                cache_ssd: Some(0),
                context: Some(4096),
                max_rows: Some(8),
            }),
            rows: Rows::default(),
            requests: Mutex::default(),
            unloaded: Mutex::default(),
            pins: Mutex::default(),
            stays: Mutex::default(),
            counts: Arc::default(),
            ids: AtomicU64::new(0),
        }
    }

    /// A backend that always says this.
    pub fn saying(text: &str) -> Self {
        let text = text.to_owned();
        Self::new(move |_| vec![Step::Text(text.clone())])
    }

    /// From now on every request is refused with this, or accepted again.
    pub fn refuse(&self, error: Option<EngineError>) {
        *lock(&self.refusal) = error;
    }

    /// What `/health` says from now on.
    pub fn set_health(&self, health: Health) {
        *lock(&self.health) = health;
    }

    /// What the prompt cache's figures are from now on, and what a flush of it answers.
    pub fn set_cache(&self, stats: CacheStats, flush: CacheFlush) {
        *lock(&self.cache) = (stats, flush);
    }

    /// Every request submitted so far.
    pub fn requests(&self) -> Vec<GenerateRequest> {
        lock(&self.requests).clone()
    }

    /// The latest request.
    pub fn last_request(&self) -> Option<GenerateRequest> {
        lock(&self.requests).last().cloned()
    }

    /// The latest prompt as text, special tokens spelled out.
    pub fn last_prompt(&self) -> String {
        let ids = self.last_request().map(|r| r.prompt).unwrap_or_default();
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.model.tokenizer.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How long models were asked to stay, in order.
    pub fn stays(&self) -> Vec<Option<Duration>> {
        lock(&self.stays).clone()
    }

    /// Rows that are running.
    pub fn active(&self) -> usize {
        self.counts.active.load(Ordering::SeqCst)
    }

    /// The number of the row that began first of those that run; 0 without one.
    pub fn first_id(&self) -> u64 {
        lock(&self.rows).keys().next().copied().unwrap_or(0)
    }

    /// Rows whose client hung up.
    pub fn cancelled(&self) -> usize {
        self.counts.cancelled.load(Ordering::SeqCst)
    }
}

impl Backend for ScriptedBackend {
    fn models(&self) -> BoxFuture<'_, Vec<ModelCard>> {
        let m = &self.model;
        let loaded = lock(&self.unloaded).is_empty();
        let card = ModelCard {
            id: m.id.clone(),
            created: m.created,
            loaded,
            state: if loaded { "loaded" } else { "on_disk" },
            pinned: lock(&self.pins).contains(&m.id),
            context: m.context,
        };
        Box::pin(std::future::ready(vec![card]))
    }

    fn load_model<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>> {
        lock(&self.unloaded).clear();
        self.resolve(Some(name))
    }

    fn unload_model<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Unloaded, EngineError>> {
        let active = self.active();
        let answer = if id != self.model.id {
            Err(EngineError::ModelNotFound { name: id.to_owned(), available: vec![self.model.id.clone()] })
        } else if active > 0 {
            Err(EngineError::ModelBusy { model: id.to_owned(), requests: active })
        } else {
            lock(&self.unloaded).insert(id.to_owned());
            Ok(Unloaded { id: id.to_owned(), freed: TAKEN })
        };
        Box::pin(std::future::ready(answer))
    }

    fn pin_model(&self, id: &str, pinned: bool) {
        let mut pins = lock(&self.pins);
        if pinned {
            pins.insert(id.to_owned())
        } else {
            pins.remove(id)
        };
    }

    fn keep_alive(&self, _: &ServedModel, stay: Option<Duration>) {
        lock(&self.stays).push(stay);
    }

    fn resolve<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>> {
        Box::pin(async move {
            match name {
                Some("no-such-model") => Err(EngineError::ModelNotFound {
                    name: "no-such-model".into(),
                    available: vec![self.model.id.clone()],
                }),
                // Not a name that a test of panics would share with one of models.
                Some("panic!") => unreachable!("the backend panics on request"),
                _ => Ok(self.model.clone()),
            }
        })
    }

    fn submit(&self, model: &ServedModel, request: GenerateRequest) -> Result<Generation, EngineError> {
        if let Some(e) = lock(&self.refusal).clone() {
            return Err(e);
        }
        if request.prompt.len() >= model.context {
            return Err(EngineError::ContextLengthExceeded { prompt: request.prompt.len(), limit: model.context });
        }
        let (events, receiver) = mpsc::channel(16);
        let id = self.ids.fetch_add(1, Ordering::SeqCst);
        let (cancelled, rows) = (Arc::new(tokio::sync::Notify::new()), self.rows.clone());
        lock(&rows).insert(id, cancelled.clone());
        let row = Row::new(self.model.clone(), &request, events, self.counts.clone());
        let steps = (self.answer)(&request);
        tokio::spawn(async move {
            row.play(steps, &cancelled).await;
            lock(&rows).remove(&id);
        });
        lock(&self.requests).push(request);
        Ok(Generation { id, events: receiver })
    }

    fn health(&self) -> Health {
        lock(&self.health).clone()
    }

    fn stats(&self) -> Stats {
        let m = &self.model;
        let pinned = lock(&self.pins).contains(&m.id);
        let model = ModelStats { id: m.id.clone(), context: m.context, pinned, ..ModelStats::default() };
        let model = Some(model).filter(|_| lock(&self.unloaded).is_empty());
        let cache = lock(&self.cache).0.clone();
        Stats {
            version: STATS_VERSION,
            models: model.iter().cloned().collect(),
            model,
            max_rows: 8,
            cache,
            ..Stats::default()
        }
    }

    fn flush_cache(&self) -> BoxFuture<'_, Result<CacheFlush, EngineError>> {
        Box::pin(std::future::ready(Ok(lock(&self.cache).1.clone())))
    }

    fn clear_cache(&self) -> BoxFuture<'_, Result<CacheClear, EngineError>> {
        Box::pin(std::future::ready(Ok(CacheClear { entries: 3, bytes: 4096, files: 2, file_bytes: 2048 })))
    }

    fn set_limits(&self, limits: Limits) -> BoxFuture<'_, Result<Limits, EngineError>> {
        let answer = self.preview_limits(limits).and_then(|preview| {
            if !preview.fits {
                let allowed = format!("{} bytes more", preview.short_by);
                return Err(EngineError::param("budget", &allowed, limits.budget.unwrap_or_default()));
            }
            let mut all = lock(&self.limits);
            *all = Limits {
                budget: limits.budget.or(all.budget),
                cache_ram: limits.cache_ram.or(all.cache_ram),
                cache_ssd: limits.cache_ssd.or(all.cache_ssd),
                context: limits.context.or(all.context),
                max_rows: limits.max_rows.or(all.max_rows),
            };
            Ok(*all)
        });
        Box::pin(std::future::ready(answer))
    }

    fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    fn preview_limits(&self, limits: Limits) -> Result<LimitsPreview, EngineError> {
        if limits.max_rows == Some(0) {
            return Err(EngineError::param("max_rows", "between 1 and 256", 0));
        }
        let budget = limits.budget.or(self.limits().budget).unwrap_or_default();
        let cap = limits.cache_ram.or(self.limits().cache_ram).unwrap_or_default();
        let demoted_bytes = lock(&self.cache).0.ram.bytes.saturating_sub(cap);
        Ok(LimitsPreview {
            fits: budget >= TAKEN,
            short_by: TAKEN.saturating_sub(budget),
            largest_context: (budget.saturating_sub(TAKEN) / PER_TOKEN).min(self.model.context as u64),
            demoted_entries: usize::from(demoted_bytes > 0),
            demoted_bytes,
        })
    }

    fn cancel(&self, id: u64) -> bool {
        match lock(&self.rows).get(&id) {
            Some(cancelled) => {
                cancelled.notify_one();
                true
            }
            None => false,
        }
    }
}

/// One row while it plays.
struct Row {
    model: Arc<ServedModel>,
    events: mpsc::Sender<Event>,
    counts: Arc<Counts>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    left: usize,
    logprobs: Option<u8>,
    ignore_eos: bool,
    usage: Usage,
}

/// Why a row stops playing.
enum End {
    Finished(FinishReason, Option<String>),
    Failed(EngineError),
    Gone,
    Vanished,
}

impl Row {
    fn new(model: Arc<ServedModel>, r: &GenerateRequest, events: mpsc::Sender<Event>, counts: Arc<Counts>) -> Self {
        counts.active.fetch_add(1, Ordering::SeqCst);
        let room = model.context - r.prompt.len();
        Row {
            model,
            events,
            counts,
            detokenizer: Detokenizer::default(),
            stops: StopMatcher::new(&r.stop),
            left: r.max_tokens.map_or(room, |m| m.min(room)),
            logprobs: r.logprobs,
            ignore_eos: r.ignore_eos,
            usage: Usage { prompt_tokens: r.prompt.len(), ..Usage::default() },
        }
    }

    async fn play(mut self, mut steps: Vec<Step>, cancelled: &tokio::sync::Notify) {
        if !steps.iter().any(|s| matches!(s, Step::Admit(_))) {
            steps.insert(0, Step::Admit(0));
        }
        let end = tokio::select! {
            end = self.steps(steps) => end,
            () = cancelled.notified() => End::Failed(EngineError::Cancelled),
        };
        let last = match end {
            End::Finished(reason, stop) => {
                let mut text = String::new();
                if stop.is_none() {
                    let mut tail = String::new();
                    self.detokenizer.finish(&mut tail);
                    if self.stops.push(&tail, &mut text).is_none() {
                        self.stops.finish(&mut text);
                    }
                }
                if !text.is_empty() {
                    let _ = self.events.send(Event::Delta(Delta { text, tokens: Vec::new() })).await;
                }
                let timings = Timings { queued_s: 0.001, prefill_s: 0.01, decode_s: 0.1 };
                Some(Event::Finished(Finish { reason, stop, usage: self.usage, timings }))
            }
            End::Failed(e) => Some(Event::Failed(e)),
            End::Gone => {
                self.counts.cancelled.fetch_add(1, Ordering::SeqCst);
                None
            }
            End::Vanished => None,
        };
        self.counts.active.fetch_sub(1, Ordering::SeqCst);
        if let Some(event) = last {
            let _ = self.events.send(event).await;
        }
    }

    async fn steps(&mut self, steps: Vec<Step>) -> End {
        for step in steps {
            let ended = match step {
                Step::Admit(cached_tokens) => {
                    self.usage.cached_tokens = cached_tokens;
                    self.send(Event::Admitted { cached_tokens }).await
                }
                Step::Prefill(done) => self.send(Event::Prefill { done, total: self.usage.prompt_tokens }).await,
                Step::Wait(time) => tokio::select! {
                    () = tokio::time::sleep(time) => None,
                    () = self.events.closed() => Some(End::Gone),
                },
                Step::Meet(barrier) => {
                    barrier.wait().await;
                    None
                }
                Step::Hang => {
                    self.events.closed().await;
                    Some(End::Gone)
                }
                Step::Token(id) => self.token(id).await,
                Step::Text(text) => {
                    let mut ended = None;
                    for byte in text.bytes() {
                        ended = self.token(byte.into()).await;
                        if ended.is_some() {
                            break;
                        }
                    }
                    ended
                }
                Step::Fail(e) => Some(End::Failed(e)),
                Step::Cancel => Some(End::Finished(FinishReason::Cancelled, None)),
                Step::Vanish => Some(End::Vanished),
            };
            if let Some(end) = ended {
                return end;
            }
        }
        if let Some(end) = self.token(EOS).await {
            return end;
        }
        End::Finished(FinishReason::Stop, None)
    }

    async fn send(&self, event: Event) -> Option<End> {
        self.events.send(event).await.err().map(|_| End::Gone)
    }

    /// Generates one token.
    async fn token(&mut self, id: u32) -> Option<End> {
        self.usage.completion_tokens += 1;
        self.left = self.left.saturating_sub(1);
        let is_end = self.model.eos.contains(&id) && !self.ignore_eos;
        let (mut whole, mut text) = (String::new(), String::new());
        self.detokenizer.push(&self.model.tokenizer, id, &mut whole);
        let stop = self.stops.push(&whole, &mut text).map(str::to_owned);
        let top = (0..u32::from(self.logprobs.unwrap_or(0))).map(|i| ((id + i) % 256, -0.5 - i as f32)).collect();
        let info = TokenInfo { id, logprob: self.logprobs.map(|_| -0.5), top };
        if let Some(end) = self.send(Event::Delta(Delta { text, tokens: vec![info] })).await {
            return Some(end);
        }
        match (is_end, stop) {
            (true, _) => Some(End::Finished(FinishReason::Stop, None)),
            (false, Some(stop)) => Some(End::Finished(FinishReason::Stop, Some(stop))),
            (false, None) if self.left == 0 => Some(End::Finished(FinishReason::Length, None)),
            (false, None) => None,
        }
    }
}

/// The pretended model: [`CHATML`], a context of 4096 tokens, and [`tokenizer`] without a first token.
pub fn model() -> ServedModel {
    ServedModel {
        id: "test-org/test-model".into(),
        path: "/models/test-org/test-model".into(),
        model_type: "llama".into(),
        created: 1_700_000_000,
        context: 4096,
        vocab_size: VOCAB,
        eos: vec![EOS],
        tokenizer: Arc::new(tokenizer(false)),
        chat_template: Some(CHATML.into()),
        tokenizer_config: Arc::new(json!({"bos_token": "<s>", "eos_token": "<|end|>"})),
        generation_config: Arc::new(json!({})),
    }
}

/// A byte-level tokenizer: token `i` is byte `i`; above them [`EOS`] `<|end|>`, [`BOS`] `<s>`, `<|im_start|>`,
/// `<|im_end|>` and the three fill-in-the-middle tokens of Qwen. With `bos`, texts get [`BOS`] put before them.
///
/// # Panics
/// Never: the JSON is fixed.
pub fn tokenizer(bos: bool) -> Tokenizer {
    merging_tokenizer(bos, &[])
}

/// Id of the first merged token of a [`merging_tokenizer`].
pub const MERGED: u32 = 263;

/// As [`tokenizer`], and two tokens that stand side by side become one for each of these pairs, the first pair going
/// first: a text then has several spellings in tokens, of which the tokenizer knows one.
///
/// # Panics
/// When a pair is made of tokens that do not exist.
#[allow(clippy::expect_used)]
pub fn merging_tokenizer(bos: bool, pairs: &[(&str, &str)]) -> Tokenizer {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut other = 0x100u32;
    let mut vocab = serde_json::Map::new();
    for b in 0..=255u8 {
        let code = if printable(b) {
            u32::from(b)
        } else {
            other += 1;
            other - 1
        };
        vocab.insert(char::from_u32(code).unwrap_or_default().to_string(), b.into());
    }
    let names = ["<|end|>", "<s>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    // In the vocabulary as well: a tokenizer gives other ids to tokens that are only added.
    vocab.extend(names.iter().zip(EOS..).map(|(name, id)| ((*name).to_owned(), id.into())));
    for ((a, b), id) in pairs.iter().zip(MERGED..) {
        vocab.insert(format!("{a}{b}"), id.into());
    }
    let merges: Vec<Value> = pairs.iter().map(|(a, b)| json!([a, b])).collect();
    let added: Vec<Value> = (EOS..)
        .zip(names)
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        })
        .collect();
    let first = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": if bos { first } else { Value::Null },
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": merges},
    });
    Tokenizer::from_json(json.to_string().as_bytes(), Path::new("tokenizer.json")).expect("a fixed tokenizer")
}
