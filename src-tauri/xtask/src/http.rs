//! Just enough HTTP/1.1 to talk to a server on this machine.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::time::Duration;

/// Far longer than any answer here takes; only ends what hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// An answer whose body is read as it comes.
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Seconds of `Retry-After`.
    pub retry_after: Option<u64>,
    body: BufReader<Body>,
}

/// Sends a request; returns when the head of the answer is there.
///
/// # Errors
/// When the server cannot be reached or does not speak HTTP.
pub fn send(server: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
    send_with(server, method, path, body, None)
}

/// The same with a key.
///
/// # Errors
/// As [`send`].
pub fn send_with(
    server: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
    key: Option<&str>,
) -> Result<Answer> {
    let mut socket = TcpStream::connect_timeout(&server, Duration::from_secs(5))
        .with_context(|| format!("no server answers at {server}"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_nodelay(true)?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {server}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{key}\
         Connection: close\r\n\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes())?;
    Answer::read_head(BufReader::new(socket))
}

/// `GET path`: status and whole body.
///
/// # Errors
/// As [`send`].
pub fn get(server: SocketAddr, path: &str) -> Result<(u16, String)> {
    let answer = send(server, "GET", path, None)?;
    Ok((answer.status, answer.text()?))
}

/// `POST path` with a JSON body: the JSON of the answer.
///
/// # Errors
/// As [`send`], and when the status is not 200 (the message holds the body).
pub fn post(server: SocketAddr, path: &str, body: &Value) -> Result<Value> {
    let answer = send(server, "POST", path, Some(body))?;
    let status = answer.status;
    let text = answer.text()?;
    if status != 200 {
        bail!("{path} answered {status}: {text}");
    }
    serde_json::from_str(&text).with_context(|| format!("{path} answered no JSON: {text}"))
}

/// `POST path` of a request with `"stream": true`: calls `event` with each event's JSON until it breaks or the stream
/// ends.
///
/// # Errors
/// As [`post`], and those of `event`.
pub fn stream(
    server: SocketAddr,
    path: &str,
    body: &Value,
    event: impl FnMut(Value) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let answer = send(server, "POST", path, Some(body))?;
    if answer.status != 200 {
        let status = answer.status;
        bail!("{path} answered {status}: {}", answer.text()?);
    }
    answer.events(event)
}

impl Answer {
    fn read_head(mut socket: BufReader<TcpStream>) -> Result<Self> {
        let mut line = String::new();
        socket.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("the server answered {line:?}, which is not HTTP"))?;
        let (mut length, mut retry_after) = (Length::UntilClosed, None);
        loop {
            line.clear();
            if socket.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(n) = lower.strip_prefix("content-length:") {
                length = Length::Left(n.trim().parse().context("a content-length that is no number")?);
            } else if let Some(n) = lower.strip_prefix("retry-after:") {
                retry_after = n.trim().parse().ok();
            } else if lower.starts_with("transfer-encoding:") && lower.contains("chunked") {
                length = Length::Chunked { left: 0, ended: false };
            }
        }
        Ok(Self { status, retry_after, body: BufReader::new(Body { socket, length }) })
    }

    /// Calls `event` with the JSON of each server-sent event until it breaks or the stream ends.
    ///
    /// # Errors
    /// When the connection breaks or an event is no JSON, and those of `event`.
    pub fn events(mut self, mut event: impl FnMut(Value) -> Result<ControlFlow<()>>) -> Result<()> {
        let mut line = String::new();
        while self.body.read_line(&mut line)? > 0 {
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                let data = data.trim_start();
                if data == "[DONE]" {
                    break;
                }
                let json = serde_json::from_str(data).with_context(|| format!("an event is no JSON: {data}"))?;
                if event(json)?.is_break() {
                    break;
                }
            }
            line.clear();
        }
        Ok(())
    }

    /// The whole body.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn text(mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

enum Length {
    Left(u64),
    Chunked { left: u64, ended: bool },
    UntilClosed,
}

/// A body without its transfer encoding.
struct Body {
    socket: BufReader<TcpStream>,
    length: Length,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.length {
            Length::UntilClosed => self.socket.read(buffer),
            Length::Left(left) => read_some(&mut self.socket, left, buffer),
            Length::Chunked { left, ended } => {
                if *left == 0 && !*ended {
                    *left = chunk_size(&mut self.socket)?;
                    *ended = *left == 0;
                }
                let n = read_some(&mut self.socket, left, buffer)?;
                if n > 0 && *left == 0 {
                    self.socket.read_line(&mut String::new())?;
                }
                Ok(n)
            }
        }
    }
}

fn read_some(socket: &mut impl Read, left: &mut u64, buffer: &mut [u8]) -> std::io::Result<usize> {
    let n = socket.take(*left).read(buffer)?;
    *left -= n as u64;
    Ok(n)
}

fn chunk_size(socket: &mut impl BufRead) -> std::io::Result<u64> {
    let mut line = String::new();
    socket.read_line(&mut line)?;
    let digits = line.trim_end().split(';').next().unwrap_or_default();
    u64::from_str_radix(digits, 16).map_err(|_| std::io::Error::other(format!("a chunk of length {line:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serves one connection with `answer`.
    fn serve(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = BufReader::new(socket.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while request.read_line(&mut line).unwrap() > 2 {
                if let Some(n) = line.strip_prefix("Content-Length: ") {
                    length = n.trim().parse().unwrap();
                }
                line.clear();
            }
            request.read_exact(&mut vec![0; length]).unwrap();
            socket.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn reads_all_three_kinds_of_bodies() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\nhello",
        ] {
            assert_eq!(get(serve(answer), "/").unwrap(), (200, "hello".to_owned()), "{answer}");
        }
    }

    #[test]
    fn streams_events_until_done() {
        let server =
            serve("HTTP/1.1 200 OK\r\n\r\ndata: {\"n\":1}\n\n: note\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\ndata: x\n");
        let mut seen = Vec::new();
        let body = serde_json::json!({"stream": true});
        let event = |json: Value| {
            seen.push(json["n"].as_u64());
            Ok(ControlFlow::Continue(()))
        };
        stream(server, "/v1/chat/completions", &body, event).unwrap();
        assert_eq!(seen, [Some(1), Some(2)]);
    }

    #[test]
    fn an_error_shows_status_and_body() {
        let server = serve("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope");
        let error = post(server, "/x", &Value::Null).unwrap_err().to_string();
        assert!(error.contains("404") && error.contains("nope"), "{error}");
    }
}
