//! Downloads against a hub with faults: every one ends in the right state with its sentence, and nothing unverified is left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;

use hearth_library::download::{Download, DownloadManager, DownloadOptions, DownloadState};
use hearth_library::hub::{HubOptions, Token};
use hearth_library::scan::{Place, Places, scan};
use hearth_test_hub::{Fault, Hub, TOKEN, tiny_model};

/// A hub with one model, and an empty computer.
struct World {
    hub: Hub,
    dir: tempfile::TempDir,
    commit: String,
    files: Vec<(&'static str, Vec<u8>)>,
}

const REPO: &str = "org/tiny";
const CHUNK: u64 = 64 << 10;

impl World {
    fn new(bytes: usize) -> Self {
        let hub = Hub::start().unwrap();
        let commit = add(&hub, REPO, bytes, 1);
        Self { hub, dir: tempfile::tempdir().unwrap(), commit, files: tiny_model(bytes, 1) }
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("hub")
    }

    fn manager(&self) -> DownloadManager {
        self.manager_with(None, |_, _| {})
    }

    fn manager_with(
        &self,
        token: Option<&str>,
        change: impl FnOnce(&mut HubOptions, &mut DownloadOptions),
    ) -> DownloadManager {
        let mut hub = HubOptions {
            endpoint: self.hub.url(),
            token: token.and_then(|t| Token::new(t, "HF_TOKEN")),
            silence: Duration::from_millis(300),
            ..HubOptions::default()
        };
        let mut options = DownloadOptions {
            connections: 4,
            chunk: CHUNK,
            backoff: Duration::from_millis(10),
            spare: 0,
            ..DownloadOptions::default()
        };
        change(&mut hub, &mut options);
        DownloadManager::open(&self.dir.path().join("downloads"), &self.cache(), hub, options)
    }

    fn repo(&self) -> PathBuf {
        self.cache().join("models--org--tiny")
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(&self.commit)
    }

    /// What the blobs' folder holds that is no blob.
    fn leftovers(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.repo().join("blobs")) else { return Vec::new() };
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).filter(|n| n.contains('.')).collect()
    }
}

/// The address of something that answers three requests with a page, as what stands before a hub may.
fn page() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().take(3).flatten() {
            let mut asked = BufReader::new(socket.try_clone().unwrap()).lines();
            while asked.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 15\r\nconnection: close\r\n\r\n<p>Sign in.</p>";
            let _ = socket.write_all(page.as_bytes());
        }
    });
    format!("http://{address}")
}

fn add(hub: &Hub, repo: &str, bytes: usize, seed: u8) -> String {
    let files = tiny_model(bytes, seed);
    let files: Vec<(&str, &[u8])> = files.iter().map(|(path, bytes)| (*path, bytes.as_slice())).collect();
    hub.add(repo, &files)
}

/// Waits for the end of a job; gives up after a minute.
fn end(manager: &DownloadManager, id: &str) -> Download {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settled = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), manager.settled(id)).await });
    settled.unwrap_or_else(|_| panic!("it hangs: {:?}", manager.get(id))).unwrap()
}

fn pull(manager: &DownloadManager) -> Download {
    let job = manager.start(REPO, None).unwrap();
    end(manager, &job.id)
}

