//! Who may use the server: `Host` (DNS rebinding), `Origin` (cross-site requests), CORS for allow-listed pages,
//! API keys in constant time.

use crate::body::drain;
use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::session::is_signed_in;
use crate::state::AppState;
use crate::ui;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Refuses requests whose `Host` or `Origin` shows that a foreign page sent them.
pub(crate) async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Response {
    match check_host(state.config(), &request).and_then(|()| check_origin(state.config(), &request)) {
        Ok(()) => next.run(request).await,
        Err(e) => {
            drain(request.into_body(), state.config().body_limit).await;
            e.into_response()
        }
    }
}

/// Refuses requests without a valid key, where keys are on; the admin routes take the admin token only.
pub(crate) async fn require_key(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let config = state.config();
    let path = request.uri().path();
    let allowed = if path.starts_with("/api/hearth/") {
        match &config.admin_token {
            None => Err(ServerError::Forbidden("the admin routes are off: the server has no admin token".into())),
            Some(token) if has_key(request.headers(), std::slice::from_ref(token)) => Ok(()),
            Some(_) if is_signed_in(&state, request.headers()) => Ok(()),
            Some(_) => Err(ServerError::Unauthorized(
                "this route takes the admin token as `Authorization: Bearer …`, or a browser that `hearth dashboard` let in",
            )),
        }
    } else if config.api_keys.is_empty()
        || path == "/health"
        || ui::is_public(path)
        || has_key(request.headers(), &config.api_keys)
        || is_signed_in(&state, request.headers())
    {
        Ok(())
    } else {
        Err(ServerError::Unauthorized(
            "a valid API key is required, as `Authorization: Bearer …` or `x-api-key`; the one sent is absent or wrong",
        ))
    };
    match allowed {
        Ok(()) => next.run(request).await,
        Err(e) => {
            drain(request.into_body(), config.body_limit).await;
            e.into_response()
        }
    }
}

/// CORS for the origins that [`guard`] lets pass. Every header may be sent: SDKs send families of them
/// (`authorization`, `x-api-key`, `x-stainless-*`, `openai-*`, `anthropic-*`), and only allowed origins get this far.
pub(crate) fn cors(config: &ServerConfig) -> CorsLayer {
    let config = config.clone();
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, parts: &Parts| {
            origin_allowed(&config, origin, host_of(&parts.headers, parts.uri.authority().map(|a| a.as_str())))
        }))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER, HeaderName::from_static("x-request-id")])
        .max_age(Duration::from_secs(600))
}

fn check_host(config: &ServerConfig, request: &Request) -> Result<(), ServerError> {
    let mut names = request.headers().get_all(header::HOST).iter().map(HeaderValue::to_str).collect::<Vec<_>>();
    names.extend(request.uri().authority().map(|a| Ok(a.as_str())));
    if names.is_empty() {
        return Err(ServerError::bad("the request has no Host header"));
    }
    for name in names {
        let name = name.map_err(|_| ServerError::bad("the Host header is not plain text"))?;
        if !host_allowed(config, name) {
            return Err(ServerError::Forbidden(format!(
                "the host name `{name}` may not be used for this server; use 127.0.0.1 or localhost, or add the name to the allowed hosts"
            )));
        }
    }
    Ok(())
}

/// Reading by GET, HEAD is left to CORS: without its headers a foreign page sees nothing of the answer.
fn check_origin(config: &ServerConfig, request: &Request) -> Result<(), ServerError> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let host = host_of(request.headers(), request.uri().authority().map(|a| a.as_str()));
    for origin in request.headers().get_all(header::ORIGIN) {
        if !origin_allowed(config, origin, host) {
            return Err(ServerError::Forbidden(format!(
                "pages of the origin `{}` may not use this server; add it to the allowed origins if they should",
                String::from_utf8_lossy(origin.as_bytes())
            )));
        }
    }
    Ok(())
}

fn host_of<'a>(headers: &'a HeaderMap, authority: Option<&'a str>) -> Option<&'a str> {
    authority.or_else(|| headers.get(header::HOST).and_then(|h| h.to_str().ok()))
}

/// `name[:port]` or `[v6][:port]` cut in two; `None` when it is neither.
fn split_host(host: &str) -> Option<(&str, Option<u16>)> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((name, None)),
        None => None,
        Some(port) => port.parse().ok().map(|port| (name, Some(port))),
    }
}

fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || name.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
}

