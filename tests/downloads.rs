//! Downloads through the real binary: killed again and again, together with a server, and with the hub's own Python client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use hearth_test_hub::{Hub, tiny_model};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::{Place, Server, eventually, ran, starter, wait};

const CONNECTIONS: u64 = 8;
const CHUNK: u64 = 1 << 20;

/// `hearth` in a place, with this hub.
fn hearth(place: &Place, hub: &Hub, args: &[&str]) -> Command {
    let mut cmd = place.hearth(args);
    cmd.env("HF_ENDPOINT", hub.url()).env_remove("HTTP_PROXY").env_remove("http_proxy");
    cmd
}

fn add(hub: &Hub, repo: &str, bytes: usize, seed: u8) -> String {
    let files = tiny_model(bytes, seed);
    let files: Vec<(&str, &[u8])> = files.iter().map(|(path, bytes)| (*path, bytes.as_slice())).collect();
    hub.add(repo, &files)
}

fn snapshot(place: &Place, repo: &str, commit: &str) -> PathBuf {
    place.path("hub").join(format!("models--{}", repo.replace('/', "--"))).join("snapshots").join(commit)
}

fn same(a: &Path, b: &Path) -> bool {
    fs::read(a).unwrap() == fs::read(b).unwrap()
}

/// Bytes of complete chunks, as the journals have them, and of whole files.
fn kept(place: &Place, repo: &str) -> u64 {
    let blobs = place.path("hub").join(format!("models--{}", repo.replace('/', "--"))).join("blobs");
    let Ok(entries) = fs::read_dir(blobs) else { return 0 };
    let mut sum = 0;
    for entry in entries.map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".hearth-journal") {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let size: u64 = text.split(' ').nth(2).and_then(|s| s.parse().ok()).unwrap_or(0);
            let chunk = |i: u64| CHUNK.min(size.saturating_sub(i * CHUNK));
            sum += text.lines().skip(1).filter_map(|l| l.parse().ok()).map(chunk).sum::<u64>();
        } else if !name.contains(".hearth-") {
            sum += entry.metadata().unwrap().len();
        }
    }
    sum
}

/// Bytes that are on disk and count for nothing, of chunks that are in no journal; they are wiped, so that the next look
/// finds those of the next kill. `source` is the folder that the hub offers.
fn wipe_lost(place: &Place, repo: &str, source: &Path) -> u64 {
    let blobs = place.path("hub").join(format!("models--{}", repo.replace('/', "--"))).join("blobs");
    let Ok(entries) = fs::read_dir(blobs) else { return 0 };
    let mut sum = 0;
    for entry in entries.map(Result::unwrap) {
        let path = entry.path();
        let Some(blob) = path.to_str().unwrap().strip_suffix(".hearth-journal") else { continue };
        let text = fs::read_to_string(&path).unwrap_or_default();
        let Some(size) = text.split(' ').nth(2).and_then(|s| s.parse::<u64>().ok()) else { continue };
        let done: BTreeSet<u64> = text.lines().skip(1).filter_map(|l| l.parse().ok()).collect();
        let of_this_size = |e: &fs::DirEntry| e.metadata().unwrap().len() == size;
        let whole = fs::read_dir(source).unwrap().map(Result::unwrap).find(of_this_size).unwrap().path();
        let part = File::options().read(true).write(true).open(format!("{blob}.hearth-part")).unwrap();
        let whole = File::open(whole).unwrap();
        for chunk in (0..size.div_ceil(CHUNK)).filter(|chunk| !done.contains(chunk)) {
            let same = alike(&part, &whole, chunk * CHUNK, CHUNK.min(size - chunk * CHUNK));
            part.write_all_at(&vec![0; same as usize], chunk * CHUNK).unwrap();
            sum += same;
        }
    }
    sum
}

