//! Hearth's own folder: where it is, who owns it, what it remembers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;

use hearth_library::home::{Home, Ownership, ServerRecord, now};

fn record(port: u16) -> ServerRecord {
    ServerRecord {
        pid: std::process::id(),
        host: "127.0.0.1".into(),
        port,
        model: Some("m".into()),
        started: now(),
        token: None,
    }
}

fn fresh() -> (tempfile::TempDir, Home) {
    let root = tempfile::tempdir().unwrap();
    let home = Home::at(root.path().join("a %s home"));
    (root, home)
}

fn owned(home: &Home) -> hearth_library::home::HomeLock {
    match home.acquire().unwrap() {
        Ownership::Owned(lock) => lock,
        Ownership::Held(holder) => panic!("held by {holder}"),
    }
}

#[test]
fn the_environment_moves_the_home() {
    let at = |value: &str| {
        let value = OsString::from(value);
        Home::locate_in(&move |name: &str| (name == "HEARTH_HOME").then(|| value.clone())).unwrap()
    };
    assert_eq!(at("/srv/hearth"), Home::at("/srv/hearth"));
    assert!(at("relative").root().is_absolute());
    let usual = at("");
    assert!(usual.root().is_absolute());
    assert_eq!(usual.root().file_name().unwrap().to_ascii_lowercase(), "hearth");
}

#[test]
fn preparing_makes_private_folders_and_may_be_repeated() {
    let (_root, home) = fresh();
    home.prepare().unwrap();
    home.prepare().unwrap();
    for folder in [home.models(), home.cache(), home.downloads(), home.logs()] {
        assert!(folder.is_dir() && folder.starts_with(home.root()));
    }
    assert_eq!(std::fs::metadata(home.root()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_second_owner_is_told_who_the_first_is() {
    let (_root, home) = fresh();
    let lock = owned(&home);
    let Ownership::Held(holder) = home.acquire().unwrap() else { panic!("two owners") };
    assert_eq!((holder.pid, &holder.record), (Some(std::process::id()), &None));
    assert!(holder.to_string().contains("starting"), "{holder}");

    lock.publish(&record(8080)).unwrap();
    let holder = home.inspect().unwrap().unwrap();
    assert_eq!(
        holder.record,
        Some(record(8080)).map(|r| ServerRecord { started: holder.record.clone().unwrap().started, ..r })
    );
    assert!(holder.to_string().contains("http://127.0.0.1:8080 with m"), "{holder}");
    lock.publish(&record(9090)).unwrap();
    let Ownership::Held(holder) = home.acquire().unwrap() else { panic!("two owners") };
    assert_eq!(holder.record.unwrap().port, 9090);

    drop(lock);
    assert!(!home.server_json().exists());
    assert_eq!(home.inspect().unwrap(), None);
    owned(&home);
}

#[test]
fn a_record_left_by_a_killed_process_is_ignored_and_cleared() {
    let (_root, home) = fresh();
    assert_eq!(home.inspect().unwrap(), None);
    home.prepare().unwrap();
    std::fs::write(home.server_json(), serde_json::to_string(&record(1234)).unwrap()).unwrap();
    std::fs::write(home.root().join("lock"), "4194304").unwrap();
    assert_eq!(home.inspect().unwrap(), None);
    let _lock = owned(&home);
    assert!(!home.server_json().exists());
    assert_eq!(home.inspect().unwrap().unwrap().pid, Some(std::process::id()));
}

#[test]
fn looking_never_keeps_anybody_out() {
    let (_root, home) = fresh();
    home.prepare().unwrap();
    drop(owned(&home));
    let looking = home.clone();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = stop.clone();
    let looker = std::thread::spawn(move || {
        while !seen.load(std::sync::atomic::Ordering::Relaxed) {
            looking.inspect().unwrap();
        }
    });
    for _ in 0..20 {
        drop(owned(&home));
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    looker.join().unwrap();
}

#[test]
fn a_damaged_record_does_not_hide_the_owner() {
    let (_root, home) = fresh();
    let _lock = owned(&home);
    std::fs::write(home.server_json(), "{ half").unwrap();
    let holder = home.inspect().unwrap().unwrap();
    assert_eq!((holder.pid, holder.record), (Some(std::process::id()), None));
}

#[test]
fn the_last_model_is_remembered() {
    let (_root, home) = fresh();
    assert_eq!(home.last_model(), None);
    home.set_last_model("org/a").unwrap();
    home.set_last_model("org/b").unwrap();
    assert_eq!(home.last_model().unwrap().model, "org/b");
    std::fs::write(home.root().join("last-model.json"), "nonsense").unwrap();
    assert_eq!(home.last_model(), None);
}

#[test]
fn a_home_that_cannot_be_written_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    let message = Home::at(file.join("home")).acquire().unwrap_err().to_string();
    assert!(message.contains("file/home"), "{message}");
}