/// Waits until so many bytes are here.
#[track_caller]
fn comes(manager: &DownloadManager, id: &str, bytes: u64) -> Download {
    loop {
        let now = manager.get(id).unwrap();
        if now.bytes >= bytes {
            return now;
        }
        assert!(now.state.is_active(), "{now:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn done(job: &Download, world: &World) {
    assert_eq!((job.state, job.bytes == job.total, job.percent()), (DownloadState::Done, true, 100), "{job:?}");
    assert_eq!(job.path.as_deref(), Some(world.snapshot().to_str().unwrap()));
    for (name, bytes) in world.files.iter().filter(|(name, _)| *name != "README.md") {
        let file = world.snapshot().join(name);
        assert!(std::fs::read(&file).unwrap() == *bytes, "{name}");
        let link = std::fs::read_link(&file).unwrap();
        assert!(link.starts_with("../../blobs"), "{link:?}");
    }
    assert_eq!(world.leftovers(), [""; 0]);
    assert_eq!(std::fs::read_to_string(world.repo().join("refs/main")).unwrap(), world.commit);
    assert_eq!(world.hub.leaks(), 0, "a token reached the storage host");
}

#[test]
fn a_model_arrives_whole_verified_and_where_everybody_looks_for_it() {
    let world = World::new(1_000_000);
    let manager = world.manager();
    let mut events = manager.subscribe();
    let job = pull(&manager);
    done(&job, &world);
    assert_eq!((job.id.as_str(), job.message.as_deref()), ("org--tiny@main", None));
    assert!(!job.files.iter().any(|f| f.name == "README.md"), "only what a model needs");
    let found = scan(&Places::of(vec![Place::HfCache(world.cache())])).models;
    assert_eq!((found[0].id.as_str(), found[0].is_complete()), (REPO, true), "{found:?}");
    let mut states = Vec::new();
    while let Ok(event) = events.try_recv() {
        states.push(event.state);
    }
    assert_eq!(states.first(), Some(&DownloadState::Queued));
    assert_eq!(states.last(), Some(&DownloadState::Done));
    // Once more: nothing is fetched that is here.
    world.hub.forget();
    done(&pull(&manager), &world);
    assert_eq!(world.hub.served(), 0);
    // Nor by a new process.
    done(&pull(&world.manager()), &world);
    assert_eq!(world.hub.served(), 0);
}

#[test]
fn faults_that_pass_are_lived_through() {
    let faults: &[(&str, Fault, u32)] = &[
        ("/lfs/", Fault::Drop(30_000), 5),
        ("/lfs/", Fault::Stall(70_000), 2),
        ("/lfs/", Fault::Status(503), 3),
        ("/lfs/", Fault::Busy(1), 1),
        ("/lfs/", Fault::NoRange, 1),
        ("/lfs/", Fault::NoRange, 1000),
        ("/lfs/", Fault::NewTag, 1),
        ("/lfs/", Fault::NewTag, 1000),
        ("/lfs/", Fault::Corrupt(200_000), 1),
        ("/lfs/", Fault::Status(403), 2),
        ("config.json", Fault::Corrupt(3), 1),
        ("config.json", Fault::Drop(5), 2),
        ("/revision/", Fault::Busy(1), 1),
        ("/revision/", Fault::Status(500), 2),
    ];
    for (path, fault, times) in faults {
        let world = World::new(600_000);
        world.hub.fault(path, *fault, *times);
        let job = pull(&world.manager());
        assert_eq!(job.state, DownloadState::Done, "{fault:?}: {job:?}");
        done(&job, &world);
    }
}

#[test]
fn faults_that_stay_end_with_a_sentence_and_what_is_here_stays() {
    let cases: &[(&str, Fault, &str)] = &[
        ("/lfs/", Fault::Status(503), "answered with status 503"),
        ("/lfs/", Fault::Stall(0), "sent nothing for"),
        ("/lfs/", Fault::Corrupt(100_000), "came damaged twice"),
        ("/lfs/", Fault::Status(416), "was another one 4 times"),
        ("/revision/", Fault::Status(500), "answered with status 500"),
        ("/revision/", Fault::Busy(4000), "takes no more requests for now; try again in 3600 s"),
        ("config.json", Fault::Status(404), "there is no model org/tiny"),
    ];
    for (path, fault, words) in cases {
        let world = World::new(400_000);
        world.hub.fault(path, *fault, 10_000);
        let manager = world.manager_with(None, |_, options| options.tries = 3);
        let job = pull(&manager);
        let message = job.message.clone().unwrap_or_default();
        assert!(job.state == DownloadState::Failed && message.contains(words), "{fault:?}: {job:?}");
        assert!(!world.snapshot().exists(), "{fault:?}: no half model is shown");
        // When the fault is over it goes on.
        world.hub.calm();
        let job = manager.resume(&job.id).unwrap();
        done(&end(&manager, &job.id), &world);
    }
}

#[test]
fn refusals_are_one_sentence_each() {
    let world = World::new(10_000);
    world.hub.add("org/gguf", &[("config.json", b"{}"), ("m.Q4_0.gguf", b"GGUF")]);
    add(&world.hub, "org/gated", 1000, 2);
    world.hub.gate("org/gated", false);
    add(&world.hub, "org/hidden", 1000, 3);
    world.hub.hide("org/hidden");
    let host = world.hub.url().trim_start_matches("http://").to_owned();
    let failed = |token: Option<&str>, repo: &str, revision: Option<&str>| {
        let manager = world.manager_with(token, |_, _| {});
        let job = manager.start(repo, revision).unwrap();
        let job = end(&manager, &job.id);
        assert_eq!(job.state, DownloadState::Failed, "{job:?}");
        manager.cancel(&job.id).unwrap();
        job.message.unwrap()
    };
    let missing = format!(
        "there is no model org/nothing at {host}, or it is private; check the name, or set HF_TOKEN to a token that may read it"
    );
    assert_eq!(failed(None, "org/nothing", None), missing);
    assert!(failed(Some(TOKEN), "org/nothing", None).ends_with("or use a token that may read it"));
    assert!(failed(None, "org/hidden", None).contains("or it is private"));
    assert_eq!(failed(None, REPO, Some("v9")), "org/tiny has no revision v9; leave it out for the newest");
    let gated = failed(None, "org/gated", None);
    assert!(gated.contains("org/gated is gated") && gated.contains("set HF_TOKEN"), "{gated}");
    let gated = failed(Some(TOKEN), "org/gated", None);
    assert!(gated.contains("with the account of the token in use"), "{gated}");
    assert!(failed(None, "org/gguf", None).contains("hearth import"));
    assert!(world.manager().list().is_empty(), "cancelled ones are not kept");
    for bad in ["../x", "a b/c", ""] {
        assert!(world.manager().start(bad, None).is_err(), "{bad}");
    }
    world.hub.gate("org/gated", true);
    let manager = world.manager_with(Some(TOKEN), |_, _| {});
    let job = manager.start("org/gated", None).unwrap();
    assert_eq!(end(&manager, &job.id).state, DownloadState::Done);
    assert_eq!(world.hub.leaks(), 0, "a token reached the storage host");
}

#[test]
fn a_stale_token_on_a_public_repository_is_explained_and_not_in_the_way() {
    let world = World::new(300_000);
    let job = pull(&world.manager_with(Some("hf_old"), |_, _| {}));
    done(&job, &world);
    let message = job.message.unwrap();
    assert_eq!(
        message,
        "the token from HF_TOKEN is not valid any more; this model is public, so it is downloaded without it"
    );
}

#[test]
fn a_renamed_repository_is_followed_and_said() {
    let world = World::new(100_000);
    world.hub.rename(REPO, "org/newer");
    let job = pull(&world.manager());
    assert_eq!(job.state, DownloadState::Done, "{job:?}");
    assert_eq!(job.repo, "org/newer");
    assert_eq!(job.message.unwrap(), "org/tiny is called org/newer now, and is downloaded under that name");
    let found = scan(&Places::of(vec![Place::HfCache(world.cache())])).models;
    assert_eq!(found[0].id, "org/newer");
}

#[test]
fn a_hub_that_is_away_is_an_error_at_once_and_the_rest_works() {
    let world = World::new(1000);
    done(&pull(&world.manager()), &world);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let manager = world.manager_with(None, |hub, _| hub.endpoint = format!("http://{free}"));
    let job = manager.start("org/other", None).unwrap();
    let job = end(&manager, &job.id);
    assert_eq!(job.state, DownloadState::Failed);
    assert_eq!(
        job.message.unwrap(),
        format!("cannot reach {free}: Connection refused (os error 111); models on this computer work without it")
    );
    assert_eq!(scan(&Places::of(vec![Place::HfCache(world.cache())])).models.len(), 1);
    // What is here stays complete, though nobody can say whether there is something newer.
    let again = manager.start(REPO, None).unwrap();
    let again = end(&manager, &again.id);
    assert_eq!((again.state, again.bytes), (DownloadState::Done, again.total), "{again:?}");
    assert!(again.message.unwrap().ends_with("the model that is here stays as it is"));
    // Nor where a page comes in place of the answer, or somebody stops waiting for a busy hub.
    let manager = world.manager_with(None, |hub, _| hub.endpoint = page());
    let again = manager.start(REPO, None).unwrap();
    let again = end(&manager, &again.id);
    assert_eq!(again.state, DownloadState::Done, "{again:?}");
    world.hub.fault("/revision/", Fault::Busy(60), 10);
    let manager = world.manager();
    let again = manager.start(REPO, None).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    manager.pause(&again.id).unwrap();
    let again = end(&manager, &again.id);
    assert_eq!((again.state, again.bytes), (DownloadState::Done, again.total), "{again:?}");
    // Nothing was known of it yet: there is nothing to go on from, for whoever looks later.
    let other = manager.start("org/fourth", None).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let later = world.manager().list();
    assert!(later.iter().all(|job| job.repo != "org/fourth"), "{later:?}");
    manager.pause(&other.id).unwrap();
    assert_eq!(end(&manager, &other.id).state, DownloadState::Paused);
    let later = world.manager().list();
    assert!(later.iter().all(|job| job.repo != "org/fourth"), "{later:?}");
    world.hub.calm();
    // One that takes the connection and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let manager = world.manager_with(None, |hub, _| {
        hub.endpoint = format!("http://{address}");
        hub.answer = Duration::from_millis(300);
    });
    let job = manager.start("org/third", None).unwrap();
    assert!(end(&manager, &job.id).message.unwrap().contains("it did not answer in"));
}

