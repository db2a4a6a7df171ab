//! Reading request bodies: content type, size limit, a limit on silence.

use crate::error::ServerError;
use crate::json;
use crate::state::AppState;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use std::time::Duration;

/// A body beyond the limit is still read up to this many times the limit, so that the client gets its 413
/// rather than a connection that broke while it was writing.
const DRAIN_TIMES: usize = 4;

/// A request's body: one JSON object.
pub(crate) struct JsonObject(pub Map<String, Value>);

impl FromRequest<AppState> for JsonObject {
    type Rejection = ServerError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ServerError> {
        let (parts, body) = request.into_parts();
        let limit = state.config().body_limit;
        let bytes = read(body, limit, state.config().read_timeout).await?;
        // After reading: a refusal while the client still writes would reach it as a broken connection.
        check_headers(&parts.headers)?;
        json::parse_object(&bytes).map(JsonObject)
    }
}

fn check_headers(headers: &HeaderMap) -> Result<(), ServerError> {
    if let Some(coding) = headers.get(header::CONTENT_ENCODING).filter(|c| c.as_bytes() != b"identity") {
        return Err(ServerError::bad(format!(
            "the body's content-encoding must be absent or identity; it is {}",
            String::from_utf8_lossy(coding.as_bytes())
        )));
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let given = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    let mut parts = given.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let charset = parts.find_map(|p| p.strip_prefix("charset=")).map(|c| c.trim_matches('"'));
    let json = matches!(essence, "application/json" | "text/json" | "")
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if json && charset.is_none_or(|c| c == "utf-8" || c == "utf8") {
        return Ok(());
    }
    Err(ServerError::BadRequest {
        message: format!("the body must be sent as `content-type: application/json` in UTF-8; it is `{given}`"),
        param: None,
        code: Some("invalid_content_type"),
    })
}

/// Reads a body to its end.
///
/// # Errors
/// 413 over the limit, 408 after `silence` without a byte, 400 when the connection broke.
async fn read(mut body: Body, limit: usize, silence: Duration) -> Result<Bytes, ServerError> {
    let (mut bytes, mut seen) = (BytesMut::new(), 0usize);
    loop {
        let frame = match tokio::time::timeout(silence, body.frame()).await {
            Err(_) => return Err(ServerError::BodyTimeout { seconds: silence.as_secs() }),
            Ok(None) => break,
            Ok(Some(Err(e))) => return Err(ServerError::bad(format!("the body could not be read: {e}"))),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        seen = seen.saturating_add(data.len());
        if seen <= limit {
            bytes.extend_from_slice(&data);
        } else if seen > limit.saturating_mul(DRAIN_TIMES) {
            break;
        } else {
            bytes = BytesMut::new();
        }
    }
    if seen > limit { Err(ServerError::BodyTooLarge { limit }) } else { Ok(bytes.freeze()) }
}

/// Reads and forgets what a refused client is still sending, for the same reason as [`DRAIN_TIMES`]; within the
/// size limit and a short time.
pub(crate) async fn drain(mut body: Body, limit: usize) {
    let all = async {
        let mut seen = 0usize;
        while let Some(Ok(frame)) = body.frame().await {
            seen = seen.saturating_add(frame.data_ref().map_or(0, Bytes::len));
            if seen > limit {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), all).await;
}