/// How many bytes of two files are the same from `at` on, of `length`, to a page.
fn alike(a: &File, b: &File, at: u64, length: u64) -> u64 {
    let mut pages = [[0; 4096]; 2];
    let mut same = 0;
    while same < length {
        let n = (length - same).min(4096) as usize;
        let [one, other] = &mut pages;
        a.read_exact_at(&mut one[..n], at + same).unwrap();
        b.read_exact_at(&mut other[..n], at + same).unwrap();
        if one[..n] != other[..n] {
            break;
        }
        same += n as u64;
    }
    same
}

/// A repeatable stream of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// 20 kills; `HEARTH_TEST_KILLS` asks for another number, as `cargo xtask soak downloads` does.
#[test]
fn killed_at_any_moment_it_goes_on_from_what_is_on_disk() {
    const REPO: &str = "org/starter";
    let kills: u32 = std::env::var("HEARTH_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let hub = Hub::start().unwrap();
    let commit = hub.add_folder(REPO, &starter()).unwrap();
    let mut place = Place::new();
    let mut dice = Dice(7);
    let (mut killed, mut finished, mut most) = (0, 0, 0);
    hub.rate(Some(6_000_000));
    while killed < kills {
        let before = kept(&place, REPO);
        let mut pull =
            hearth(&place, &hub, &["pull", REPO]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100 + dice.roll(900)));
        if pull.try_wait().unwrap().is_some_and(|status| status.success()) {
            whole(&place, REPO, &commit);
            (place, finished) = (Place::new(), finished + 1);
            continue;
        }
        let _ = pull.kill();
        pull.wait().unwrap();
        killed += 1;
        let after = kept(&place, REPO);
        assert!(after >= before, "{before} bytes were here, {after} are");
        // What was in the sockets nobody has seen: how much that is depends on the machine.
        let twice = wipe_lost(&place, REPO, &starter());
        most = most.max(twice);
        assert!(twice <= CONNECTIONS * CHUNK, "{twice} bytes will be fetched again");
    }
    let ls = ran(hearth(&place, &hub, &["ls", "--json"])).exits(0).json();
    let job = &ls["downloads"][0];
    if kept(&place, REPO) > 0 && !job.is_null() {
        assert_eq!((job["state"].as_str(), job["bytes"].as_u64()), (Some("paused"), Some(kept(&place, REPO))), "{ls}");
    }
    hub.rate(None);
    ran(hearth(&place, &hub, &["pull", REPO])).exits(0);
    whole(&place, REPO, &commit);
    println!("{killed} kills, {finished} finished between them; at most {most} bytes fetched again after one");
}

fn whole(place: &Place, repo: &str, commit: &str) {
    let folder = snapshot(place, repo, commit);
    for name in
        ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    {
        assert!(same(&folder.join(name), &starter().join(name)), "{name}");
    }
    let ls = place.run(&["ls", "--json"]).exits(0).json();
    assert_eq!((&ls["models"][0]["id"], &ls["models"][0]["problem"]), (&json!(repo), &Value::Null), "{ls}");
}

#[test]
fn pull_says_where_the_model_is_and_what_went_wrong() {
    let (hub, place) = (Hub::start().unwrap(), Place::new());
    let commit = add(&hub, "org/tiny", 100_000, 1);
    let done = ran(hearth(&place, &hub, &["pull", "org/tiny"])).exits(0);
    assert_eq!(done.out.trim(), snapshot(&place, "org/tiny", &commit).to_str().unwrap());
    let by_commit = ran(hearth(&place, &hub, &["pull", &format!("org/tiny@{commit}"), "--json"])).exits(0).json();
    assert_eq!((&by_commit["state"], &by_commit["id"]), (&json!("done"), &json!(format!("org--tiny@{commit}"))));
    let missing = ran(hearth(&place, &hub, &["pull", "org/none"])).exits(1);
    assert!(missing.err.contains("there is no model org/none at 127.0.0.1"), "{missing:?}");
    // A name without its organization: the download of that name is meant, and not the model that it is a part of.
    ran(hearth(&place, &hub, &["pull", "tiny"])).exits(1);
    let ls = ran(hearth(&place, &hub, &["ls"])).exits(0);
    assert!(ls.out.contains("org/tiny") && !ls.out.contains("failed"), "what never began is not shown: {ls:?}");
    let removed = ran(hearth(&place, &hub, &["rm", "tiny", "--yes"])).exits(0);
    assert!(removed.out.contains("removed the download of tiny"), "{removed:?}");
    let bad = ran(hearth(&place, &hub, &["pull", "not a name"])).exits(2);
    assert!(bad.err.contains("org/name"), "{bad:?}");
    let mut away = place.hearth(&["pull", "org/tiny2"]);
    away.env("HF_ENDPOINT", "http://127.0.0.1:9");
    assert!(ran(away).exits(1).err.contains("cannot reach 127.0.0.1:9"));
    // Everything local still works.
    assert_eq!(place.run(&["ls", "--json"]).exits(0).json()["models"][0]["id"], "org/tiny");
    let found = ran(hearth(&place, &hub, &["search", "TINY"])).exits(0);
    assert!(found.out.contains("org/tiny") && found.out.contains("here"), "{found:?}");
}