#[test]
fn a_mirror_without_lengths_and_checksums_is_asked_for_each_file() {
    let world = World::new(200_000);
    world.hub.bare();
    done(&pull(&world.manager()), &world);
}

#[test]
fn paused_and_resumed_it_fetches_no_byte_twice_but_of_open_chunks() {
    let world = World::new(3_000_000);
    world.hub.rate(Some(400_000));
    let manager = world.manager();
    let job = manager.start(REPO, None).unwrap();
    // Whoever clicks again gets the same job.
    assert_eq!(manager.start(REPO, Some("main")).unwrap().id, job.id);
    let half = comes(&manager, &job.id, 1_000_000);
    assert_eq!(half.state, DownloadState::Downloading);
    manager.pause(&job.id).unwrap();
    let paused = end(&manager, &job.id);
    assert_eq!(paused.state, DownloadState::Paused);
    let (kept, percent) = (paused.bytes, paused.percent());
    assert!(kept > 500_000 && (10..90).contains(&percent), "{kept} {percent}");
    // Another process shows the same, and goes on.
    let manager = world.manager();
    assert_eq!(manager.list()[0].percent(), percent);
    world.hub.rate(None);
    world.hub.forget();
    manager.resume(&job.id).unwrap();
    let job = end(&manager, &job.id);
    done(&job, &world);
    assert_eq!(world.hub.served(), job.total - kept, "only what was missing");
}

