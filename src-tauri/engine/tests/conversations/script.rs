//! Random conversations: what is asked turn by turn, with edits, forks, repeats, truncations and replays, and what an
//! engine without a prompt cache answers. The arms with a cache get the same prompts.

use crate::arms::{Answer, Arm, NEAR};
use hearth_core::GenerateRequest;
use hearth_core::event::TokenInfo;

/// A small random generator with a fixed seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n` (at least 1).
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    /// A number of this range.
    pub fn of(&mut self, range: std::ops::Range<usize>) -> usize {
        range.start + self.below(range.len())
    }
}

/// Where a user's tokens come from.
pub enum Words {
    /// Any ids below this.
    Ids(u32),
    /// Passages of a text.
    Text(Vec<u32>),
}

impl Words {
    /// `n` tokens. Ids come from a small alphabet at times, so that conversations share beginnings by chance.
    pub fn some(&self, random: &mut Random, n: usize) -> Vec<u32> {
        match self {
            Words::Ids(all) => {
                let alphabet = if random.below(3) == 0 { 2 } else { *all as usize };
                (0..n).map(|_| random.below(alphabet) as u32).collect()
            }
            Words::Text(text) => {
                let from = random.below(text.len());
                text.iter().cycle().skip(from).take(n).copied().collect()
            }
        }
    }

    /// Another token than this one.
    fn other(&self, random: &mut Random, token: u32) -> u32 {
        loop {
            match self.some(random, 1)[0] {
                same if same == token => {}
                other => return other,
            }
        }
    }
}

/// How long things are.
#[derive(Clone)]
pub struct Lengths {
    /// First prompts: one of these ranges.
    pub first: Vec<std::ops::Range<usize>>,
    /// What a user adds.
    pub added: std::ops::Range<usize>,
    /// What is generated.
    pub generated: std::ops::Range<usize>,
    /// Turns of a conversation.
    pub turns: std::ops::Range<usize>,
    /// The shortest prompt.
    pub least: usize,
}

/// One request and what the engine without a cache answered.
pub struct Turn {
    pub request: GenerateRequest,
    pub cold: Vec<TokenInfo>,
    /// What was done to the history.
    pub what: &'static str,
}

impl Turn {
    fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.cold.iter().map(|t| t.id)
    }

    /// Steps whose two best logits are nearer than [`NEAR`], and how near.
    pub fn near_ties(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        let gaps = self.cold.iter().map(|t| t.top[0].1 - t.top[1].1).enumerate();
        gaps.filter(|(_, gap)| *gap < NEAR)
    }

    /// Prompt and answer.
    fn whole(&self) -> Vec<u32> {
        self.request.prompt.iter().copied().chain(self.ids()).collect()
    }
}

/// The next prompt after these turns.
fn next(random: &mut Random, words: &Words, lengths: &Lengths, turns: &[Turn]) -> (Vec<u32>, &'static str) {
    let Some(last) = turns.last() else {
        let range = lengths.first[random.below(lengths.first.len())].clone();
        let n = random.of(range);
        return (words.some(random, n), "first");
    };
    let added = random.of(lengths.added.clone());
    let mut prompt = last.whole();
    let what = match random.below(12) {
        0..=3 => "continued",
        4 | 5 => {
            let at = random.below(prompt.len());
            prompt[at] = words.other(random, prompt[at]);
            "edited"
        }
        6 | 7 => {
            prompt = turns[random.below(turns.len())].whole();
            "forked"
        }
        8 => return (last.request.prompt.clone(), "repeated"),
        9 => {
            prompt.truncate(random.of(lengths.least..prompt.len()));
            if random.below(2) == 0 {
                return (prompt, "truncated");
            }
            "truncated and continued"
        }
        10 => {
            // What the engine has seen of it: the last token was sampled and never went in.
            prompt.pop();
            return (prompt, "replayed up to the cached sequence");
        }
        _ => return (prompt, "replayed"),
    };
    prompt.extend(words.some(random, added));
    (prompt, what)
}

/// `count` conversations, some with a system prompt that others have too, answered by an engine without a cache,
/// `at_once` requests at a time. Each ends after its own number of turns.
pub fn conversations(
    cold: &Arm,
    words: &Words,
    lengths: &Lengths,
    (count, at_once): (usize, usize),
    seed: u64,
) -> Vec<Vec<Turn>> {
    let mut random = Random(seed);
    let systems: Vec<Vec<u32>> = lengths
        .first
        .iter()
        .map(|range| {
            let n = random.of(range.clone());
            words.some(&mut random, n)
        })
        .collect();
    let mut all: Vec<(Vec<Turn>, usize)> = (0..count).map(|_| (Vec::new(), random.of(lengths.turns.clone()))).collect();
    loop {
        let mut asked = Vec::new();
        for (i, (turns, length)) in all.iter().enumerate() {
            if turns.len() == *length {
                continue;
            }
            let (mut prompt, what) = next(&mut random, words, lengths, turns);
            let mut boundaries = Vec::new();
            if turns.is_empty() && random.below(2) == 0 {
                let system = &systems[random.below(systems.len())];
                prompt = [&system[..], &prompt].concat();
                boundaries.push(system.len());
            }
            for _ in 0..random.below(3) {
                boundaries.push(random.of(0..prompt.len()));
            }
            boundaries.retain(|&b| b > 0 && b < prompt.len());
            boundaries.sort_unstable();
            boundaries.dedup();
            let tokens = random.of(lengths.generated.clone());
            let request = GenerateRequest { boundaries, logprobs: Some(5), ..GenerateRequest::greedy(&prompt, tokens) };
            asked.push((i, request, what));
        }
        if asked.is_empty() {
            break;
        }
        for batch in asked.chunks(at_once) {
            let answers = cold.ask(batch.iter().map(|(_, request, _)| request.clone()));
            for ((i, request, what), Answer { tokens, usage }) in batch.iter().zip(answers) {
                assert_eq!(usage.cached_tokens, 0, "a cache that is off");
                all[*i].0.push(Turn { request: request.clone(), cold: tokens, what });
            }
        }
    }
    all.into_iter().map(|(turns, _)| turns).collect()
}
