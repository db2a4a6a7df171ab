//! The official OpenAI clients, unmodified, against the real binary with a real model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use std::process::Command;
use support::{Server, openai_node, openai_python, ran, starter, tests_dir};

const KEY: &str = "sk-hearth-test";

/// Runs a client script against a fresh server; each of `checks` has to be reported as passed.
fn passes(mut client: Command, checks: &[&str]) {
    let server = Server::start(&starter(), &["--context", "1024", "--api-key", KEY]);
    let models = support::http().get(format!("{}/v1/models", server.url)).bearer_auth(KEY).send().unwrap();
    let models: serde_json::Value = models.json().unwrap();
    client.env("HEARTH_URL", &server.url).env("HEARTH_KEY", KEY);
    client.env("HEARTH_MODEL", models["data"][0]["id"].as_str().unwrap());
    for name in ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "HTTP_PROXY", "http_proxy"]
    {
        client.env_remove(name);
    }
    let done = ran(client).exits(0);
    for check in checks {
        assert!(done.out.lines().any(|line| line == format!("ok {check}")), "{check} is missing in {done:?}");
    }
}

#[test]
fn python() {
    let mut client = Command::new(openai_python());
    client.arg(tests_dir().join("openai_python.py"));
    passes(
        client,
        &[
            "models",
            "chat",
            "stream",
            "stream_usage",
            "stream_helper",
            "logprobs",
            "stop",
            "seed",
            "choices",
            "extras",
            "completions",
            "cancel",
            "eight_at_once",
            "errors",
        ],
    );
}

#[test]
fn node() {
    let mut client = Command::new("node");
    client.arg(tests_dir().join("openai_node.mjs")).env("HEARTH_SDK", openai_node());
    passes(
        client,
        &[
            "models",
            "chat",
            "stream",
            "streamHelper",
            "logprobs",
            "stop",
            "seed",
            "choices",
            "cancel",
            "eightAtOnce",
            "errors",
        ],
    );
}