#[test]
fn without_the_hub_everything_on_this_computer_works() {
    use reqwest::Method;
    // It takes connections, and says nothing on them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let endpoint = format!("http://{address}");
    let place = Place::with_model("llama-q4", "Mine");
    let hearth = |args: &[&str]| {
        let mut cmd = place.hearth(args);
        cmd.env("HF_ENDPOINT", &endpoint);
        cmd
    };
    for args in [&["pull", "org/tiny"][..], &["search", "tiny"]] {
        let away = ran(hearth(args)).exits(1);
        assert!(away.err.contains(&format!("cannot reach {address}: it did not answer in 8 s")), "{away:?}");
    }
    for (args, code) in [
        (&["ls"][..], 0),
        (&["fit", "Mine"], 0),
        (&["generate", "Mine", "--prompt", "Hello", "--max-tokens", "2"], 0),
        (&["rm", "Mine"], 1),
    ] {
        assert!(!ran(hearth(args)).exits(code).err.contains(&address.to_string()), "{args:?}");
    }
    let serve = hearth(&["serve", "--port", "0"]);
    let server = Server::spawn(place, serve);
    assert!(server.line().starts_with("ready: Mine"));
    let place = &server.place;
    for path in [
        "models",
        "models/removal?model=Mine",
        "catalogue",
        "downloads",
        "fit?model=Mine",
        "settings",
        "limits",
        "cache",
        "requests",
        "logs",
        "connect",
        "preflight",
    ] {
        let (status, reply) = place.admin(Method::GET, &format!("/api/hearth/{path}"), None);
        assert_eq!(status, 200, "{path}: {reply}");
    }
    // What only the hub knows is the one thing that fails, with a sentence.
    for path in ["search?q=tiny", "catalogue/preview?repo=org/tiny"] {
        let (status, reply) = place.admin(Method::GET, &format!("/api/hearth/{path}"), None);
        assert_eq!((status, &reply["error"]["code"]), (502, &json!("hub_unreachable")), "{path}: {reply}");
    }
    let (_, job) = place.admin(Method::POST, "/api/hearth/downloads", Some(json!({"repo": "org/tiny"})));
    let path = format!("/api/hearth/downloads/{}", job["id"].as_str().unwrap());
    eventually("the download says why it ends", || place.admin(Method::GET, &path, None).1["state"] == "failed");
    let (_, job) = place.admin(Method::GET, &path, None);
    assert!(job["message"].as_str().unwrap().contains("models on this computer work without it"), "{job}");
    // Whether a model of the list fits needs no hub either.
    let (_, list) = place.admin(Method::GET, "/api/hearth/catalogue", None);
    let known = |model: &&Value| model["bytes"].is_u64() || model["parameters"].is_u64();
    let models = list["models"].as_array().unwrap();
    assert!(models.iter().filter(known).count() > 20);
    assert!(models.iter().filter(known).all(|model| model["fit"]["fits"].is_boolean()), "{list}");
    let reply = server.ask("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 2, "ignore_eos": true}));
    assert_eq!(reply["usage"]["completion_tokens"], 2);
}

#[test]
fn a_ctrl_c_pauses_and_the_next_pull_goes_on() {
    let (hub, place) = (Hub::start().unwrap(), Place::new());
    add(&hub, "org/tiny", 20_000_000, 1);
    hub.rate(Some(2_000_000));
    let mut pull = hearth(&place, &hub, &["pull", "org/tiny"]).stderr(Stdio::piped()).spawn().unwrap();
    eventually("something has come", || kept(&place, "org/tiny") > CHUNK);
    rustix::process::kill_process(rustix::process::Pid::from_child(&pull), Signal::INT).unwrap();
    assert_eq!(wait(&mut pull).code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut pull.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("paused at ") && said.contains("`hearth pull org/tiny` goes on from there"), "{said}");
    let here = kept(&place, "org/tiny");
    let ls = place.run(&["ls"]).exits(0);
    assert!(ls.out.contains("org/tiny") && ls.out.contains("paused at"), "{ls:?}");
    hub.rate(None);
    hub.forget();
    ran(hearth(&place, &hub, &["pull", "org/tiny"])).exits(0);
    assert!(hub.served() <= 20_100_000 - here, "{} were sent though {here} were here", hub.served());
}

/// Whether a process handles SIGINT itself; after a while where the system does not say.
fn listens(process: &Child) -> bool {
    match fs::read_to_string(format!("/proc/{}/status", process.id())) {
        Ok(text) => {
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 2 != 0)
        }
        Err(_) => {
            std::thread::sleep(Duration::from_secs(2));
            true
        }
    }
}

