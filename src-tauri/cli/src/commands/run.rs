//! `hearth run`: a chat in the terminal. It always talks HTTP: to the server that runs, or to one that this process
//! starts for itself on a free port.

use crate::args::RunArgs;
use crate::client::{ChatError, Client, Piece};
use crate::commands::local::Local;
use crate::commands::{model, running};
use crate::failure::Failure;
use crate::output::{self, say};
use hearth_core::sampling::SamplingParams;
use hearth_core::stats::Health;
use hearth_library::home::Home;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::Instant;

const HELP: &str = "\
/system TEXT  set the system message and start anew; without TEXT, remove it
/clear        forget the conversation
/exit         leave (Ctrl-D too)
Ctrl-C stops an answer.";

/// Chats until the user leaves.
///
/// # Errors
/// Exit code 2 for a temperature out of range, 3 for a model that is not there, 1 when the running server has another one;
/// when no model can be had, or the server is lost.
pub async fn run(args: RunArgs, home: &Home) -> Result<(), Failure> {
    if let Some(temperature) = args.temperature {
        // Now, and not with the first question. The vocabulary's size matters to other parameters only.
        SamplingParams { temperature, ..SamplingParams::default() }.validate(0)?;
    }
    let (client, local, model) = connect(&args, home).await?;
    let chatted = chat(&client, &args, model).await;
    if let Some(local) = local {
        local.stop().await;
    }
    chatted
}

/// The server to talk to, whether it lives in this process, and the model to name in every question: others may have
/// another one answer meanwhile.
async fn connect(args: &RunArgs, home: &Home) -> Result<(Client, Option<Local>, Option<String>), Failure> {
    let client = match &args.url {
        Some(url) => Client::new(url, args.api_key.clone())?,
        None => match running::find(home, args.api_key.clone())? {
            Some(server) => server.client,
            None => {
                let local = Local::start(args.model.as_deref(), home).await?;
                return Ok((Client::new(local.url(), None)?, Some(local), None));
            }
        },
    };
    let health = client.health().await?;
    let Some(name) = &args.model else {
        let model = model_of(&health).map(str::to_owned);
        return Ok((client, None, model));
    };
    let mut there = client.models().await?;
    there.extend(model_of(&health).map(str::to_owned));
    // A folder that the server was given by its path may not be found by its id.
    let wanted = match &args.url {
        _ if there.contains(name) => Some(name.clone()),
        // What a name means is known on that server's computer only: the id, or its last part.
        Some(_) => there.iter().find(|id| id.rsplit('/').next() == Some(name)).cloned(),
        None => model::pick(Some(name), home)?.map(|entry| entry.id).filter(|id| there.contains(id)),
    };
    match wanted {
        Some(model) => Ok((client, None, Some(model))),
        None => Err(other(&health, client.base())),
    }
}

/// The model that a server has, or will have in a moment.
fn model_of(health: &Health) -> Option<&str> {
    match health {
        Health::Ready { model } | Health::Loading { model, .. } => Some(model),
        Health::Empty | Health::Failed { .. } => None,
    }
}

/// The refusal of a server that does not have the model that was asked for.
fn other(health: &Health, url: &str) -> Failure {
    let has = match model_of(health) {
        Some(id) => format!("has {id}; stop it, or leave MODEL out"),
        None => "has no model; stop it".to_owned(),
    };
    Failure::no(format!("the running server, {url}, {has}"))
}

