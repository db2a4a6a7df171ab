use super::*;
use crate::config::ServerConfig;
use crate::params::Fields;
use crate::prompt::ChatPrompt;
use crate::template::ChatTemplate;
use crate::testing::{CHATML, EOS, MERGED, ScriptedBackend, merging_tokenizer, model};
use crate::transcripts::Recorder;
use hearth_core::event::{Delta, Finish, FinishReason, Timings, TokenInfo, Usage};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

/// `<|im_end|>`: what the template writes after a message, and an end of sequence.
const IM_END: u32 = 259;
const TRIMMING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const PAIRS: [(&str, &str); 6] = [("a", "b"), ("ab", "a"), ("Ċ", "Ċ"), ("Ġ", "a"), ("b", "c"), ("Ċ", "a")];

struct Bench {
    state: AppState,
    model: Arc<ServedModel>,
    template: Arc<ChatTemplate>,
}

impl Bench {
    fn new(template: &str, bos: bool) -> Self {
        let tokenizer = Arc::new(merging_tokenizer(bos, &PAIRS));
        let chat_template = Some(template.to_owned());
        let model = ServedModel { tokenizer, chat_template, eos: vec![EOS, IM_END], context: 1 << 20, ..model() };
        let state = AppState::new(ServerConfig::default(), Arc::new(ScriptedBackend::saying("")));
        let template = state.template(&model, false).unwrap();
        Bench { state, model: Arc::new(model), template }
    }

    fn rendered(&self, body: &Value) -> Rendered {
        let prompt = ChatPrompt::read(Fields::new(body.as_object().unwrap()), false).unwrap();
        prompt.render(&self.template).unwrap()
    }

    fn chat(&self, messages: &[Value]) -> (String, Tokens) {
        let rendered = self.rendered(&json!({"messages": messages}));
        (rendered.text.clone(), chat(&self.state, &self.model, rendered).unwrap())
    }

    /// Plays a generation of these tokens and remembers it; returns its text.
    fn generate(&self, tokens: Tokens, generated: &[u32], stop: Option<&str>) -> String {
        let text = self.model.tokenizer.decode(generated);
        self.generate_as(tokens, generated, &text, stop);
        text
    }

    fn generate_as(&self, tokens: Tokens, generated: &[u32], text: &str, stop: Option<&str>) {
        let Tokens { ids, memo, .. } = tokens;
        let mut recorder = Recorder::new(self.state.transcripts().clone(), self.model.clone(), memo, &ids);
        let info = |&id: &u32| TokenInfo { id, logprob: None, top: Vec::new() };
        recorder.delta(&Delta { text: text.to_owned(), tokens: generated.iter().map(info).collect() });
        let reason = match generated.last().is_some_and(|id| self.model.eos.contains(id)) || stop.is_some() {
            true => FinishReason::Stop,
            false => FinishReason::Length,
        };
        let stop = stop.map(str::to_owned);
        recorder.finished(&Finish { reason, stop, usage: Usage::default(), timings: Timings::default() });
    }

    fn plain_ids(&self, text: &str) -> Vec<u32> {
        let ids = self.model.tokenizer.encode(text, false).unwrap();
        let bos = self.model.tokenizer.bos().filter(|bos| ids.first() != Some(bos));
        bos.into_iter().chain(ids).collect()
    }