#[test]
fn a_running_server_does_the_job_and_there_is_one() {
    use reqwest::Method;
    let hub = Hub::start().unwrap();
    let commit = add(&hub, "org/tiny", 8_000_000, 1);
    hub.rate(Some(1_000_000));
    let place = Place::new();
    let mut serve = hearth(&place, &hub, &["serve", "--port", "0"]);
    serve.env("HF_TOKEN", "hf_old");
    let server = Server::spawn(place, serve);
    let place = &server.place;
    let mut pull: Child = hearth(place, &hub, &["pull", "org/tiny"]).stdout(Stdio::piped()).spawn().unwrap();
    let job = || place.admin(Method::GET, "/api/hearth/downloads", None).1["downloads"][0].clone();
    eventually("the server has the job", || job()["state"] == "downloading");
    let (status, same) = place.admin(Method::POST, "/api/hearth/downloads", Some(json!({"repo": "org/tiny"})));
    assert_eq!((status, &same["id"]), (200, &json!("org--tiny@main")));
    // Who has joined it leaves without stopping it for the first.
    let mut joined = hearth(place, &hub, &["pull", "org/tiny"]).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it listens for ctrl-c", || listens(&joined));
    rustix::process::kill_process(rustix::process::Pid::from_child(&joined), Signal::INT).unwrap();
    assert_eq!(wait(&mut joined).code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut joined.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("the server goes on downloading org/tiny"), "{said}");
    assert!(job()["state"] == "downloading" && pull.try_wait().unwrap().is_none(), "{}", job());
    let path = "/api/hearth/downloads/org--tiny@main";
    assert_eq!(place.admin(Method::POST, &format!("{path}/pause"), None).0, 200);
    assert_eq!(wait(&mut pull).code(), Some(1), "whoever waits for it hears of it");
    assert_eq!(job()["state"], "paused");
    assert_eq!(place.admin(Method::POST, &format!("{path}/resume"), None).0, 200);
    // What the server is at ends before it is removed.
    add(&hub, "org/other", 8_000_000, 2);
    assert_eq!(
        place.admin(Method::POST, "/api/hearth/downloads", Some(json!({"repo": "org/other"}))).1["state"],
        "checking"
    );
    let open = || place.run(&["ls", "--json"]).exits(0).json()["downloads"].as_array().unwrap().len();
    eventually("two downloads", || open() == 2);
    assert!(place.run(&["rm", "org/other"]).exits(1).err.contains("add --yes"));
    assert!(place.run(&["rm", "org/other", "--yes"]).exits(0).out.contains("removed the download of org/other"));
    assert!(open() == 1 && !place.path("hub/models--org--other").exists());
    hub.rate(None);
    eventually("it is done", || job()["state"] == "done");
    assert_eq!(job()["path"], snapshot(place, "org/tiny", &commit).to_str().unwrap());
    assert!(job()["message"].as_str().unwrap().contains("HF_TOKEN is not valid any more"), "{}", job());
    assert_eq!(hub.leaks(), 0);
    // Looked at, searched, removed.
    let (_, models) = place.admin(Method::GET, "/api/hearth/models", None);
    let model = &models["models"][0];
    assert_eq!(
        (&model["id"], &model["state"], &model["pinned"]),
        (&json!("org/tiny"), &json!("on_disk"), &json!(false))
    );
    let (_, found) = place.admin(Method::GET, "/api/hearth/search?q=tiny", None);
    assert_eq!(found["models"][0]["repo"], "org/tiny");
    let (_, removal) = place.admin(Method::GET, "/api/hearth/models/removal?model=org/tiny", None);
    assert!(removal["frees"].as_u64().unwrap() > 8_000_000 && removal["own"] == true, "{removal}");
    let (status, refused) = place.admin(Method::DELETE, "/api/hearth/models?model=tiny", None);
    assert!(status == 400 && refused["error"]["message"].as_str().unwrap().contains("whole id"), "{refused}");
    assert_eq!(place.admin(Method::DELETE, "/api/hearth/models?model=org/tiny", None).0, 200);
    assert!(!place.path("hub/models--org--tiny").exists());
    for (path, body, status) in [
        ("/api/hearth/downloads", json!({"repo": "../x"}), 400),
        ("/api/hearth/downloads", json!({"repo": 7}), 400),
        ("/api/hearth/downloads", json!({"repo": "a/b", "rev": "x"}), 400),
        ("/api/hearth/downloads/nothing/pause", json!({}), 404),
        ("/api/hearth/downloads/nothing/dance", json!({}), 404),
    ] {
        let (got, answer) = place.admin(Method::POST, path, Some(body));
        assert_eq!(got, status, "{path}: {answer}");
    }
    // Whoever waits for a server that ends hears that nothing is lost.
    hub.rate(Some(500_000));
    add(&hub, "org/third", 8_000_000, 3);
    let mut waiting = hearth(place, &hub, &["pull", "org/third"]).stderr(Stdio::piped()).spawn().unwrap();
    eventually("some of it is here", || kept(place, "org/third") > 0);
    assert_eq!(place.run(&["stop"]).code, 0);
    assert_eq!(wait(&mut waiting).code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut waiting.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("has ended; `hearth pull org/third` goes on") || said.contains("paused at"), "{said}");
}

