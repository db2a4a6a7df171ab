//! The prompt cache of the real binary: second turns, restarts, kills, damage, full disks. What is asked with the
//! cache on is asked of a server without one as well: the text has to be the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Place, Server, golden, starter};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const OFF: [&str; 4] = ["--cache-ram", "0", "--cache-ssd", "0"];
/// Header bytes before a file's own check covers them: a file that does not begin with Hearth's magic is not Hearth's.
const MAGIC: usize = 8;

/// An answer as far as the cache could change it.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    ids: Vec<u64>,
    text: String,
    prompt: u64,
    cached: u64,
}

impl Answer {
    /// Tokens of prompt and answer.
    fn all(&self) -> u64 {
        self.prompt + self.ids.len() as u64
    }
}

#[track_caller]
fn answer(reply: &Value) -> Answer {
    let choice = &reply["choices"][0];
    let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap_or_default();
    let ids = choice["token_ids"].as_array().unwrap_or_else(|| panic!("no ids: {reply}"));
    let usage = &reply["usage"];
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {reply}"));
    Answer {
        ids: ids.iter().map(number).collect(),
        text: text.to_owned(),
        prompt: number(&usage["prompt_tokens"]),
        cached: number(&usage["prompt_tokens_details"]["cached_tokens"]),
    }
}

/// The greedy answer to messages.
#[track_caller]
fn chat(server: &Server, messages: &[Value], count: usize) -> Answer {
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": count, "return_token_ids": true});
    answer(&server.ask(CHAT, &body))
}

/// The greedy continuation of a text or of ids, past any end.
#[track_caller]
fn complete(server: &Server, prompt: impl Into<Value>, count: usize) -> Answer {
    let prompt: Value = prompt.into();
    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": count, "ignore_eos": true,
                      "return_token_ids": true});
    answer(&server.ask(TEXT, &body))
}

fn message(role: &str, content: impl Into<String>) -> Value {
    json!({"role": role, "content": content.into()})
}

/// Text of about so many words, different for each number from the first word on.
fn story(number: usize, words: usize) -> String {
    let names = ["river", "stone", "window", "garden", "letter", "winter", "bridge", "music", "table", "morning"];
    let word = |i: usize| names[(i * 7 + i / 10 + number * 3 + number / 10 * i) % names.len()];
    let text: Vec<&str> = (0..words).map(word).collect();
    format!("Tale {number}: {}.", text.join(" "))
}

/// Ids that every tiny model has, different for each number from the first on.
fn ids(number: u64, count: u64) -> Vec<u64> {
    (0..count).map(|i| (i * 37 + i / 11 + number * 101 + 5) % 250).collect()
}

fn ssd(server: &Server) -> Value {
    server.idle()["cache"]["ssd"].clone()
}

/// A cache folder that several servers use one after the other.
struct Folder {
    dir: TempDir,
}

impl Folder {
    fn new() -> Self {
        Folder { dir: tempfile::Builder::new().prefix("hearth-cache-").tempdir().unwrap() }
    }

    fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    /// A server on it, whose log goes to a file beside it.
    #[track_caller]
    fn serve(&self, model: &Path, args: &[&str]) -> Server {
        let place = Place::new();
        let mut cmd = place.hearth(&["serve", "--port", "0", "--cache-dir", self.path()]);
        cmd.arg(model).args(args).stderr(File::create(place.path("log")).unwrap());
        let server = Server::spawn(place, cmd);
        let ready = server.line();
        assert!(ready.starts_with("ready: "), "{ready}");
        server
    }

    /// The cache's files and what is on its way to be one.
    fn files(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = all.filter(|file| file.to_string_lossy().contains(".hearthkv")).collect();
        files.sort();
        files
    }

    fn bytes(&self) -> u64 {
        // One may go while we look.
        self.files().iter().filter_map(|file| fs::metadata(file).ok()).map(|meta| meta.len()).sum()
    }
}

/// Ends a server in order, which saves its cache.
#[track_caller]
fn stop(mut server: Server) {
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
    let last = server.line();
    assert!(last.contains("the prompt cache is saved"), "{last}");
}

fn log(server: &Server) -> String {
    fs::read_to_string(server.place.path("log")).unwrap()
}

