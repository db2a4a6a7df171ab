//! A server from outside: how it starts, is shown and stopped, what it keeps of its prompt cache, and the chat in the
//! terminal. The models are tiny random ones, so that every case takes well under a second.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use support::{Place, Server, copy_model, golden, ran};

const TINY: &str = "llama-q4";

#[test]
fn ps_and_stop_without_a_server_are_4() {
    let place = Place::new();
    for command in ["ps", "stop"] {
        let ran = place.run(&[command]).exits(4);
        assert!(ran.err.contains("no server") && ran.err.contains("hearth serve"), "{ran:?}");
    }
    for command in ["stats", "flush", "clear"] {
        let ran = place.run(&["cache", command, "--json"]).exits(4);
        assert!(ran.out.is_empty() && ran.err.contains("no server") && ran.err.contains("hearth serve"), "{ran:?}");
        let ran = place.run(&["cache", command, "--port", "9"]).exits(4);
        assert!(ran.err.contains("127.0.0.1:9"), "{ran:?}");
    }
    let run = place.run(&["run", "--url", "http://127.0.0.1:9"]).exits(4);
    assert!(run.err.contains("127.0.0.1:9"), "{run:?}");
}

#[test]
fn a_server_is_shown_and_stopped() {
    let mut server = Server::start(&golden(TINY), &["--api-key", "secret"]);
    let record = server.place.home().join("server.json");
    let text = fs::read_to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["pid"], server.child.id());
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600, "it holds the admin token");
    let ps = server.place.run(&["ps", "--json"]).exits(0).json();
    assert_eq!((&ps["pid"], &ps["url"]), (&json!(server.child.id()), &json!(server.url)));
    assert_eq!(ps["stats"]["model"]["model_type"], "llama", "{ps}");
    assert!(ps.to_string().matches("secret").count() == 0 && !ps.to_string().contains("token\""), "{ps}");
    let shown = server.place.run(&["ps"]).exits(0).out;
    assert!(shown.contains(&server.url) && shown.contains("llama-q4"), "{shown}");
    server.place.run(&["stop"]).exits(0);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!record.exists());
    server.place.run(&["stop"]).exits(4);
}

/// A chat long enough to be kept by the prompt cache.
fn long_chat() -> Value {
    let content = "All work and no play makes a long prompt. ".repeat(12);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0, "ignore_eos": true})
}

#[test]
fn the_prompt_cache_is_shown_flushed_and_cleared() {
    let args = ["--cache-ram", "64MB", "--cache-ssd", "1GiB", "--cache-dir", "kept", "--cache-idle", "100000"];
    let mut server = Server::start(&golden(TINY), &[&args[..], &["--api-key", "secret"]].concat());
    let http = support::http();
    let chat = || {
        let request = http.post(format!("{}/v1/chat/completions", server.url)).bearer_auth("secret");
        let reply = request.json(&long_chat()).send().unwrap();
        assert_eq!(reply.status(), 200);
        reply.json::<Value>().unwrap()
    };
    let first = chat();
    let again = chat();
    assert_eq!(again["choices"][0]["message"], first["choices"][0]["message"]);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1, "case 28: one is computed anew");

    let stats = || server.place.run(&["cache", "stats", "--json"]).exits(0).json();
    let figures = stats();
    assert_eq!((&figures["ram"]["cap"], &figures["ssd"]["cap"]), (&json!(64_000_000), &json!(1u64 << 30)), "{figures}");
    assert_eq!((&figures["ssd"]["state"], &figures["ram"]["hits"]), (&json!("ready"), &json!(1)), "{figures}");
    let folder = server.place.path("kept");
    assert_eq!(figures["ssd"]["dir"].as_str().map(Path::new), Some(folder.as_path()), "{figures}");
    let shown = server.place.run(&["cache", "stats"]).exits(0).out;
    assert!(
        shown.contains(" of 64.0 MB in ") && shown.contains(" of 1.1 GB in ") && shown.contains(" 1 hit, 1 miss, "),
        "{shown}"
    );
    let ps = server.place.run(&["ps"]).exits(0).out;
    assert!(ps.contains("cache   ") && ps.contains("tokens reused"), "{ps}");

    // By the recorded port and by its number; the API key is not the admin's.
    let port = server.port().to_string();
    for command in ["flush", "clear"] {
        let url = format!("{}/api/hearth/cache/{command}", server.url);
        assert_eq!(http.post(url).bearer_auth("secret").send().unwrap().status(), 401);
    }
    let flushed = server.place.run(&["cache", "flush", "--json"]).exits(0).json();
    assert_eq!(flushed["failed"], json!([]), "{flushed}");
    let figures = stats();
    assert!(flushed["entries"].as_u64().unwrap() >= 1 && figures["ssd"]["pending"] == 0, "{flushed} {figures}");
    assert!(figures["ssd"]["files"].as_u64().unwrap() >= 1, "{flushed} {figures}");
    assert!(fs::read_dir(&folder).unwrap().count() >= 1);
    let flushed = server.place.run(&["cache", "flush", "--port", &port]).exits(0).out;
    assert!(flushed.starts_with("on disk: ") && flushed.contains("0 B written"), "it is there already: {flushed}");
    let stranger = Place::new();
    let refused = stranger.run(&["cache", "clear", "--port", &port]).exits(1);
    assert!(refused.err.contains("HEARTH_HOME"), "{refused:?}");
    let cleared = server.place.run(&["cache", "clear"]).exits(0).out;
    assert!(cleared.starts_with("removed ") && !cleared.contains(" 0 files"), "{cleared}");
    let figures = stats();
    assert_eq!((&figures["ram"]["entries"], &figures["ssd"]["files"]), (&json!(0), &json!(0)), "{figures}");
    assert_eq!(chat()["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "nothing is left");
    server.place.run(&["stop"]).exits(0);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_stopped_server_saves_its_prompt_cache() {
    let mut server = Server::start(&golden(TINY), &[]);
    let first = server.ask("/v1/chat/completions", &long_chat());
    server.idle();
    server.signal(Signal::TERM);
    let said = server.line();
    let folder = server.place.home().join("cache");
    assert!(said.contains("saved") && said.contains(folder.to_str().unwrap()), "{said}");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!server.place.home().join("server.json").exists());
    let mut again = server.place.hearth(&["serve", "--port", "0"]);
    again.arg(golden(TINY));
    let place = std::mem::replace(&mut server.place, Place::new());
    let again = Server::spawn(place, again);
    assert!(again.line().starts_with("ready: "));
    let second = again.ask("/v1/chat/completions", &long_chat());
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0, "{second}");
    assert_eq!(second["choices"][0]["message"], first["choices"][0]["message"]);
}

