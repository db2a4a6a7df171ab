//! The dashboard's files: built into the program in a release build, read from `ui/dist` in a debug build.

use crate::error::ServerError;
use crate::session;
use crate::state::AppState;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "../../ui/dist"]
struct Dist;

/// Only the server's own files, and no frame around them. Chart and layout code sets styles on elements.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const NOT_BUILT: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Hearth</title>\
<body style=\"font:13px system-ui;margin:40px;max-width:60ch\"><h1 style=\"font-size:17px\">The dashboard is not built</h1>\
<p>This program was built without it. In the checkout, run <code>cargo xtask ui</code>, then build again.</p>\
<p>The API is there all the same: <code>/v1/models</code>, <code>/v1/chat/completions</code>, <code>/health</code>.</p>";

/// `GET /` and `GET /popover`: the page, or the way in with a ticket.
pub(crate) async fn page(
    State(state): State<AppState>,
    uri: Uri,
    RawQuery(query): RawQuery,
) -> Result<Response, ServerError> {
    if let Some(redirect) = session::enter(&state, uri.path(), query.as_deref())? {
        return Ok(redirect);
    }
    Ok(match Dist::get("index.html") {
        Some(file) => answer("text/html; charset=utf-8", "no-cache", file.data.into_owned()),
        None => answer("text/html; charset=utf-8", "no-store", NOT_BUILT.as_bytes().to_vec()),
    })
}

/// `GET /assets/…`: scripts, styles and icons, whose names change with what is in them.
pub(crate) async fn asset(Path(name): Path<String>, uri: Uri) -> Result<Response, ServerError> {
    let not_found = || ServerError::RouteNotFound { method: "GET".into(), path: uri.path().to_owned() };
    let kind = match name.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("woff2") => "font/woff2",
        _ => return Err(not_found()),
    };
    let file = Dist::get(&format!("assets/{name}")).ok_or_else(not_found)?;
    Ok(answer(kind, "public, max-age=31536000, immutable", file.data.into_owned()))
}

/// `GET /favicon.ico`: browsers ask for it whatever the page says.
pub(crate) async fn favicon() -> Response {
    match Dist::get("favicon.svg") {
        Some(file) => answer("image/svg+xml", "max-age=86400", file.data.into_owned()),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

/// Whether a path is one of these, which anybody may read.
pub(crate) fn is_public(path: &str) -> bool {
    matches!(path, "/" | "/popover" | "/favicon.ico" | "/favicon.svg") || path.starts_with("/assets/")
}

fn answer(kind: &'static str, cache: &'static str, body: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static(cache)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, body).into_response()
}