#[test]
fn cancelled_it_leaves_nothing() {
    let world = World::new(3_000_000);
    world.hub.rate(Some(400_000));
    let manager = world.manager();
    let job = manager.start(REPO, None).unwrap();
    comes(&manager, &job.id, 500_000);
    manager.cancel(&job.id).unwrap();
    let job = end(&manager, &job.id);
    assert_eq!((job.state, job.bytes), (DownloadState::Cancelled, 0));
    assert!(!world.repo().exists());
    assert!(world.manager().list().is_empty());
    // And can be asked for again.
    world.hub.rate(None);
    done(&pull(&manager), &world);
}

#[test]
fn damage_on_disk_is_found_and_repaired_and_other_programs_files_are_left_alone() {
    let world = World::new(300_000);
    done(&pull(&world.manager()), &world);
    let blobs = world.repo().join("blobs");
    let weights = std::fs::read_link(world.snapshot().join("model.safetensors")).unwrap();
    let weights = blobs.join(weights.file_name().unwrap());
    let mut bytes = std::fs::read(&weights).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    let partial = blobs.join("abc.12345678.incomplete");
    std::fs::write(&partial, "theirs").unwrap();
    // Not known to be right any more: as a model that another program downloaded.
    std::fs::remove_dir_all(world.dir.path().join("downloads")).unwrap();
    let job = pull(&world.manager());
    assert_eq!(job.message.as_deref(), Some("model.safetensors was damaged on disk, and is replaced"));
    assert_eq!(std::fs::read_to_string(&partial).unwrap(), "theirs");
    std::fs::remove_file(&partial).unwrap();
    done(&job, &world);
}

#[test]
fn without_room_nothing_is_begun() {
    let world = World::new(10_000);
    let manager = world.manager_with(None, |_, options| options.spare = u64::MAX / 2);
    let job = pull(&manager);
    assert_eq!(job.state, DownloadState::Failed);
    let message = job.message.unwrap();
    assert!(
        message.starts_with("not enough disk space in ") && message.contains("are free; remove something"),
        "{message}"
    );
    assert!(world.hub.seen().iter().all(|s| !s.path.contains("resolve")), "nothing was fetched");
}

#[test]
fn two_processes_do_not_do_the_same_work() {
    let world = World::new(3_000_000);
    world.hub.rate(Some(400_000));
    let (first, second) = (world.manager(), world.manager());
    let job = first.start(REPO, None).unwrap();
    comes(&first, &job.id, 100_000);
    second.start(REPO, None).unwrap();
    let refused = end(&second, &job.id);
    assert_eq!(refused.state, DownloadState::Paused);
    assert_eq!(refused.message.unwrap(), format!("process {} downloads it now", std::process::id()));
    // Nor does it take away what the other is fetching.
    let kept = second.cancel(&job.id).unwrap_err();
    assert!(matches!(kept, hearth_library::LibraryError::Downloading { .. }), "{kept}");
    world.hub.rate(None);
    done(&end(&first, &job.id), &world);
}

