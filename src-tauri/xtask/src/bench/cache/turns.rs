//! Conversations: the first token of the first turn and of those after it, on both sides.

use super::lines::Line;
use super::{Bench, DENSE, HEARTH, SAVING, message};
use crate::bench::report::Target;
use crate::http;
use crate::server::Server;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the rows of a model are called, behind its name.
pub const NAMES: [&str; 7] = [COLD, HIT, RESTART, KILLED, EDITED, RETOKENIZED, NONCE];
const COLD: &str = "first turn";
const HIT: &str = "second turn";
const RESTART: &str = "second turn after a restart";
const KILLED: &str = "second turn after flush and kill -9";
const EDITED: &str = "edited answer";
const RETOKENIZED: &str = "answer with other ids";
const NONCE: &str = "new header line";
/// First turns of which only the second is a row.
const COLD_BEFORE_RESTART: &str = "first turn before the restart";
const COLD_BEFORE_KILL: &str = "first turn before the kill";

/// Words of the system prompt and of the first question: about as many tokens.
const SYSTEM: usize = 1000;
const USER: usize = 450;
/// The same for a quick look.
const QUICK_SYSTEM: usize = 250;
const QUICK_USER: usize = 100;
/// Bytes of the same for the tiny models, whose tokens are bytes. Most of it is not the system prompt, whose end the peer
/// keeps as well.
const TINY_SYSTEM: usize = 900;
const TINY_USER: usize = 2400;
/// Tokens of the first answer, and of the measured ones.
const ANSWER: usize = 24;
const SHORT: usize = 8;
/// A server stores what it computed after its answer is out.
const REST: Duration = Duration::from_millis(150);

/// One answer.
pub struct Turn {
    /// Seconds from the request to the first token.
    pub first: f64,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Those that were not computed.
    pub cached: u64,
    /// Tokens of the answer.
    pub generated: u64,
    /// The answer.
    pub text: String,
}

/// Asks, streamed, and rests a little. `bias`: this id, again and again.
pub fn ask(server: SocketAddr, messages: &[Value], count: usize, bias: Option<u64>) -> Result<Turn> {
    let mut body = json!({"messages": messages, "max_tokens": count, "temperature": 0, "stream": true,
                          "stream_options": {"include_usage": true}});
    if let Some(id) = bias {
        body["logit_bias"] = json!({id.to_string(): 100});
    }
    let (sent, mut first, mut text, mut usage) = (Instant::now(), None, String::new(), Value::Null);
    http::stream(server, "/v1/chat/completions", &body, |event| {
        let choice = &event["choices"][0];
        let more = choice["delta"]["content"].as_str().unwrap_or_default();
        // An answer may be over before it has begun: then its first token is the end.
        if !more.is_empty() || choice["finish_reason"].is_string() {
            first.get_or_insert_with(|| sent.elapsed().as_secs_f64());
        }
        text.push_str(more);
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    std::thread::sleep(REST);
    let number = |value: &Value| value.as_u64().with_context(|| format!("a server's usage is {usage}"));
    Ok(Turn {
        first: first.context("a server's stream has neither text nor an end")?,
        prompt: number(&usage["prompt_tokens"])?,
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
        generated: number(&usage["completion_tokens"])?,
        text,
    })
}

/// So many words, of one token each for most tokenizers; other words for each number, from the first one on.
pub fn words(number: usize, count: usize) -> String {
    const WORDS: [&str; 30] = [
        "river", "stone", "window", "garden", "letter", "winter", "bridge", "music", "table", "morning", "engine",
        "forest", "island", "paper", "market", "silver", "captain", "mountain", "kitchen", "sailor", "painter",
        "valley", "harbor", "village", "teacher", "doctor", "farmer", "story", "summer", "evening",
    ];
    let mut state = number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut text = format!("{}{number}", WORDS[number % WORDS.len()]);
    for _ in 1..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push(' ');
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
    }
    text
}

/// How the conversations of a model begin.
#[derive(Clone, Copy)]
enum Length {
    /// So many words of system prompt and first question.
    Words(usize, usize),
    /// So many bytes.
    Bytes(usize, usize),
}

impl Length {
    /// System prompt and first question of conversation `number`.
    fn opening(self, number: usize) -> Vec<Value> {
        let text = |number, count| match self {
            Length::Words(..) => words(number, count),
            Length::Bytes(..) => words(number, count).chars().take(count).collect(),
        };
        let (Length::Words(system, user) | Length::Bytes(system, user)) = self;
        vec![message("system", &text(number, system)), message("user", &text(number + 500_000, user))]
    }
}

/// The next turn after an answer.
fn next(messages: &[Value], answer: &str) -> Vec<Value> {
    let mut messages = messages.to_vec();
    messages.extend([message("assistant", answer), message("user", "Why is that so?")]);
    messages
}

/// With a client's header line at the start of the system prompt.
fn with_header(messages: &[Value], nonce: usize) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let system = messages[0]["content"].as_str().unwrap_or_default();
    let header = format!("x-anthropic-billing-header: cc_version=2.1.{nonce}; cch={:05x};", nonce * 7919);
    messages[0]["content"] = format!("{header}\n{system}").into();
    messages
}