/// Sends a streamed request, reads so many events with text, and hangs up.
fn hang_up(server: &Server, path: &str, mut body: Value, events: usize) {
    body["stream"] = true.into();
    let socket = server.raw_post(path, body.to_string().as_bytes());
    let has_text = |line: &String| line.contains("\"text\":\"") || line.contains("\"content\":\"");
    let lines = BufReader::new(socket).lines().map_while(Result::ok);
    assert_eq!(lines.filter(has_text).take(events).count(), events);
}

#[test]
fn a_conversation_is_computed_once() {
    let on = Server::start(&starter(), &[]);
    let off = Server::start(&starter(), &OFF);
    let both = |messages: &[Value]| {
        let (with, without) = (chat(&on, messages, 12), chat(&off, messages, 12));
        assert_eq!((&with.ids, with.prompt, without.cached), (&without.ids, without.prompt, 0));
        with
    };
    let system = format!("You answer briefly. {}", story(1, 120));
    let mut messages = vec![message("system", &system), message("user", story(2, 120))];
    let first = both(&messages);
    assert_eq!(first.cached, 0);
    assert!(first.prompt > 256, "long enough for a boundary: {}", first.prompt);
    let again = both(&messages);
    assert_eq!((again.cached, &again.ids), (first.prompt - 1, &first.ids), "case 28: one token is computed");

    messages.extend([message("assistant", &first.text), message("user", "Which words came twice?")]);
    let second = both(&messages);
    assert!(second.cached >= first.all() - 1, "{first:?} {second:?}");

    // Case 27: a line that is new with every request.
    let with_header = |nonce: &str| {
        let mut messages = messages.clone();
        messages[0]["content"] =
            format!("x-anthropic-billing-header: cc_version=2.1.{nonce}; cch={nonce};\n{system}").into();
        messages
    };
    for nonce in ["a1b2c", "99fff"] {
        let header = both(&with_header(nonce));
        assert_eq!((header.prompt, header.cached, &header.ids), (second.prompt, second.prompt - 1, &second.ids));
    }

    // The answer edited: everything before it is still there.
    messages[2]["content"] = "Words, words, words.".into();
    let edited = both(&messages);
    assert!(edited.cached >= first.prompt - 8 && edited.cached < edited.prompt - 1, "{first:?} {edited:?}");

    // A fork: another question after the same system prompt.
    let fork = both(&[messages[0].clone(), message("user", "Say one word.")]);
    assert!(fork.cached * 10 >= fork.prompt * 8, "{fork:?}");

    // Streams say it as well.
    let ask = json!({"messages": messages, "temperature": 0, "max_tokens": 12, "stream": true,
                     "stream_options": {"include_usage": true}});
    let events = on.stream(CHAT, &ask);
    let usage = events.iter().rev().find(|event| event["usage"].is_object()).unwrap();
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], edited.prompt - 1);

    let ram = on.idle()["cache"]["ram"].clone();
    assert_eq!((&ram["hits"], &ram["misses"]), (&json!(7), &json!(1)), "{ram}");
    assert_eq!(off.idle()["cache"]["ram"]["entries"], 0);
    assert!(
        !off.place.home().join("cache").exists() || fs::read_dir(off.place.home().join("cache")).unwrap().count() == 0
    );
}