async fn chat(client: &Client, args: &RunArgs, model: Option<String>) -> Result<(), Failure> {
    let editor = rustyline::DefaultEditor::new().map_err(|e| Failure::no(format!("cannot read the terminal: {e}")))?;
    let mut editor = Some(editor);
    let mut system = args.system.clone();
    let mut turns: Vec<Value> = Vec::new();
    // A person sees a refusal and goes on; a script that pipes its turns must learn of it.
    let mut refused = None;
    let piped = !std::io::stdin().is_terminal();
    let shown = match (&model, client.health().await?) {
        (Some(model), _) => model.clone(),
        (None, Health::Ready { model }) => model,
        _ => "the model".to_owned(),
    };
    say!("Chatting with {shown} at {}. /help lists the commands, Ctrl-D ends it.", client.base());
    loop {
        let input = match read(&mut editor).await? {
            Input::Line(line) => line,
            Input::Nothing => continue,
            Input::End => break,
        };
        let line = input.trim();
        match line.split_once(char::is_whitespace).unwrap_or((line, "")) {
            ("", _) => continue,
            ("/exit" | "/quit" | "/bye", _) => break,
            ("/help", _) => eprintln!("{HELP}"),
            ("/clear", _) => turns.clear(),
            ("/system", text) => {
                system = Some(text.trim().to_owned()).filter(|text| !text.is_empty());
                turns.clear();
            }
            (word, _) if word.starts_with('/') => eprintln!("{word} is no command.\n{HELP}"),
            _ => {
                turns.push(json!({"role": "user", "content": line}));
                let body = body(args, model.as_deref(), system.as_deref(), &turns);
                match answer(client, &body).await {
                    Ok(text) => turns.push(json!({"role": "assistant", "content": text})),
                    Err(ChatError::Refused(message)) => {
                        turns.pop();
                        match piped {
                            true => refused = Some(message),
                            false => say!("error: {message}"),
                        }
                    }
                    Err(ChatError::Lost(failure)) => return Err(failure),
                }
                if refused.is_some() {
                    break;
                }
            }
        }
    }
    refused.map_or(Ok(()), |message| Err(Failure::no(message)))
}

fn body(args: &RunArgs, model: Option<&str>, system: Option<&str>, turns: &[Value]) -> Value {
    let system = system.map(|text| json!({"role": "system", "content": text}));
    let messages: Vec<&Value> = system.iter().chain(turns).collect();
    let mut body = json!({"messages": messages, "stream": true, "stream_options": {"include_usage": true}});
    if let Some(model) = model {
        body["model"] = model.into();
    }
    if let Some(t) = args.temperature {
        body["temperature"] = t.into();
    }
    if let Some(n) = args.max_tokens {
        body["max_tokens"] = n.into();
    }
    body
}

/// Streams one answer to the terminal; Ctrl-C ends it early and keeps what was said.
async fn answer(client: &Client, body: &Value) -> Result<String, ChatError> {
    let (mut text, mut first, mut written) = (String::new(), None, Ok(()));
    let mut usage = None;
    let started = Instant::now();
    let mut on = |piece| match piece {
        Piece::Text(more) => {
            first.get_or_insert_with(Instant::now);
            if written.is_ok() {
                written = output::print(&more);
            }
            text.push_str(&more);
        }
        Piece::Usage { prompt, answer } => usage = Some((prompt, answer)),
        Piece::Finished(reason) if reason == "length" => eprintln!(" [cut off: the token limit is reached]"),
        Piece::Finished(_) => {}
    };
    let done = tokio::select! {
        done = client.chat(body, &mut on) => done,
        _ = tokio::signal::ctrl_c() => {
            eprint!(" [stopped]");
            Ok(())
        }
    };
    written.and_then(|()| output::line("")).map_err(ChatError::Lost)?;
    done?;
    if let (Some((prompt, tokens)), Some(first)) = (usage, first)
        && std::io::stderr().is_terminal()
    {
        let wait = first.duration_since(started).as_secs_f64();
        let speed = tokens.saturating_sub(1) as f64 / first.elapsed().as_secs_f64().max(1e-9);
        eprintln!("[{prompt} + {tokens} tokens, first after {}, {speed:.1} tok/s]", output::duration(wait));
    }
    Ok(text)
}

enum Input {
    Line(String),
    Nothing,
    End,
}

/// Reads a line on a thread of its own, so that the server in this process keeps running meanwhile.
async fn read(editor: &mut Option<rustyline::DefaultEditor>) -> Result<Input, Failure> {
    let Some(mut taken) = editor.take() else { return Ok(Input::End) };
    let read = tokio::task::spawn_blocking(move || {
        let line = taken.readline("> ");
        if let Ok(line) = &line {
            let _ = taken.add_history_entry(line);
        }
        (taken, line)
    });
    let (taken, line) = read.await.map_err(|e| Failure::no(format!("cannot read the terminal: {e}")))?;
    *editor = Some(taken);
    match line {
        Ok(line) => Ok(Input::Line(line)),
        Err(ReadlineError::Interrupted) => Ok(Input::Nothing),
        Err(ReadlineError::Eof) => Ok(Input::End),
        Err(e) => Err(Failure::no(format!("cannot read the terminal: {e}"))),
    }
}