/// The first half of an answer, and other words.
fn edited(answer: &str) -> String {
    let half = answer.floor_char_boundary(answer.len() / 2);
    format!("{} and so on", &answer[..half])
}

/// Seconds to the first token by row, on both sides, a figure a round.
#[derive(Default)]
struct Figures {
    times: BTreeMap<(&'static str, usize), Vec<f64>>,
    /// Rounds in which the peer had most of the prompt cached, and all rounds.
    hits: BTreeMap<&'static str, (usize, usize)>,
}

impl Figures {
    /// Notes a figure, unless it is the dropped round's.
    fn note(&mut self, name: &'static str, who: usize, round: usize, turn: &Turn) {
        if round == 0 {
            return;
        }
        self.times.entry((name, who)).or_default().push(turn.first);
        if who == DENSE {
            let (hits, rounds) = self.hits.entry(name).or_default();
            *hits += usize::from(turn.cached * 2 >= turn.prompt);
            *rounds += 1;
        }
    }

    fn of(&self, name: &'static str, who: usize) -> Vec<f64> {
        self.times.get(&(name, who)).cloned().unwrap_or_default()
    }

    /// A row against Hearth's own first turn, in the figures called `cold`.
    fn to_cold(&self, of: &str, name: &'static str, cold: &'static str, most: f64) -> Line {
        Line {
            name: format!("{of}: {name}"),
            unit: "s",
            hearth: self.of(name, HEARTH),
            against: "its first turn",
            other: self.of(cold, HEARTH),
            target: Some(Target::AtMost(most)),
            note: String::new(),
        }
    }

    /// A row against the peer, whose cache hits or misses.
    fn to_peer(&self, of: &str, name: &'static str) -> Line {
        let (hits, rounds) = self.hits.get(name).copied().unwrap_or_default();
        let hit = hits * 2 > rounds;
        let (most, note) = if hit { (0.6, "the peer hits") } else { (0.2, "the peer misses") };
        let cold = name == COLD;
        Line {
            name: format!("{of}: {name}"),
            unit: "s",
            hearth: self.of(name, HEARTH),
            against: "mlx-lm f32",
            other: self.of(name, DENSE),
            target: (!cold).then_some(Target::AtMost(most)),
            note: if cold { String::new() } else { note.into() },
        }
    }
}

/// A model in the contest.
struct Model {
    /// Before the rows' names.
    name: &'static str,
    /// Hearth's folder and the peer's.
    folders: [PathBuf; 2],
    length: Length,
    /// The token of the letter a.
    letter: u64,
}

impl Model {
    fn new(name: &'static str, folders: [PathBuf; 2], length: Length) -> Result<Self> {
        let json: Value = serde_json::from_slice(&std::fs::read(folders[0].join("tokenizer.json"))?)?;
        let letter = json["model"]["vocab"]["a"].as_u64().context("the tokenizer has no token for the letter a")?;
        Ok(Model { name, folders, length, letter })
    }

    fn serve(&self, bench: &Bench<'_>, who: usize) -> Result<Server> {
        let server = bench.serve(who, &self.folders[usize::from(who == DENSE)])?;
        // Pages the weights in.
        ask(server.address, &[message("user", "Hello there.")], 4, Some(self.letter))?;
        Ok(server)
    }

    /// Both servers; the one of [`HEARTH`] first.
    fn both(&self, bench: &Bench<'_>) -> Result<Both> {
        Ok(Both(self.serve(bench, HEARTH)?, self.serve(bench, DENSE)?))
    }

    /// A tiny random model says no words: it is made to say a letter.
    fn bias(&self) -> Option<u64> {
        matches!(self.length, Length::Bytes(..)).then_some(self.letter)
    }

    /// First turn, second turn, and the second turn again after an edit of the answer.
    fn conversation(&self, figures: &mut Figures, server: SocketAddr, who: usize, round: usize) -> Result<()> {
        let opening = self.length.opening(1000 + round);
        let cold = ask(server, &opening, ANSWER, self.bias())?;
        figures.note(COLD, who, round, &cold);
        figures.note(HIT, who, round, &ask(server, &next(&opening, &cold.text), SHORT, self.bias())?);
        let edited = next(&opening, &edited(&cold.text));
        figures.note(EDITED, who, round, &ask(server, &edited, SHORT, self.bias())?);
        Ok(())
    }
}

/// Hearth's server and the peer's.
struct Both(Server, Server);

impl Both {
    fn of(&self, who: usize) -> SocketAddr {
        if who == HEARTH { self.0.address } else { self.1.address }
    }

