//! The hub as a program: what it offers, and where it says that it is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn the_first_line_is_its_address_and_there_it_offers_models() {
    let mut cmd = Command::new(env!("CARGO_BIN_EXE_hearth-test-hub"));
    let mut hub =
        cmd.args(["--shards", "test/sharded=3x1000"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(hub.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    let status = |repo: &str| {
        client.get(format!("{}/api/models/{repo}", url.trim())).send().map(|reply| reply.status().as_u16())
    };
    let found = ["test/tiny-a", "test/sharded", "test/none"].map(status);
    hub.kill().unwrap();
    hub.wait().unwrap();
    assert_eq!(found.map(Result::ok), [Some(200), Some(200), Some(401)]);
    let wrong = Command::new(env!("CARGO_BIN_EXE_hearth-test-hub")).args(["--shards", "half"]).output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--shards takes ORG/NAME=FILESxBYTES"));
}
