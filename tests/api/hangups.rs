//! Case 34: a client that closes its socket frees its row, whatever the row is doing.

use crate::http::{client, post};
use crate::support::{Server, eventually, start, start_with};
use hearth_server::ServerConfig;
use hearth_server::testing::{ScriptedBackend, Step};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a chat request over a bare socket.
async fn connect(server: &Server, stream: bool) -> TcpStream {
    let mut socket = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": stream}).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    socket
}

async fn hang_up(script: Vec<Step>, stream: bool, read_first: bool) {
    let server = start(ScriptedBackend::new(move |_| script.clone())).await;
    let mut socket = connect(&server, stream).await;
    eventually("the row runs", || server.backend.active() == 1).await;
    if read_first {
        let mut some = [0; 64];
        assert!(socket.read(&mut some).await.unwrap() > 0);
    }
    drop(socket);
    eventually("the row is free", || server.backend.active() == 0).await;
    assert_eq!(server.backend.cancelled(), 1);
}

#[tokio::test]
async fn case_34_while_it_waits_in_the_queue() {
    for stream in [false, true] {
        hang_up(vec![Step::Hang, Step::Admit(0)], stream, false).await;
    }
}

#[tokio::test]
async fn case_34_in_prefill() {
    for stream in [false, true] {
        hang_up(vec![Step::Admit(0), Step::Prefill(1), Step::Hang], stream, stream).await;
    }
}

#[tokio::test]
async fn case_34_in_decode() {
    for stream in [false, true] {
        hang_up(vec![Step::Text("some words".into()), Step::Hang], stream, stream).await;
    }
}

#[tokio::test]
async fn case_34_all_rows_of_a_batch() {
    let server = start(ScriptedBackend::new(|_| vec![Step::Text("a".into()), Step::Hang])).await;
    let request = client().post(format!("{}/v1/completions", server.url));
    let request = request.json(&json!({"prompt": ["a", "b", "c"], "stream": true}));
    let response = request.send().await.unwrap();
    eventually("the rows run", || server.backend.active() == 3).await;
    drop(response);
    eventually("the rows are free", || server.backend.active() == 0).await;
    assert_eq!(server.backend.cancelled(), 3);
}

#[tokio::test]
async fn two_hundred_hang_ups_at_odd_moments() {
    let server = start(ScriptedBackend::new(|_| {
        let word = [Step::Wait(Duration::from_millis(1)), Step::Text("word ".into())];
        std::iter::repeat_n(word, 200).flatten().collect()
    }))
    .await;
    for i in 0..200u64 {
        let socket = connect(&server, i % 2 == 0).await;
        tokio::time::sleep(Duration::from_micros(i * 7919 % 4000)).await;
        drop(socket);
    }
    eventually("all rows are free", || server.backend.active() == 0).await;
    let quick = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3});
    assert_eq!(post(&server.url, "/v1/chat/completions", &quick).await.0, 200);
}

#[tokio::test]
async fn shutting_down_ends_running_rows() {
    let config = ServerConfig {
        admin_token: Some("adm".into()),
        shutdown_grace: Duration::from_millis(50),
        ..ServerConfig::default()
    };
    let server = start_with(ScriptedBackend::new(|_| vec![Step::Text("a".into()), Step::Hang]), config).await;
    let _socket = connect(&server, true).await;
    eventually("the row runs", || server.backend.active() == 1).await;
    let stop = client().post(format!("{}/api/hearth/shutdown", server.url)).bearer_auth("adm").send().await.unwrap();
    assert_eq!(stop.status().as_u16(), 200);
    eventually("the row is free", || server.backend.active() == 0).await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    for _ in 0..200 {
        if TcpStream::connect(&address).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the port is still open");
}