    /// Ends both in order: Hearth saves its cache.
    fn end(mut self) -> Result<()> {
        self.0.end_within(SAVING)?;
        self.1.end()?;
        Ok(())
    }
}

/// The rows of the starter model.
pub fn smollm(bench: &Bench<'_>) -> Result<Vec<Line>> {
    let length = match bench.options.quick {
        true => Length::Words(QUICK_SYSTEM, QUICK_USER),
        false => Length::Words(SYSTEM, USER),
    };
    let folders = [bench.contest.quantized.clone(), bench.contest.dense.clone()];
    let model = Model::new("SmolLM2", folders, length)?;
    let who = [HEARTH, DENSE];
    let mut figures = Figures::default();
    bench.new_home()?;
    let servers = model.both(bench)?;
    let mut before_restart = BTreeMap::new();
    bench.rounds("conversations on SmolLM2", &who, |who, round| {
        let server = servers.of(who);
        model.conversation(&mut figures, server, who, round)?;
        // An answer of one letter many times is tokenized otherwise than it was generated.
        let opening = model.length.opening(2000 + round);
        let odd = ask(server, &opening, ANSWER, Some(model.letter))?;
        figures.note(RETOKENIZED, who, round, &ask(server, &next(&opening, &odd.text), SHORT, None)?);
        let opening = model.length.opening(3000 + round);
        let first = ask(server, &with_header(&opening, 2 * round + 1), ANSWER, None)?;
        let second = with_header(&next(&opening, &first.text), 2 * round + 2);
        figures.note(NONCE, who, round, &ask(server, &second, SHORT, None)?);
        let opening = model.length.opening(4000 + round);
        let first = ask(server, &opening, ANSWER, None)?;
        figures.note(COLD_BEFORE_RESTART, who, round, &first);
        before_restart.insert((who, round), next(&opening, &first.text));
        Ok(())
    })?;
    servers.end()?;
    let servers = model.both(bench)?;
    bench.rounds("after a restart", &who, |who, round| {
        let messages = before_restart.get(&(who, round)).context("a round was left out")?;
        figures.note(RESTART, who, round, &ask(servers.of(who), messages, SHORT, None)?);
        Ok(())
    })?;
    let Both(mut hearth, mut peer) = servers;
    peer.end()?;
    let mut before_kill = Vec::new();
    bench.rounds("before a kill", &[HEARTH], |who, round| {
        let opening = model.length.opening(5000 + round);
        let first = ask(hearth.address, &opening, ANSWER, None)?;
        figures.note(COLD_BEFORE_KILL, who, round, &first);
        before_kill.push(next(&opening, &first.text));
        Ok(())
    })?;
    bench.cache("flush")?;
    hearth.kill()?;
    let mut hearth = model.serve(bench, HEARTH)?;
    bench.rounds("after flush and kill -9", &[HEARTH], |who, round| {
        figures.note(KILLED, who, round, &ask(hearth.address, &before_kill[round], SHORT, None)?);
        Ok(())
    })?;
    hearth.end_within(SAVING)?;
    let of = model.name;
    Ok(vec![
        figures.to_peer(of, COLD),
        figures.to_cold(of, HIT, COLD, 0.1),
        figures.to_cold(of, RESTART, COLD_BEFORE_RESTART, 0.15),
        figures.to_cold(of, KILLED, COLD_BEFORE_KILL, 0.15),
        figures.to_peer(of, HIT),
        figures.to_peer(of, RESTART),
        figures.to_peer(of, EDITED),
        figures.to_peer(of, RETOKENIZED),
        figures.to_peer(of, NONCE),
    ])
}

/// The rows of a tiny model whose state cannot be trimmed.
pub fn hybrid(bench: &Bench<'_>, name: &'static str) -> Result<Vec<Line>> {
    let folder = bench.ws.root.join("tests/goldens").join(name);
    let model = Model::new(name, [folder.clone(), folder], Length::Bytes(TINY_SYSTEM, TINY_USER))?;
    let mut figures = Figures::default();
    bench.new_home()?;
    let servers = model.both(bench)?;
    bench.rounds(&format!("conversations on {name}"), &[HEARTH, DENSE], |who, round| {
        model.conversation(&mut figures, servers.of(who), who, round)
    })?;
    servers.end()?;
    Ok(vec![
        figures.to_peer(name, COLD),
        figures.to_cold(name, HIT, COLD, 0.15),
        figures.to_peer(name, HIT),
        figures.to_peer(name, EDITED),
    ])
}