#[test]
fn a_download_follows_the_cache_and_goes_with_rm() {
    let (hub, place) = (Hub::start().unwrap(), Place::new());
    add(&hub, "org/tiny", 100_000, 1);
    ran(hearth(&place, &hub, &["pull", "org/tiny"])).exits(0);
    // Another cache now: that is where it is to be.
    let mut pull = hearth(&place, &hub, &["pull", "org/tiny"]);
    pull.env("HF_HUB_CACHE", place.path("other"));
    let path = ran(pull).exits(0).out;
    assert!(Path::new(path.trim()).starts_with(place.path("other")), "{path}");
    ran(hearth(&place, &hub, &["pull", "org/none"])).exits(1);
    let asked = place.run(&["rm", "org/none"]).exits(1);
    assert!(asked.err.contains("add --yes"), "{asked:?}");
    place.run(&["rm", "org/none", "--yes"]).exits(0);
    assert!(!place.run(&["ls"]).exits(0).out.contains("org/none"));
}

#[test]
fn rm_says_what_it_frees_and_asks() {
    let (hub, place) = (Hub::start().unwrap(), Place::new());
    add(&hub, "org/tiny", 500_000, 1);
    ran(hearth(&place, &hub, &["pull", "org/tiny"])).exits(0);
    let asked = place.run(&["rm", "tiny"]).exits(1);
    assert!(asked.err.contains("remove org/tiny (4 files, 500.") && asked.err.contains("add --yes"), "{asked:?}");
    let removed = place.run(&["rm", "tiny", "--yes"]).exits(0);
    assert!(removed.out.starts_with("removed org/tiny, which frees 500."), "{removed:?}");
    assert!(!place.path("hub/models--org--tiny").exists());
    place.run(&["rm", "tiny", "--yes"]).exits(3);
    // What another program has downloaded is not Hearth's to remove.
    ran(hearth(&place, &hub, &["pull", "org/tiny"])).exits(0);
    fs::remove_file(place.path("hub/models--org--tiny/.hearth.json")).unwrap();
    let foreign = place.run(&["rm", "org/tiny", "--yes"]).exits(1);
    assert!(foreign.err.contains("was not made by Hearth") && foreign.err.contains("--foreign"), "{foreign:?}");
    place.run(&["rm", "org/tiny", "--yes", "--foreign"]).exits(0);
}

