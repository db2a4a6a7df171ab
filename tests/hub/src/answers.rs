//! The routes: what a repository holds, its files, the second host's, searches; and planning faults from outside.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::content::Repo;
use crate::{Fault, Plan, Seen, State, TOKEN, bodies};

/// Serves one of the two hosts.
pub(crate) async fn serve(listener: std::net::TcpListener, state: Arc<State>, storage: bool) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let app = Router::new().fallback(move |request: Request| answer(state.clone(), storage, request));
    // It ends with the runtime.
    let _ = axum::serve(listener, app).await;
}

/// A request's relevant parts.
struct Asked {
    head: bool,
    path: String,
    query: String,
    range: Option<(u64, Option<u64>)>,
    if_range: Option<String>,
    token: Option<String>,
}

async fn answer(state: Arc<State>, storage: bool, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = percent_decode_str(parts.uri.path()).decode_utf8_lossy().into_owned();
    if parts.method == Method::POST && path == "/__hub/fault" {
        let bytes = axum::body::to_bytes(body, 1 << 16).await.unwrap_or_default();
        return match serde_json::from_slice::<Plan>(&bytes) {
            Ok(plan) => {
                state.lock().faults.push(plan);
                StatusCode::NO_CONTENT.into_response()
            }
            Err(e) => (StatusCode::BAD_REQUEST, e.to_string()).into_response(),
        };
    }
    let text = |name: header::HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let asked = Asked {
        head: parts.method == Method::HEAD,
        query: parts.uri.query().unwrap_or_default().to_owned(),
        range: text(header::RANGE).and_then(|r| range(&r)),
        if_range: text(header::IF_RANGE),
        token: text(header::AUTHORIZATION).map(|t| t.trim_start_matches("Bearer ").to_owned()),
        path,
    };
    let fault = note(&state, storage, parts.method.as_str(), &asked);
    let latency = state.lock().latency;
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    match fault {
        Some(Fault::Status(code)) => {
            return StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).into_response();
        }
        Some(Fault::Busy(after)) => {
            return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, after.to_string())]).into_response();
        }
        Some(Fault::Late(ms)) => tokio::time::sleep(std::time::Duration::from_millis(ms)).await,
        _ => {}
    }
    if storage { stored(&state, &asked, fault) } else { hub(&state, &asked, fault) }
}

/// Writes the request down; the fault that is planned for it.
fn note(state: &State, storage: bool, method: &str, asked: &Asked) -> Option<Fault> {
    let mut inner = state.lock();
    if storage && asked.token.is_some() {
        inner.leaks += 1;
    }
    let path = if asked.query.is_empty() { asked.path.clone() } else { format!("{}?{}", asked.path, asked.query) };
    inner.seen.push(Seen {
        method: method.to_owned(),
        path,
        range: asked.range.map(|(from, to)| (from, to.unwrap_or(u64::MAX))),
        token: asked.token.is_some(),
        storage,
    });
    // A wrong byte is for the request that gets this byte.
    let covers = |at: u64| asked.range.is_none_or(|(from, to)| from <= at && to.is_none_or(|to| at < to));
    let meant = |p: &Plan| !matches!(p.fault, Fault::Corrupt(at) if !covers(at));
    let plan = inner.faults.iter_mut().find(|p| p.times > 0 && asked.path.contains(&p.path) && meant(p))?;
    plan.times -= 1;
    Some(plan.fault)
}

/// `bytes=10-19` as 10..20.
fn range(text: &str) -> Option<(u64, Option<u64>)> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((from.parse().ok()?, to.parse::<u64>().ok().map(|to| to + 1)))
}

fn refused(status: StatusCode, code: &'static str, message: &str) -> Response {
    let mut response = (status, Json(json!({"error": message}))).into_response();
    let headers = response.headers_mut();
    if !code.is_empty() {
        headers.insert("x-error-code", header::HeaderValue::from_static(code));
    }
    if let Ok(value) = message.parse() {
        headers.insert("x-error-message", value);
    }
    response
}