#[test]
fn several_models_wait_for_each_other_and_revisions_share_contents() {
    let world = World::new(200_000);
    let old = world.commit.clone();
    let new = add(&world.hub, REPO, 200_000, 9);
    let manager = world.manager_with(None, |_, options| options.jobs = 1);
    for i in 0..4u8 {
        add(&world.hub, &format!("org/m{i}"), 50_000, i);
        manager.start(&format!("org/m{i}"), None).unwrap();
    }
    let by_commit = manager.start(REPO, Some(&old)).unwrap();
    let main = manager.start(REPO, None).unwrap();
    for job in manager.list() {
        assert_eq!(end(&manager, &job.id).state, DownloadState::Done, "{job:?}");
    }
    assert_ne!(by_commit.id, main.id);
    assert!(world.repo().join("snapshots").join(&old).exists() && world.repo().join("snapshots").join(&new).exists());
    let config =
        |commit: &str| std::fs::read_link(world.repo().join("snapshots").join(commit).join("config.json")).unwrap();
    assert_eq!(config(&old), config(&new), "the same content is there once");
    assert_eq!(std::fs::read_to_string(world.repo().join("refs/main")).unwrap(), new);
    assert!(!world.repo().join("refs").join(&old).exists());
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let world = World::new(100_000);
    done(&pull(&world.manager_with(Some(TOKEN), |_, _| {})), &world);
    let seen = world.hub.seen();
    assert!(seen.iter().filter(|s| !s.storage).all(|s| s.token), "{seen:?}");
    assert!(seen.iter().any(|s| s.storage) && seen.iter().filter(|s| s.storage).all(|s| !s.token));
}

#[test]
fn an_interrupted_record_is_shown_as_paused() {
    let world = World::new(100_000);
    let manager = world.manager();
    done(&pull(&manager), &world);
    let record = world.dir.path().join("downloads/org--tiny@main.json");
    let text = std::fs::read_to_string(&record).unwrap().replace("\"done\"", "\"downloading\"");
    std::fs::write(&record, text).unwrap();
    let job = &world.manager().list()[0];
    assert_eq!(
        (job.state, job.message.as_deref()),
        (DownloadState::Paused, Some("it was stopped with the program that ran it"))
    );
    assert!(world.snapshot().exists());
}

#[test]
fn the_hub_is_asked_for_sizes_before_anything_is_downloaded() {
    use hearth_core::fit::{Allowance, Device, Machine};
    use hearth_library::catalogue::{Catalogue, preview, refreshed};
    use hearth_library::hub::{Hub as Client, Repo, Revision};
    let world = World::new(2_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(HubOptions { endpoint: world.hub.url(), ..HubOptions::default() }).unwrap();
    let machine = Machine {
        chip: None,
        device: Device::Gpu,
        ram: 8 << 30,
        available: None,
        working_set: None,
        bandwidth: None,
        efficiency: 0.8,
        allowance: Allowance::default(),
    };
    let repo = Repo::parse(REPO).unwrap();
    let found = runtime.block_on(preview(&client, &repo, &Revision::main(), &machine)).unwrap();
    let expected: usize = world.files.iter().filter(|(n, _)| *n != "README.md").map(|(_, b)| b.len()).sum();
    assert_eq!((found.bytes, found.files, &found.commit), (Some(expected as u64), 4, &world.commit));
    assert!(world.hub.served() < 600_000, "{} bytes for headers", world.hub.served());
    assert!(found.fit.is_some() || found.note.is_some());
    let found = runtime.block_on(client.search("TIN", 5)).unwrap();
    assert_eq!((found.len(), found[0].repo.as_str(), found[0].gated), (1, REPO, false));
    // The list is made anew of what the hub says; what is gone is said.
    let mut list = Catalogue::built_in().unwrap();
    list.models.truncate(2);
    list.models[0].repo = REPO.to_owned();
    let (list, gone) = runtime.block_on(refreshed(&client, &list, "2027-01-31")).unwrap();
    assert_eq!((list.models.len(), gone.len()), (1, 1));
    let model = &list.models[0];
    assert_eq!(
        (model.bytes, model.commit.as_ref(), model.context),
        (Some(expected as u64), Some(&world.commit), Some(2048))
    );
}