    /// The ids' text, special tokens spelled out.
    fn spelled(&self, ids: &[u32]) -> String {
        let ids = ids.iter().skip_while(|&&id| Some(id) == self.model.tokenizer.bos());
        String::from_utf8(ids.flat_map(|&id| self.model.tokenizer.token_bytes(id)).copied().collect()).unwrap()
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn visible(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// "ab" as two tokens: the tokenizer makes one of it.
const AB: [u32; 2] = [97, 98];

#[test]
fn generated_ids_are_kept_over_many_turns() {
    for template in [CHATML, TRIMMING] {
        let bench = Bench::new(template, true);
        let mut messages = vec![message("user", "ab")];
        let mut before: Vec<u32> = Vec::new();
        for turn in 0..6 {
            let (text, tokens) = bench.chat(&messages);
            assert!(tokens.ids.starts_with(&before), "turn {turn}");
            if turn > 0 {
                assert_ne!(tokens.ids, bench.plain_ids(&text), "the tokenizer would have made other ids");
            }
            assert_eq!(tokens.ids.iter().filter(|&&id| Some(id) == bench.model.tokenizer.bos()).count(), 1);
            // Some answers end by themselves and some are cut; all have whitespace that one template trims.
            let mut generated = [&[32], &AB[..], &[10, 10]].concat();
            before = [tokens.ids.clone(), generated.clone()].concat();
            if turn % 2 == 0 {
                generated.push([IM_END, EOS][turn / 2 % 2]);
            }
            let answer = bench.generate(tokens, &generated, None);
            messages.extend([message("assistant", &answer), message("user", "ab")]);
            if turn > 0 {
                assert!(before.windows(2).any(|w| w == AB));
            }
        }
        // An end of sequence is there once.
        let (_, tokens) = bench.chat(&messages);
        assert!(!tokens.ids.windows(2).any(|w| w[0] == w[1] && w[0] == IM_END) && !tokens.ids.contains(&EOS));
    }
}

#[test]
fn what_is_not_the_same_text_is_tokenized_anew() {
    for (generated, text, stop) in [
        (&[97, 98, 99][..], "ab", Some("c")),      // cut off by a stop string
        (&[97, 98, IM_END, 97, 98], "abab", None), // went on past an end
        (&[97, 0xc3], "a\u{fffd}", None),          // half a character
        (&[60, 124, 105, 109, 95, 101, 110, 100, 124, 62], "<|im_end|>", None), // a special token, spelled
    ] {
        let bench = Bench::new(CHATML, false);
        let (_, tokens) = bench.chat(&[message("user", "x")]);
        bench.generate_as(tokens, generated, text, stop);
        let turn = [message("user", "x"), message("assistant", text), message("user", "y")];
        let (text, tokens) = bench.chat(&turn);
        assert_eq!(tokens.ids, bench.plain_ids(&text));
    }
    // An edited answer, another model's conversation, and a text that goes on where the answer ended.
    let bench = Bench::new(CHATML, false);
    let other =
        Bench { model: Bench::new(CHATML, false).model, template: bench.template.clone(), state: bench.state.clone() };
    let (_, tokens) = bench.chat(&[message("user", "x")]);
    bench.generate(tokens, &AB, None);
    let turn = |answer: &str| [message("user", "x"), message("assistant", answer), message("user", "y")];
    for (bench, answer, kept) in
        [(&bench, "ab", true), (&bench, "aba", false), (&bench, "a", false), (&other, "ab", false)]
    {
        let (text, tokens) = bench.chat(&turn(answer));
        assert_eq!(tokens.ids != bench.plain_ids(&text), kept, "{answer}");
    }
}

#[test]
fn completions_keep_ids_where_the_text_is_the_same_to_the_last_space() {
    let bench = Bench::new(CHATML, true);
    let plain = |text: &str| plain(&bench.state, &bench.model, text).unwrap();
    let first = plain("x");
    let before = [&first.ids[..], &AB, &[32]].concat();
    assert_eq!(bench.generate(first, &[&AB[..], &[32]].concat(), None), "ab ");
    assert_eq!(plain("xab ").ids, before);
    assert_eq!(plain("xab <|im_end|>ab").ids, [&before[..], &[IM_END, MERGED]].concat());
    for other in ["xab", "xab<|im_end|>", "xab  ", "xab a", "ab "] {
        assert_eq!(plain(other).ids, bench.plain_ids(other), "{other:?}");
    }
    // A chat that is continued is its client's word as well.
    let bench = Bench::new(CHATML, true);
    let (_, tokens) = bench.chat(&[message("user", "x")]);
    let before = [&tokens.ids[..], &AB, &[32]].concat();
    bench.generate(tokens, &[&AB[..], &[32, IM_END]].concat(), None);
    for (content, kept) in [("ab ", true), ("ab", false)] {
        let messages = json!([message("user", "x"), message("assistant", content)]);
        let rendered = bench.rendered(&json!({"messages": messages, "continue_final_message": true}));
        let text = rendered.text.clone();
        let ids = chat(&bench.state, &bench.model, rendered).unwrap().ids;
        assert_eq!(ids, if kept { before.clone() } else { bench.plain_ids(&text) });
    }
}

#[test]
fn memory_is_bounded_and_the_latest_stay() {
    let bench = Bench::new(CHATML, false);
    let ask = |n: usize| [message("user", &format!("question {n}"))];
    let kept = |n: usize| {
        let turn = [&ask(n)[..], &[message("assistant", "ab"), message("user", "y")]].concat();
        let (text, tokens) = bench.chat(&turn);
        tokens.ids != bench.plain_ids(&text)
    };
    for n in 0..300 {
        let (_, tokens) = bench.chat(&ask(n));
        bench.generate(tokens, &AB, None);
        // Used again and again, so it is not the one to go.
        assert!(kept(0), "{n}");
    }
    assert!(!kept(1) && !kept(44) && kept(45) && kept(299), "256 are remembered");
}

#[test]
fn boundaries_are_the_beginnings_that_others_have() {
    let (system, long) = ("You are brief. ".repeat(30), "word ".repeat(40));
    let bench = Bench::new(CHATML, true);
    let ask = |system: &str, user: &str| bench.chat(&[message("system", system), message("user", user)]).1;
    let tokens = ask(&system, &long);
    let of = |text: &str| bench.plain_ids(text).len();
    let shared = format!("<|im_start|>system\n{system}<|im_end|>\n");
    let turn = format!("{shared}<|im_start|>user\n{long}<|im_end|>\n");
    assert_eq!(tokens.boundaries, [of(&shared), of(&turn)]);
    // They are what they are for: another conversation and the next turn begin with them.
    let other = ask(&system, "another question").ids;
    assert_eq!(other[..tokens.boundaries[0]], tokens.ids[..tokens.boundaries[0]]);
    let mut messages = vec![message("system", &system), message("user", &long)];
    messages.extend([message("assistant", "ok"), message("user", "and?")]);
    let (_, next) = bench.chat(&messages);
    assert_eq!(next.ids[..tokens.boundaries[1]], tokens.ids[..tokens.boundaries[1]]);
    assert_eq!(next.boundaries[0], tokens.boundaries[0], "the system prompt is where it was");
    // The same after ids were kept.
    bench.generate(tokens, &AB, None);
    messages[2] = message("assistant", "ab");
    let (text, spliced) = bench.chat(&messages);
    assert_ne!(spliced.ids, bench.plain_ids(&text));
    assert_eq!(spliced.boundaries[0], next.boundaries[0]);
    assert_eq!(spliced.boundaries[1], next.boundaries[1], "two tokens for two tokens");
    // Short prompts have none, and short system prompts no boundary.
    assert_eq!(ask("Be brief.", "x").boundaries, Vec::<usize>::new());
    assert_eq!(ask("Be brief.", &"word ".repeat(60)).boundaries.len(), 1);
    assert_eq!(ask("Be brief.", &"a".repeat(300)).boundaries.len(), 1, "a user who begins as the probe does");
}

#[test]
fn boundaries_of_templates_with_ways_of_their_own() {
    let long = "word ".repeat(80);
    let messages = |system: bool| {
        let system = system.then(|| message("system", &"You are brief. ".repeat(30)));
        let all = [message("user", &long), message("assistant", "ok"), message("user", &long)];
        system.into_iter().chain(all).collect::<Vec<_>>()
    };
    let of = |template: &str, system: bool| {
        let bench = Bench::new(template, true);
        let (text, tokens) = bench.chat(&messages(system));
        assert_eq!(tokens.ids, bench.plain_ids(&text));
        let texts: Vec<String> = tokens.boundaries.iter().map(|&b| bench.spelled(&tokens.ids[..b])).collect();
        assert!(texts.iter().all(|t| text.starts_with(t)));
        (text, texts)
    };
    // The system prompt inside the first user turn: the cut is between ordinary tokens.
    let inside = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content ~ '\\n\\n' %}{% else %}<|im_start|>{{ m.role }}\n{{ ns.s }}{% set ns.s = '' %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let (text, texts) = of(inside, true);
    assert_eq!(texts[0], text[..text.find(&long).unwrap()], "all of it, and nothing of the question");
    assert!(texts[1].ends_with("<|im_end|>\n") && texts.len() == 2);
    // No special tokens at all.
    let words = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let (text, texts) = of(words, true);
    assert!(texts[0].ends_with("You are brief. \n[user] ") || texts[0].ends_with("\n[user]"), "{:?}", texts[0]);
    assert!(text.len() - texts.last().unwrap().len() < 24, "{texts:?}");
    // The last question is written in another way than those before it.
    let last = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last %}now: {% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let (_, texts) = of(last, false);
    assert!(texts[0].ends_with("ok<|im_end|>\n") && texts[1].ends_with("<|im_end|>\n"), "{texts:?}");
    // A template that refuses what it is tried with gives what is left.
    let strict = "{% for m in messages %}{% if m.content in ['a', 'b'] %}{{ raise_exception('no') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let (text, texts) = of(strict, true);
    assert_eq!(texts, [text.strip_suffix("<|im_start|>assistant\n").unwrap()]);
    // Parts, and an opening that only the answer has.
    let parts = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}{{ c.text }}{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    let (_, texts) = of(parts, true);
    assert_eq!(texts.len(), 2);
    assert!(texts[0].ends_with("You are brief. <|im_end|>\n"), "{texts:?}");
}

/// A piece of text: letters that merge, whitespace, special tokens spelled out.
fn word() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &["a", "b", "ab", "c", " ", "\n", "é", "\u{a0}", "<|im_end|>", "<|im_start|>", "x y", "aba"];
    proptest::collection::vec(proptest::sample::select(WORDS), 0..8).prop_map(|words| words.concat())
}

/// Ids that a model might generate, specials among them.
fn generation() -> impl Strategy<Value = Vec<u32>> {
    const IDS: &[u32] = &[97, 98, 99, 32, 10, 0xc3, 0xa9, MERGED, MERGED + 1, MERGED + 2, MERGED + 4, 258, 260];
    let body = proptest::collection::vec(proptest::sample::select(IDS), 0..10);
    (body, proptest::sample::select(&[None, Some(EOS), Some(IM_END)][..])).prop_map(|(mut ids, end)| {
        ids.extend(end);
        ids
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn spliced_ids_mean_the_same_text(
        system in word(),
        turns in proptest::collection::vec((word(), generation(), proptest::option::weighted(0.2, word())), 1..6),
        trimming in any::<bool>(),
        bos in any::<bool>(),
    ) {
        let bench = Bench::new(if trimming { TRIMMING } else { CHATML }, bos);
        let mut messages = vec![message("system", &system.repeat(30))];
        let mut known: Option<Vec<u32>> = None;
        let mut edited = false;
        for (question, generated, edit) in turns {
            messages.push(message("user", &question));
            let (text, tokens) = bench.chat(&messages);
            let plain = bench.plain_ids(&text);
            // Generated special tokens that do not show are the only difference, and whitespace around an answer
            // that the template or the client trimmed.
            let (ours, theirs) = (bench.model.tokenizer.decode(&tokens.ids), bench.model.tokenizer.decode(&plain));
            if trimming || edited {
                prop_assert_eq!(visible(&ours), visible(&theirs));
            } else {
                prop_assert_eq!(ours, theirs);
            }
            if let Some(known) = known.take() {
                prop_assert!(tokens.ids.starts_with(&known), "{:?} {:?}", known, tokens.ids);
            }
            prop_assert!(tokens.boundaries.is_sorted() && tokens.boundaries.iter().all(|&b| b < tokens.ids.len()));
            prop_assert!(tokens.boundaries.is_empty() || tokens.ids.len() >= 256);
            let text_of = bench.model.tokenizer.decode(&generated);
            let end = generated.len() - usize::from(generated.last().is_some_and(|id| bench.model.eos.contains(id)));
            let so_far = [&tokens.ids[..], &generated[..end]].concat();
            bench.generate(tokens, &generated, None);
            if edit.is_none() && !text_of.contains('\u{fffd}') {
                known = Some(so_far);
            }
            edited |= edit.is_some();
            messages.push(message("assistant", &edit.unwrap_or(text_of)));
        }
    }

    /// Cutting a text for its boundaries changes none of its ids.
    #[test]
    fn cut_or_whole_the_ids_are_the_same(words in proptest::collection::vec(word(), 1..40), bos in any::<bool>()) {
        let bench = Bench::new(CHATML, bos);
        let messages: Vec<Value> =
            words.iter().zip(["system", "user", "assistant"].iter().cycle()).map(|(w, r)| message(r, w)).collect();
        let (text, tokens) = bench.chat(&messages);
        prop_assert_eq!(tokens.ids, bench.plain_ids(&text));
    }
}