#[test]
fn replays_and_requests_that_were_broken_off_are_hits() {
    let on = Server::start(&starter(), &["--cache-ssd", "0"]);
    let off = Server::start(&starter(), &OFF);
    let prompt = story(3, 60);
    let first = complete(&on, prompt.as_str(), 16);
    assert_eq!((first.cached, &first.ids), (0, &complete(&off, prompt.as_str(), 16).ids));

    // Prompt and answer together are what the cache holds, to the last token.
    let whole = format!("{prompt}{}", first.text);
    let replay = complete(&on, whole.as_str(), 8);
    assert_eq!((replay.prompt, replay.cached), (first.all(), first.all() - 1));
    assert_eq!(replay.ids, complete(&off, whole.as_str(), 8).ids);
    // And once more, when the cache holds more than is asked.
    assert_eq!(complete(&on, whole.as_str(), 8), replay);

    // A client that goes leaves what was computed.
    let other = story(4, 100);
    let body = json!({"prompt": other, "temperature": 0, "max_tokens": 300, "ignore_eos": true});
    hang_up(&on, TEXT, body, 3);
    assert_eq!(on.idle()["totals"]["cancelled"], 1);
    let after = complete(&on, other.as_str(), 8);
    assert_eq!((after.cached, &after.ids), (after.prompt - 1, &complete(&off, other.as_str(), 8).ids));

    // Several at once, with and without something in the cache.
    let prompts: Vec<String> = vec![whole.clone(), story(5, 30), format!("{other} And then"), story(3, 20), whole];
    let together: Vec<Answer> = std::thread::scope(|scope| {
        let ask = |prompt: &String| {
            let (on, prompt) = (&on, prompt.clone());
            scope.spawn(move || complete(on, prompt, 8))
        };
        let asked: Vec<_> = prompts.iter().map(ask).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (prompt, got) in prompts.iter().zip(&together) {
        assert_eq!(got.ids, complete(&off, prompt.as_str(), 8).ids, "{prompt}");
    }
    let cached: Vec<bool> = together.iter().map(|got| got.cached * 2 > got.prompt).collect();
    assert_eq!(cached, [true, false, true, true, true], "{together:?}");
}

#[test]
fn a_restart_forgets_nothing() {
    let folder = Folder::new();
    let mut messages = vec![message("system", story(6, 120)), message("user", story(7, 120))];
    let server = folder.serve(&starter(), &[]);
    let first = chat(&server, &messages, 12);
    stop(server);
    assert!(folder.bytes() > 0);

    // In order, and after a flush by force.
    messages.extend([message("assistant", &first.text), message("user", "Which words came twice?")]);
    let server = folder.serve(&starter(), &[]);
    let second = chat(&server, &messages, 12);
    assert!(second.cached >= first.prompt, "{first:?} {second:?}");
    let stats = ssd(&server);
    assert_eq!((&stats["hits"], &stats["reused_tokens"]), (&json!(1), &json!(second.cached)), "{stats}");
    let flushed = server.place.run(&["cache", "flush", "--json"]).exits(0).json();
    assert!(flushed["bytes"].as_u64().unwrap() > 0 && flushed["failed"] == json!([]), "{flushed}");
    drop(server);

    let server = folder.serve(&starter(), &[]);
    assert_eq!(chat(&server, &messages, 12), Answer { cached: second.prompt - 1, ..second.clone() });
    // Now it is in memory: the disk is not asked again.
    assert_eq!(chat(&server, &messages, 12).cached, second.prompt - 1);
    let shown = server.place.run(&["cache", "stats", "--json"]).exits(0).json();
    assert_eq!((&shown["ssd"]["hits"], &shown["ram"]["hits"]), (&json!(1), &json!(1)), "{shown}");
    let cleared = server.place.run(&["cache", "clear", "--json"]).exits(0).json();
    assert!(cleared["file_bytes"].as_u64().unwrap() > 0 && folder.files().is_empty(), "{cleared}");
    assert_eq!(
        chat(&server, &messages, 12),
        Answer { cached: 0, ..second.clone() },
        "and the text is that of a cold run"
    );
}

#[test]
fn quantized_keys_and_values_answer_and_hit() {
    let folder = Folder::new();
    let server = folder.serve(&starter(), &["--kv-bits", "8"]);
    let mut messages = vec![message("user", format!("{} Name a colour.", story(8, 300)))];
    let first = chat(&server, &messages, 12);
    assert!(first.prompt > 300 && !first.text.is_empty(), "{first:?}");
    messages.extend([message("assistant", &first.text), message("user", "And another?")]);
    let second = chat(&server, &messages, 12);
    assert!(second.cached >= first.all() - 1, "{first:?} {second:?}");
    let again = chat(&server, &messages, 12);
    assert_eq!((again.cached, &again.ids), (second.prompt - 1, &second.ids));
    stop(server);
    let server = folder.serve(&starter(), &["--kv-bits", "8"]);
    let restored = chat(&server, &messages, 12);
    assert_eq!((restored.cached, &restored.ids), (second.prompt - 1, &second.ids));
    drop(server);
    // What 8 bits computed is not for those who did not ask for them.
    let plain = folder.serve(&starter(), &[]);
    assert_eq!(chat(&plain, &messages, 12).cached, 0);
}

/// What no other model and no later place in the text may use.
#[test]
fn state_goes_only_where_it_belongs() {
    let folder = Folder::new();
    let args = ["--cache-ram", "64MB", "--cache-ssd", "64MB"];
    let prompt = ids(1, 600);
    // Case 29: two models that read the same ids.
    for _ in 0..2 {
        let mut own = 0;
        for (i, name) in ["llama-f32", "mistral-f32", "qwen3-f32"].into_iter().enumerate() {
            let cold = complete(&Server::start(&golden(name), &OFF), prompt.clone(), 12);
            let server = folder.serve(&golden(name), &args);
            let got = complete(&server, prompt.clone(), 12);
            assert_eq!(got.ids, cold.ids, "{name}");
            let stats = ssd(&server);
            assert!(i == 0 || stats["bytes"].as_u64().unwrap() > 0, "the others' count: {stats}");
            own += u64::from(got.cached == got.prompt - 1);
            assert!(got.cached == 0 || got.cached == got.prompt - 1, "{name}: {got:?}");
            stop(server);
        }
        assert!(own == 0 || own == 3, "{own}");
    }
    // Second round: each found its own.
    let server = folder.serve(&golden("qwen3-f32"), &args);
    assert_eq!(complete(&server, prompt.clone(), 1).cached, prompt.len() as u64 - 1);
    drop(server);

    // A window that wrapped, and a recurrent state: whole or not at all.
    for name in ["gemma3_text-f32", "lfm2-f32", "qwen3_5-f32"] {
        let (on, off) = (Server::start(&golden(name), &["--cache-ssd", "0"]), Server::start(&golden(name), &OFF));
        let both = |prompt: Vec<u64>| {
            let (with, without) = (complete(&on, prompt.clone(), 8), complete(&off, prompt, 8));
            assert_eq!((&with.ids, without.cached), (&without.ids, 0), "{name}");
            with
        };
        let first = both(ids(2, 400));
        assert_eq!(first.cached, 0);
        let shorter = both(ids(2, 300));
        assert_eq!(shorter.cached, 0, "{name}: the state after 400 tokens says nothing about 300");
        let longer = both([ids(2, 400), first.ids.clone(), ids(3, 20)].concat());
        assert_eq!(longer.cached, first.all() - 1, "{name}");
    }
}

/// Models whose state cannot be trimmed go on from the boundaries of a chat.
#[test]
fn edited_answers_hit_where_state_cannot_be_trimmed() {
    for name in ["gemma3_text-f32", "lfm2-f32", "qwen3_5-f32"] {
        let folder = Folder::new();
        let (on, off) = (folder.serve(&golden(name), &[]), Server::start(&golden(name), &OFF));
        let both = |server: &Server, messages: &[Value]| {
            let (with, without) = (chat(server, messages, 8), chat(&off, messages, 8));
            assert_eq!(with.ids, without.ids, "{name}");
            with
        };
        let mut messages = vec![message("system", story(9, 100)), message("user", story(10, 60))];
        let first = both(&on, &messages);
        messages.extend([message("assistant", "No."), message("user", "Why not?")]);
        let edited = both(&on, &messages);
        assert!(edited.cached >= 600 && edited.cached < edited.prompt, "{name}: {first:?} {edited:?}");
        let fork = both(&on, &[messages[0].clone(), message("user", "Hello.")]);
        assert!(fork.cached >= 500 && fork.cached < fork.prompt, "{name}: {fork:?}");
        stop(on);
        let on = folder.serve(&golden(name), &[]);
        messages[2]["content"] = "Yes.".into();
        let restored = both(&on, &messages);
        assert!(restored.cached >= 600 && restored.cached < restored.prompt, "{name}: {restored:?}");
    }
}

#[test]
fn one_wrong_byte_is_a_miss_and_the_file_goes() {
    for name in ["llama-f32", "lfm2-f32"] {
        let folder = Folder::new();
        let prompt = ids(4, 600);
        let server = folder.serve(&golden(name), &[]);
        let first = complete(&server, prompt.clone(), 8);
        stop(server);
        let whole = |prompt: &[u64]| [prompt, &first.ids, &[7]].concat();
        let asked = whole(&prompt);
        let cold = complete(&Server::start(&golden(name), &OFF), asked.clone(), 8);
        let files: Vec<(PathBuf, Vec<u8>)> =
            folder.files().into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect();
        assert!(files.len() >= 3, "{files:?}");
        let restore = || {
            folder.files().iter().for_each(|file| fs::remove_file(file).unwrap());
            files.iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
        };
        // In the header, in the middle, at the very end.
        for (n, (file, bytes)) in files.iter().enumerate() {
            for at in [MAGIC + 20 + n, bytes.len() / 2, bytes.len() - 1] {
                restore();
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << (n % 8);
                fs::write(file, &damaged).unwrap();
                let server = folder.serve(&golden(name), &["--cache-ram", "0"]);
                let got = complete(&server, asked.clone(), 8);
                assert_eq!(got.ids, cold.ids, "{name} {n} {at}");
                assert!(got.cached < first.all() - 1, "{name} {n} {at}: {got:?}");
                let stats = ssd(&server);
                assert_eq!(stats["corrupt"], 1, "{name} {n} {at}: {stats}");
                assert!(fs::read(file).map_or(true, |now| now != damaged), "{name} {n} {at}: it is still there");
                assert!(log(&server).contains("damaged"), "{name} {n} {at}: {}", log(&server));
            }
        }
        restore();
        let server = folder.serve(&golden(name), &[]);
        let got = complete(&server, asked, 8);
        assert_eq!((got.cached, got.ids), (first.all() - 1, cold.ids), "{name}: undamaged, all of it is read");
    }
}

/// Case 30: a folder over its cap, files of an older format, files of others.
#[test]
fn a_folder_is_brought_under_its_cap_at_the_start() {
    let folder = Folder::new();
    let model = golden("llama-f32");
    let server = folder.serve(&model, &[]);
    for n in 0..6 {
        complete(&server, ids(10 + n, 600), 4);
    }
    stop(server);
    let before = folder.bytes();
    let one = before / 6;
    let write = |name: &str, bytes: &[u8]| {
        let file = folder.dir.path().join(name);
        fs::write(&file, bytes).unwrap();
        file
    };
    let mut old_format = fs::read(&folder.files()[0]).unwrap();
    old_format[MAGIC] = 99;
    let old = write(&format!("{}.hearthkv", "ab".repeat(32)), &old_format);
    File::open(&old).unwrap().set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    let leftover = write(&format!("{}.hearthkv.tmp", "cd".repeat(32)), &old_format);
    let foreign = [write("notes.txt", b"mine"), write(&format!("{}.hearthkv", "ef".repeat(32)), &[7; 1 << 20])];

    let cap = one * 3;
    let size = cap.to_string();
    let server = folder.serve(&model, &["--cache-ssd", &size]);
    let own =
        || folder.files().iter().filter(|f| !foreign.contains(f)).map(|f| fs::metadata(f).unwrap().len()).sum::<u64>();
    assert!(own() <= cap && own() >= one, "{} of {cap}", own());
    assert!(!leftover.exists() && !old.exists(), "what nobody can read goes first");
    assert!(foreign.iter().all(|file| file.exists()));
    let stats = ssd(&server);
    assert_eq!(
        (&stats["bytes"], &stats["cap"], &stats["state"]),
        (&json!(own()), &json!(cap), &json!("ready")),
        "{stats}"
    );
    assert!(stats["evicted"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(complete(&server, ids(15, 600), 4).cached, 599, "the last ones stayed");
    assert_eq!(complete(&server, ids(10, 600), 4).cached, 0, "the first ones went");
    // New ones push old ones out, and never too late.
    for n in 0..6 {
        complete(&server, ids(20 + n, 600), 4);
        // More is in memory than there is room for: not all of it can be kept, but the last has to be.
        let flush = server.place.run(&["cache", "flush"]);
        assert!(flush.code == 0 || flush.err.contains("not on disk"), "{flush:?}");
        assert!(own() <= cap, "{} of {cap}", own());
    }
    drop(server);
    let server = folder.serve(&model, &["--cache-ssd", &size]);
    assert_eq!(complete(&server, ids(25, 600), 4).cached, 599);
    assert!(own() <= cap && foreign.iter().all(|file| file.exists()));
}

/// A small file system of its own, if this user may make one.
struct Tmpfs {
    dir: TempDir,
}

impl Tmpfs {
    fn new(kib: u32) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("hearth-full-").tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"]).arg(dir.path());
        let mounted = cfg!(target_os = "linux") && mount.output().is_ok_and(|out| out.status.success());
        mounted.then_some(Tmpfs { dir })
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

#[test]
fn without_a_usable_disk_serving_goes_on() {
    let model = golden("llama-f32");
    let off = Server::start(&model, &OFF);
    let serve = |dir: &Path| Server::start(&model, &["--cache-dir", dir.to_str().unwrap(), "--cache-ssd", "1GB"]);
    let answers = |server: &Server| {
        for n in 0..3 {
            assert_eq!(complete(server, ids(n, 700), 6).ids, complete(&off, ids(n, 700), 6).ids);
            let again = complete(server, ids(n, 700), 6);
            assert_eq!(again.cached, 699, "memory is there all the same");
        }
    };
    // A file where the folder should be.
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = serve(file.path());
    answers(&server);
    let stats = ssd(&server);
    assert_eq!(stats["state"], "failed", "{stats}");
    assert!(stats["message"].as_str().unwrap().contains(file.path().to_str().unwrap()), "{stats}");
    let flush = server.place.run(&["cache", "flush"]).exits(1);
    assert!(flush.err.contains("not on disk"), "{flush:?}");
    assert_eq!(fs::metadata(file.path()).unwrap().len(), 0);

    // A disk that is full after the first few blocks.
    let Some(full) = Tmpfs::new(1500) else { return eprintln!("no small file system can be mounted here") };
    let server = serve(full.dir.path());
    answers(&server);
    let flush = server.place.run(&["cache", "flush"]).exits(1);
    assert!(flush.err.contains("full") || flush.err.contains("space"), "{flush:?}");
    assert_eq!(flush.err.matches("until then the prompt cache").count(), 1, "each reason is said once: {flush:?}");
    assert!(flush.err.contains(" MB): ") && !flush.err.contains(" bytes"), "{flush:?}");
    let shown = server.place.run(&["cache", "stats"]).exits(0).out;
    assert!(shown.contains("\ndisk    failed: "), "{shown}");
    let stats = ssd(&server);
    assert_eq!(stats["state"], "failed", "{stats}");
    assert!(stats["message"].as_str().is_some_and(|m| m.contains("full") || m.contains("space")), "{stats}");
    answers(&server);
    drop(server);
    // What is there is read, and nothing of it is wrong.
    let server = serve(full.dir.path());
    for n in 0..3 {
        assert_eq!(complete(&server, ids(n, 700), 6).ids, complete(&off, ids(n, 700), 6).ids);
    }
    assert_eq!(ssd(&server)["corrupt"], 0);
}

/// The short form of what `cargo xtask soak` does fifty times.
#[test]
fn killed_in_the_middle_of_writing_it_starts_again() {
    let folder = Folder::new();
    let model = golden("lfm2-f32");
    let off = Server::start(&model, &OFF);
    let (cap, mut hits) = (6_000_000, 0);
    for kill in 0..5u64 {
        let server = folder.serve(&model, &["--cache-ssd", "6MB"]);
        assert!(folder.bytes() <= cap, "{} of {cap}", folder.bytes());
        assert!(
            folder.files().iter().all(|file| file.extension().unwrap() != "tmp"),
            "what the last kill left is gone"
        );
        for n in 0..4 {
            let number = if n == 0 { 40 + kill.saturating_sub(1) * 4 } else { 40 + kill * 4 + n };
            let got = complete(&server, ids(number, 1500), 6);
            assert_eq!(got.ids, complete(&off, ids(number, 1500), 6).ids, "kill {kill}, prompt {n}");
            hits += u64::from(got.cached > 0);
        }
        assert_eq!(ssd(&server)["corrupt"], 0, "kill {kill}: nothing half-written has a name");
        // It ends with the server, whatever it says.
        let mut flush = server.place.hearth(&["cache", "flush"]);
        let mut flush = flush.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + kill * 17));
        drop(server);
        let _ = flush.wait();
    }
    drop(folder.serve(&model, &["--cache-ssd", "6MB"]));
    assert!(folder.bytes() <= cap && folder.bytes() > 0, "{hits} hits");
}