fn host_allowed(config: &ServerConfig, host: &str) -> bool {
    let Some((name, _)) = split_host(host) else { return false };
    let name = name.strip_suffix('.').unwrap_or(name);
    // Rebinding needs a name: an address in the Host header is the one the client really connected to.
    is_loopback_name(name)
        || (!config.is_loopback() && name.parse::<IpAddr>().is_ok())
        || config.allowed_hosts.iter().any(|a| a.eq_ignore_ascii_case(host) || a.eq_ignore_ascii_case(name))
}

fn origin_allowed(config: &ServerConfig, origin: &HeaderValue, host: Option<&str>) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    let listed = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => origin.get(..start.len()).is_some_and(|o| o.eq_ignore_ascii_case(start)),
        None => pattern.trim_end_matches('/').eq_ignore_ascii_case(origin),
    };
    if config.allowed_origins.iter().any(listed) {
        return true;
    }
    // The server's own pages: the same host and port, loopback's several names being one.
    let (Some(own), Some(theirs)) = (host, origin.strip_prefix("http://")) else { return false };
    match (split_host(own), split_host(theirs)) {
        (Some((own_name, own_port)), Some((name, port))) => {
            own_port.unwrap_or(80) == port.unwrap_or(80)
                && (own_name.eq_ignore_ascii_case(name) || (is_loopback_name(own_name) && is_loopback_name(name)))
        }
        _ => false,
    }
}

/// Whether one of the keys is in the headers. Every key is compared in full, whatever matched before.
fn has_key(headers: &HeaderMap, keys: &[String]) -> bool {
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|v| {
        let (scheme, key) = v.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
    });
    let plain = ["x-api-key", "api-key"].map(|name| headers.get(name).map(HeaderValue::as_bytes));
    let mut found = subtle::Choice::from(0);
    for given in [bearer, plain[0], plain[1]].into_iter().flatten() {
        for key in keys {
            found |= given.ct_eq(key.as_bytes());
        }
    }
    found.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let local = ServerConfig { allowed_hosts: vec!["host.docker.internal".into()], ..ServerConfig::default() };
        for good in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "localhost",
            "LocalHost:1",
            "localhost.:8080",
            "[::1]",
            "[::1]:8080",
            "127.9.9.9",
            "host.docker.internal",
            "host.docker.internal:8080",
        ] {
            assert!(host_allowed(&local, good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "192.168.1.5",
            "",
            "[::1",
            "localhost:8080:1",
            "localhost:x",
            "user@localhost",
            "0.0.0.0",
            "[::2]:80",
        ] {
            assert!(!host_allowed(&local, bad), "{bad}");
        }
        let open = ServerConfig { host: "0.0.0.0".into(), ..ServerConfig::default() };
        assert!(host_allowed(&open, "192.168.1.5:8080"));
        assert!(!host_allowed(&open, "evil.example:8080"));
    }

    #[test]
    fn origins() {
        let config = ServerConfig {
            allowed_origins: vec!["https://app.example".into(), "vscode-webview://*".into()],
            ..ServerConfig::default()
        };
        let allowed =
            |origin: &'static str, host| origin_allowed(&config, &HeaderValue::from_static(origin), Some(host));
        assert!(allowed("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(allowed("http://localhost:8080", "127.0.0.1:8080"));
        assert!(allowed("https://app.example", "127.0.0.1:8080"));
        assert!(allowed("vscode-webview://abc", "127.0.0.1:8080"));
        for bad in [
            "null",
            "http://127.0.0.1:3000",
            "http://evil.example",
            "https://127.0.0.1:8080",
            "http://app.example",
            "https://app.example.evil",
            "",
            "http://evil.example:8080",
        ] {
            assert!(!allowed(bad, "127.0.0.1:8080"), "{bad}");
        }
    }

    #[test]
    fn keys() {
        let keys = vec!["sk-one".to_owned(), "sk-two".to_owned()];
        let with = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
        };
        assert!(has_key(&with("authorization", "Bearer sk-two"), &keys));
        assert!(has_key(&with("authorization", "bearer  sk-one"), &keys));
        assert!(has_key(&with("x-api-key", "sk-one"), &keys));
        for (name, value) in
            [("authorization", "Bearer sk-on"), ("authorization", "sk-one"), ("x-api-key", ""), ("cookie", "sk-one")]
        {
            assert!(!has_key(&with(name, value), &keys), "{name}: {value}");
        }
        assert!(!has_key(&HeaderMap::new(), &keys));
    }
}