fn hub(state: &Arc<State>, asked: &Asked, fault: Option<Fault>) -> Response {
    if asked.token.as_ref().is_some_and(|t| t != TOKEN) {
        return refused(StatusCode::UNAUTHORIZED, "", "Invalid credentials in Authorization header");
    }
    let parts: Vec<&str> = asked.path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "models"] => search(state, asked),
        ["api", "models", org, name, rest @ ..] => {
            let id = format!("{org}/{name}");
            let (kind, revision) = match rest {
                [] => ("revision", "main".to_owned()),
                [kind, revision @ ..] => (*kind, revision.join("/")),
            };
            with_repo(state, asked, &id, |repo, bare| match (kind, repo.at(&revision)) {
                (_, None) => refused(StatusCode::NOT_FOUND, "RevisionNotFound", "Invalid rev id"),
                ("tree", Some((_, files))) => {
                    let entry = |(path, blob): (&String, &crate::Blob)| {
                        let mut entry =
                            json!({"type": "file", "oid": blob.git, "size": blob.bytes.len(), "path": path});
                        if let Some(sha) = &blob.sha256 {
                            entry["lfs"] = json!({"oid": sha, "size": blob.bytes.len(), "pointerSize": 134});
                        }
                        entry
                    };
                    Json(files.iter().map(entry).collect::<Vec<Value>>()).into_response()
                }
                (_, Some((commit, files))) => {
                    let sibling = |(path, blob): (&String, &crate::Blob)| {
                        let mut sibling = json!({"rfilename": path});
                        if !bare {
                            sibling["size"] = blob.bytes.len().into();
                            sibling["blobId"] = blob.git.clone().into();
                            if let Some(sha) = &blob.sha256 {
                                sibling["lfs"] = json!({"sha256": sha, "size": blob.bytes.len(), "pointerSize": 134});
                            }
                        }
                        sibling
                    };
                    let gated = if repo.gated.is_some() { json!("manual") } else { json!(false) };
                    Json(json!({
                        "_id": "1", "id": id, "modelId": id, "sha": commit, "private": repo.private, "gated": gated,
                        "disabled": false, "downloads": 10, "likes": 1, "tags": ["mlx"],
                        "siblings": files.iter().map(sibling).collect::<Vec<Value>>(),
                    }))
                    .into_response()
                }
            })
        }
        [org, name, "resolve", revision, path @ ..] => {
            let (id, path) = (format!("{org}/{name}"), path.join("/"));
            let mut direct = None;
            let response = with_repo(state, asked, &id, |repo, _| {
                match (repo.gated, &asked.token) {
                    (Some(_), None) => {
                        return refused(StatusCode::UNAUTHORIZED, "GatedRepo", "Access to model is restricted");
                    }
                    (Some(false), Some(_)) => {
                        return refused(StatusCode::FORBIDDEN, "GatedRepo", "You are not in the authorized list");
                    }
                    _ => {}
                }
                let Some((commit, files)) = repo.at(revision) else {
                    return refused(StatusCode::NOT_FOUND, "RevisionNotFound", "Invalid rev id");
                };
                let Some(blob) = files.get(&path) else {
                    return refused(StatusCode::NOT_FOUND, "EntryNotFound", "Entry not found");
                };
                let mut response = StatusCode::FOUND.into_response();
                let headers = response.headers_mut();
                let mut set = |name: &'static str, value: String| {
                    if let Ok(value) = value.parse() {
                        headers.insert(name, value);
                    }
                };
                set("x-repo-commit", commit.clone());
                if let Some(sha) = &blob.sha256 {
                    set("x-linked-etag", format!("\"{sha}\""));
                    set("x-linked-size", blob.bytes.len().to_string());
                    // Another host by its name, as well as by its port.
                    set("location", format!("http://localhost:{}/lfs/{sha}?signature=secret", state.storage.port()));
                } else {
                    direct = Some((blob.clone(), headers.clone()));
                }
                response
            });
            match direct {
                Some((blob, headers)) => file(state, asked, blob.hex(), blob.bytes.clone(), fault, headers),
                None => response,
            }
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn with_repo(state: &Arc<State>, asked: &Asked, id: &str, answer: impl FnOnce(&Repo, bool) -> Response) -> Response {
    let inner = state.lock();
    if let Some(new) = inner.renamed.get(id) {
        let query = if asked.query.is_empty() { String::new() } else { format!("?{}", asked.query) };
        let to = format!("{}{query}", asked.path.replacen(id, new, 1));
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response();
    }
    match inner.repos.get(id) {
        Some(repo) if !repo.private || asked.token.is_some() => answer(repo, inner.bare),
        // Without a token a hub does not say whether it is missing or private.
        _ if asked.token.is_none() => {
            refused(StatusCode::UNAUTHORIZED, "RepoNotFound", "Invalid username or password.")
        }
        _ => refused(StatusCode::NOT_FOUND, "RepoNotFound", "Repository not found"),
    }
}