/// Runs Python with the hub's own client in a place.
fn python(place: &Place, hub: &Hub, code: &str) -> support::Ran {
    let mut cmd = Command::new(support::hub_python());
    cmd.args(["-c", code]).env("HF_ENDPOINT", hub.url()).env("HF_HUB_CACHE", place.path("hub"));
    cmd.env("HF_HOME", place.path("hf")).env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_TELEMETRY", "1");
    cmd.env_remove("HF_TOKEN").env("HF_HUB_DISABLE_PROGRESS_BARS", "1").current_dir(place.dir.path());
    ran(cmd)
}

#[test]
fn the_python_client_finds_what_hearth_downloads_and_hearth_what_it_does() {
    let (hub, place) = (Hub::start().unwrap(), Place::new());
    let commit = add(&hub, "org/ours", 2_000_000, 1);
    let theirs = add(&hub, "org/theirs", 2_000_000, 2);
    ran(hearth(&place, &hub, &["pull", "org/ours"])).exits(0);
    hub.forget();
    let code = "from huggingface_hub import snapshot_download, scan_cache_dir\n\
                print(snapshot_download('org/ours', local_files_only=True))\n\
                info = scan_cache_dir()\n\
                print(len(info.warnings), [r.repo_id for r in info.repos])";
    let seen = python(&place, &hub, code).exits(0);
    let expected = format!("{}\n0 ['org/ours']\n", snapshot(&place, "org/ours", &commit).display());
    assert_eq!(seen.out, expected, "{seen:?}");
    // Going on with it online, it fetches what Hearth had no use for, and nothing twice.
    python(&place, &hub, "from huggingface_hub import snapshot_download\nsnapshot_download('org/ours')").exits(0);
    assert_eq!(hub.served(), "not needed".len() as u64, "{:?}", hub.seen());
    python(&place, &hub, "from huggingface_hub import snapshot_download\nsnapshot_download('org/theirs')").exits(0);
    let ls = place.run(&["ls", "--json"]).exits(0).json();
    let models: Vec<(&str, bool)> =
        ls["models"].as_array().unwrap().iter().map(|m| (m["id"].as_str().unwrap(), m["problem"].is_null())).collect();
    assert_eq!(models, [("org/ours", true), ("org/theirs", true)]);
    hub.forget();
    let done = ran(hearth(&place, &hub, &["pull", "org/theirs"])).exits(0);
    assert_eq!(done.out.trim(), snapshot(&place, "org/theirs", &theirs).to_str().unwrap());
    assert_eq!(hub.served(), 0, "verified, not fetched");
    let foreign = place.run(&["rm", "org/theirs", "--yes"]).exits(1);
    assert!(foreign.err.contains("not made by Hearth"), "{foreign:?}");
}
