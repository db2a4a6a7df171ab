//! Server-sent events as text: `data: ` lines, comments, and the headers that keep proxies from holding them back.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;
use std::convert::Infallible;

/// Frames that go out together.
#[derive(Debug, Default)]
pub(crate) struct Frames(String);

impl Frames {
    /// One event with JSON data.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        // Our own types always serialize: string keys, no foreign code.
        if let Ok(json) = serde_json::to_string(value) {
            self.text(&json);
        }
    }

    /// One event with this text, which must be a single line.
    pub(crate) fn text(&mut self, line: &str) {
        self.0.push_str("data: ");
        self.0.push_str(line);
        self.0.push_str("\n\n");
    }

    /// A comment, which clients ignore: a sign of life.
    pub(crate) fn ping(&mut self) {
        self.0.push_str(": ping\n\n");
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything so far as one piece of the body.
    pub(crate) fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }
}

/// The response that carries a stream of frames.
pub(crate) fn response(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures::StreamExt;
    let mut response = Response::new(Body::from_stream(frames.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