#[test]
fn stop_says_what_was_not_saved() {
    // A file where the cache's folder should be, and one that stays.
    let mut server = Server::start(&golden(TINY), &["--cache-dir", "home/lock/kept"]);
    server.ask("/v1/chat/completions", &long_chat());
    server.idle();
    let stopped = server.place.run(&["stop"]).exits(1);
    assert!(stopped.out.starts_with("stopped ") && stopped.err.contains("not all saved"), "{stopped:?}");
    assert!(stopped.err.contains("home/lock/kept"), "{stopped:?}");
    assert_eq!(server.wait().code(), Some(0));

    // The next one has nothing to lose, and the one after it no time to save.
    for kill in [false, true] {
        let mut cmd = server.place.hearth(&["serve", "--port", "0"]);
        cmd.arg(golden(TINY));
        let place = std::mem::replace(&mut server.place, Place::new());
        server = Server::spawn(place, cmd);
        assert!(server.line().starts_with("ready: "));
        if kill {
            // Stopped in its tracks, it cannot end before `hearth stop` waits for it.
            server.signal(Signal::STOP);
        }
        let mut stop = server.place.hearth(&["stop", "--json"]);
        let mut stop = stop.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if kill {
            let mut said = std::io::BufReader::new(stop.stderr.take().unwrap());
            let mut line = String::new();
            std::io::BufRead::read_line(&mut said, &mut line).unwrap();
            assert!(line.starts_with("waiting for process"), "{line}");
            server.child.kill().unwrap();
            let mut rest = String::new();
            std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
            assert!(rest.contains("before its prompt cache was saved"), "{rest}");
        }
        let code = support::wait(&mut stop).code();
        let report: Value = serde_json::from_reader(stop.stdout.take().unwrap()).unwrap();
        assert_eq!((code, report["not_saved"].is_string()), (Some(i32::from(kill)), kill), "{report}");
        server.wait();
    }
}