fn search(state: &State, asked: &Asked) -> Response {
    let wanted = asked.query.split('&').find_map(|p| p.strip_prefix("search=")).unwrap_or_default().to_lowercase();
    let inner = state.lock();
    let found = inner.repos.iter().filter(|(id, repo)| !repo.private && id.to_lowercase().contains(&wanted));
    let line = |(id, repo): (&String, &Repo)| {
        let gated = if repo.gated.is_some() { json!("manual") } else { json!(false) };
        json!({"id": id, "downloads": 10, "likes": 1, "lastModified": "2026-01-01T00:00:00.000Z", "gated": gated})
    };
    Json(found.map(line).collect::<Vec<Value>>()).into_response()
}

fn stored(state: &Arc<State>, asked: &Asked, fault: Option<Fault>) -> Response {
    let Some(sha) = asked.path.strip_prefix("/lfs/") else { return StatusCode::NOT_FOUND.into_response() };
    if !asked.query.contains("signature=secret") {
        return StatusCode::FORBIDDEN.into_response();
    }
    let blob = {
        let inner = state.lock();
        let all = inner.repos.values().flat_map(|r| r.commits.iter()).flat_map(|(_, files)| files.values());
        all.into_iter().find(|b| b.sha256.as_deref() == Some(sha)).cloned()
    };
    match blob {
        Some(blob) => file(state, asked, sha, blob.bytes, fault, HeaderMap::new()),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A file, or the part of it that was asked for.
fn file(
    state: &Arc<State>,
    asked: &Asked,
    name: &str,
    bytes: Bytes,
    fault: Option<Fault>,
    mut headers: HeaderMap,
) -> Response {
    let (tags, rate) = {
        let mut inner = state.lock();
        // Counted and read at once: answers that are made side by side have a tag each.
        inner.tags += u32::from(fault == Some(Fault::NewTag));
        (inner.tags, inner.rate)
    };
    let tag = if tags == 0 { format!("\"{name}\"") } else { format!("\"{name}-{tags}\"") };
    let total = bytes.len() as u64;
    let still_same = asked.if_range.as_ref().is_none_or(|t| *t == tag);
    let wanted = asked.range.filter(|_| fault != Some(Fault::NoRange) && still_same);
    let (start, end) = match wanted {
        Some((from, to)) => (from, to.unwrap_or(total).min(total)),
        None => (0, total),
    };
    if start > end || (wanted.is_some() && start >= total) {
        return (StatusCode::RANGE_NOT_SATISFIABLE, [(header::CONTENT_RANGE, format!("bytes */{total}"))])
            .into_response();
    }
    let mut set = |name: header::HeaderName, value: String| {
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    };
    set(header::ETAG, tag);
    set(header::ACCEPT_RANGES, "bytes".to_owned());
    set(header::CONTENT_LENGTH, (end - start).to_string());
    let mut status = StatusCode::OK;
    if wanted.is_some() {
        status = StatusCode::PARTIAL_CONTENT;
        set(header::CONTENT_RANGE, format!("bytes {start}-{}/{total}", end - 1));
    }
    let body = match asked.head {
        true => Body::empty(),
        false => bodies::body(state, name, bytes.slice(start as usize..end as usize), start, fault, rate),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
