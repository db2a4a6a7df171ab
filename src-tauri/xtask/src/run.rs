//! `cargo xtask run`: from a fresh checkout to an answer from a real model.

use crate::server::{Server, port_is_free, stop_flag};
use crate::workspace::{Profile, Workspace};
use crate::{http, setup, sh, starter, ui};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::ControlFlow;
use std::process::Command;
use std::time::{Duration, Instant};

const QUESTION: &str = "Why is the sky blue? Answer in two sentences.";

/// Sets up, builds, serves the starter model on `port`, asks it one question and keeps serving until ctrl-c.
///
/// # Errors
/// When a step fails, the port is taken, or the server ends by itself with an error.
pub fn run(ws: &Workspace, port: u16) -> Result<()> {
    let started = Instant::now();
    if !port_is_free(port) {
        bail!(
            "port {port} of 127.0.0.1 is taken; stop what listens there (a Hearth: `target/release/hearth stop`), or take \
             another port, with a state folder of its own beside a running Hearth: \
             HEARTH_HOME=/tmp/hearth-2 cargo xtask run --port {}",
            port.saturating_add(1)
        );
    }
    setup::run(ws)?;
    // It is worth having, and not worth failing for.
    if let Err(error) = ui::build(ws) {
        eprintln!("The dashboard is left out: {error:#}\n");
    }
    let hearth = ws.build_hearth(Profile::Release)?;
    let starter = starter::among_models(&starter::ensure(ws, Profile::Release)?)?;
    let stop = stop_flag()?;
    let mut serve = Command::new(&hearth);
    serve.arg("serve").arg(&starter).args(["--port", &port.to_string()]);
    let mut server = Server::start(&mut serve, port)?;
    server.wait_ready("/health", Duration::from_secs(300), &stop)?;
    eprintln!("Ready after {}.\n", sh::duration(started.elapsed()));
    if let Err(error) = ask(server.address)
        && !stop.load(std::sync::atomic::Ordering::Relaxed)
    {
        return Err(error.context("the server is ready, but the first question got no answer"));
    }
    println!("{}", how_to_use(port));
    let status = server.run_until(&stop)?;
    if !status.success() && !stop.load(std::sync::atomic::Ordering::Relaxed) {
        bail!("the server ended by itself ({status})");
    }
    Ok(())
}

/// Asks the question and prints the answer as it comes.
fn ask(server: std::net::SocketAddr) -> Result<()> {
    println!("> {QUESTION}\n");
    let body = json!({
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 120, "temperature": 0, "stream": true, "stream_options": {"include_usage": true},
    });
    let asked = Instant::now();
    let (mut first, mut last, mut usage) = (None, asked, Value::Null);
    http::stream(server, "/v1/chat/completions", &body, |event| {
        if let Some(error) = event.get("error") {
            bail!("{error}");
        }
        if let Some(text) = event["choices"][0]["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
            last = Instant::now();
            first.get_or_insert(last);
            print!("{text}");
            std::io::stdout().flush()?;
        }
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let first = first.context("the answer is empty")?;
    let tokens = usage["completion_tokens"].as_u64().unwrap_or_default();
    let rate = tokens.saturating_sub(1) as f64 / (last - first).as_secs_f64().max(1e-9);
    println!("\n\n{tokens} tokens, {rate:.1} tokens/s, first token after {}\n", sh::duration(first - asked));
    Ok(())
}

fn how_to_use(port: u16) -> String {
    format!(
        "Serving on http://127.0.0.1:{port} until ctrl-c. Point an editor or SDK at it:\n\n    \
         base URL  http://127.0.0.1:{port}/v1\n    \
         API key   any text\n    \
         model     any name (GET /v1/models says the real one)\n\n    \
         export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1 OPENAI_API_KEY=hearth\n"
    )
}