#[test]
fn a_tier_of_0_bytes_is_off() {
    let mut server = Server::start(&golden(TINY), &["--cache-ram", "0", "--cache-ssd", "0", "--keep-client-headers"]);
    let body = json!({"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=a1;\nBe brief."},
        {"role": "user", "content": "x"}], "max_tokens": 1});
    let kept = server.ask("/v1/chat/completions", &body)["usage"]["prompt_tokens"].clone();
    for _ in 0..2 {
        let reply = server.ask("/v1/chat/completions", &long_chat());
        assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
    let shown = server.place.run(&["cache", "stats"]).exits(0).out;
    assert_eq!(shown, "memory  off\ndisk    off\n", "and no figures of what is off");
    server.place.run(&["stop"]).exits(0);
    assert_eq!(server.wait().code(), Some(0));
    // Without the flag the header line is no part of the prompt: one token a byte.
    let plain = Server::start(&golden(TINY), &[]);
    let gone = plain.ask("/v1/chat/completions", &body)["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(kept.as_u64().unwrap() - gone, "x-anthropic-billing-header: cch=a1;\n".len() as u64);
}

#[test]
fn the_record_of_a_killed_server_is_not_believed() {
    let mut server = Server::start(&golden(TINY), &[]);
    server.child.kill().unwrap();
    server.wait();
    assert!(server.place.home().join("server.json").exists(), "nobody could remove it");
    server.place.run(&["ps"]).exits(4);
    server.place.run(&["stop"]).exits(4);
    let mut again = server.place.hearth(&["serve", "--port", "0"]);
    again.arg(golden(TINY)).stdout(Stdio::piped());
    let place = std::mem::replace(&mut server.place, Place::new());
    let again = Server::spawn(place, again);
    assert!(again.line().starts_with("ready: "));
}

#[test]
fn one_server_for_each_home_and_each_port() {
    let server = Server::start(&golden(TINY), &[]);
    let pid = server.child.id().to_string();
    let second = server.place.run(&["serve", "--port", "0", golden(TINY).to_str().unwrap()]).exits(1);
    assert!(second.err.contains(&pid) && second.err.contains(&server.url), "{second:?}");
    let other = Place::new();
    let port = server.port().to_string();
    let taken = other.run(&["serve", "--port", &port, golden(TINY).to_str().unwrap()]).exits(1);
    assert!(taken.err.contains(&port) && taken.out.is_empty(), "{taken:?}");
    assert!(taken.err.contains("it is a Hearth that serves llama-q4"), "{taken:?}");
    assert_eq!(server.get("/health").0, 200);
}

#[test]
fn signals_end_a_busy_server_cleanly() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = Server::start(&golden(TINY), &[]);
        let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true});
        let mut busy = server.raw_post("/v1/completions", body.to_string().as_bytes());
        let mut first = [0; 1];
        std::io::Read::read_exact(&mut busy, &mut first).unwrap();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{signal:?}");
        assert!(!server.place.home().join("server.json").exists());
    }
    let mut loading = Server::begin(Some(&support::starter()), &[]);
    loading.signal(Signal::TERM);
    assert_eq!(loading.wait().code(), Some(0), "during the load");
}

#[test]
fn a_second_signal_ends_at_once_and_says_what_is_lost() {
    let place = Place::new();
    let mut cmd = place.hearth(&["serve", "--port", "0"]);
    cmd.arg(golden(TINY)).stderr(fs::File::create(place.path("log")).unwrap());
    let mut server = Server::spawn(place, cmd);
    assert!(server.line().starts_with("ready: "));
    server.ask("/v1/chat/completions", &long_chat());
    server.idle();
    // Both arrive when it goes on.
    for signal in [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT] {
        server.signal(signal);
    }
    assert_eq!(server.wait().code(), Some(130));
    let log = fs::read_to_string(server.place.path("log")).unwrap();
    assert!(log.lines().any(|line| line.starts_with("not saved: ") && line.contains("(1 entry, ")), "{log}");
}

#[test]
fn serve_without_a_name_takes_the_obvious_model() {
    let place = Place::with_model(TINY, "Tiny-Llama-4bit");
    let cmd = place.hearth(&["serve", "--port", "0"]);
    let server = Server::spawn(place, cmd);
    let ready = server.line();
    assert!(
        ready.starts_with("ready: ") && ready.contains("Tiny-Llama-4bit") && ready.contains("4096 tokens"),
        "{ready}"
    );
    server.place.run(&["stop"]).exits(0);

    // Two models and one of them used last.
    copy_model(&golden("qwen3-q4"), &server.place.home().join("models/Another"));
    let cmd = server.place.hearth(&["serve", "--port", "0"]);
    let mut server = server;
    let place = std::mem::replace(&mut server.place, Place::new());
    let again = Server::spawn(place, cmd);
    assert!(again.line().contains("Tiny-Llama-4bit"));

    // Nothing to choose from.
    let empty = Server::begin(None, &[]);
    let hint = empty.line();
    assert!(hint.starts_with("no model is loaded: ") && hint.contains("hearth serve MODEL"), "{hint}");
    assert!(hint.contains("hearth import FILE.gguf"), "how to get one: {hint}");
    let (status, health) = empty.get("/health");
    assert_eq!((status, &health["status"]), (503, &json!("empty")));
    let (status, error) = empty.post("/v1/completions", &json!({"prompt": "Hello"}));
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")), "{error}");
}

#[test]
fn the_environment_gives_what_flags_do_not() {
    let place = Place::new();
    let mut cmd = place.hearth(&["serve", "--max-rows", "3"]);
    cmd.arg(golden(TINY)).env("HEARTH_PORT", "0").env("HEARTH_MAX_ROWS", "5").env("HEARTH_CONTEXT", "77");
    let server = Server::spawn(place, cmd);
    assert!(server.line().contains("77 tokens"));
    let (_, stats) = server.get("/stats");
    assert_eq!((&stats["max_rows"], &stats["model"]["context"]), (&json!(3), &json!(77)), "the flag wins: {stats}");
    let mut wrong = server.place.hearth(&["serve"]);
    wrong.env("HEARTH_PORT", "many");
    assert!(ran(wrong).exits(2).err.contains("many"));
}

#[test]
fn chat_in_the_terminal() {
    let server = Server::start(&golden(TINY), &[]);
    let script = "/help\n/sing\nHello\n/system Be brief.\n/clear\nHello again\n/exit\nnever read\n";
    let chat = |mut cmd: std::process::Command| {
        fs::write(server.place.path("script"), script).unwrap();
        cmd.args(["--temperature", "0", "--max-tokens", "5"]);
        ran({
            cmd.stdin(fs::File::open(server.place.path("script")).unwrap());
            cmd
        })
        .exits(0)
    };
    let recorded = chat(server.place.hearth(&["run"]));
    assert!(recorded.err.contains(&server.url) && recorded.err.contains("/sing is no command"), "{recorded:?}");
    assert!(recorded.out.lines().count() >= 2, "two answers: {recorded:?}");
    assert_eq!(server.idle()["totals"]["requests"], 2);
    let by_url = chat(server.place.hearth(&["run", "--url", &server.url]));
    assert_eq!(by_url.out, recorded.out);
    let alone = Place::new();
    let mut own = alone.hearth(&["run"]);
    own.arg(golden(TINY));
    assert_eq!(chat(own).out, recorded.out, "without a server it brings its own");
    assert_eq!(server.idle()["totals"]["requests"], 4);
}

#[test]
fn a_chat_is_with_the_model_that_was_asked_for() {
    let server = Server::start(&golden(TINY), &[]);
    copy_model(&golden("qwen3-q4"), &server.place.home().join("models/Another"));
    let path = golden(TINY);
    for same in [TINY, path.to_str().unwrap()] {
        let chat = server.place.run(&["run", same]).exits(0);
        assert!(chat.err.contains(&server.url), "{chat:?}");
    }
    for args in [&["run", "Another"][..], &["run", "Another", "--url", &server.url]] {
        let other = server.place.run(args).exits(1);
        assert!(other.err.contains("has llama-q4; stop it, or leave MODEL out"), "{other:?}");
    }
    let unknown = server.place.run(&["run", "mistral"]).exits(3);
    assert!(unknown.err.contains("mistral") && unknown.err.contains("Another"), "{unknown:?}");
    assert_eq!(server.idle()["totals"]["requests"], 0);
}

#[test]
fn a_chat_without_any_model_says_how_to_get_one() {
    let place = Place::new();
    let none = place.run(&["run"]).exits(3);
    assert!(none.err.contains("hearth import") && none.err.contains("hearth pull ORG/NAME"), "{none:?}");
    for name in ["One", "Two"] {
        copy_model(&golden(TINY), &place.home().join("models").join(name));
    }
    let unclear = place.run(&["run"]).exits(2);
    assert!(unclear.err.contains("hearth ls") && !unclear.err.contains("import"), "{unclear:?}");
}

#[test]
fn ctrl_c_ends_an_answer_and_not_the_chat() {
    let server = Server::start(&golden(TINY), &["--context", "4000"]);
    let mut cmd = server.place.hearth(&["run"]);
    let mut chat = cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = chat.stdin.take().unwrap();
    for _ in 0..2 {
        let before = server.get("/stats").1["totals"]["requests"].as_u64().unwrap();
        writeln!(stdin, "Hello").unwrap();
        support::eventually("the question arrives", || {
            server.get("/stats").1["totals"]["requests"].as_u64().unwrap() > before
        });
        rustix::process::kill_process(rustix::process::Pid::from_child(&chat), Signal::INT).unwrap();
        server.idle();
    }
    writeln!(stdin, "/exit").unwrap();
    assert_eq!(support::wait(&mut chat).code(), Some(0));
}
