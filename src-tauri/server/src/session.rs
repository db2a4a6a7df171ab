//! How a browser becomes an admin without holding the admin key: a one-time link, which is exchanged for a cookie.
//!
//! `hearth dashboard` (or the app) asks for a ticket with the admin key and opens `/?ticket=…`; the server takes the
//! ticket once, sets the cookie and redirects, so that the ticket is in no history. Nothing of it outlives the process.

use crate::error::ServerError;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// A ticket is for a link that is opened at once.
const TICKET_LIFE: Duration = Duration::from_secs(120);
/// A browser that was away this long asks for a new link.
const SESSION_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most tickets and most sessions at once; the oldest goes.
const MOST: usize = 32;

/// A secret, and until when it is good.
struct Secret {
    text: String,
    until: Instant,
}

/// Tickets that were not used yet, and sessions; cheap to clone.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Secrets>);

#[derive(Default)]
struct Secrets {
    tickets: Mutex<Vec<Secret>>,
    sessions: Mutex<Vec<Secret>>,
}

impl Sessions {
    /// A new ticket.
    ///
    /// # Errors
    /// When the system has no random bytes.
    fn ticket(&self) -> Result<String, ServerError> {
        add(&self.0.tickets, TICKET_LIFE)
    }

    /// The session that a ticket is good for; the ticket is used up.
    fn redeem(&self, ticket: &str) -> Result<Option<String>, ServerError> {
        if !take(&self.0.tickets, ticket) {
            return Ok(None);
        }
        add(&self.0.sessions, SESSION_LIFE).map(Some)
    }

    /// Whether the cookies hold a session, which then lives on.
    fn holds(&self, cookies: &HeaderMap, name: &str) -> bool {
        let mut sessions = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mut found = false;
        for given in values(cookies, name) {
            for session in sessions.iter_mut().filter(|s| s.until > now) {
                if bool::from(session.text.as_bytes().ct_eq(given.as_bytes())) {
                    session.until = now + SESSION_LIFE;
                    found = true;
                }
            }
        }
        found
    }

    fn end(&self, cookies: &HeaderMap, name: &str) {
        for given in values(cookies, name) {
            take(&self.0.sessions, given);
        }
    }
}

fn add(secrets: &Mutex<Vec<Secret>>, life: Duration) -> Result<String, ServerError> {
    let text = random_hex()?;
    let now = Instant::now();
    let mut secrets = secrets.lock().unwrap_or_else(PoisonError::into_inner);
    secrets.retain(|s| s.until > now);
    if secrets.len() == MOST {
        secrets.remove(0);
    }
    secrets.push(Secret { text: text.clone(), until: now + life });
    Ok(text)
}

fn take(secrets: &Mutex<Vec<Secret>>, given: &str) -> bool {
    let now = Instant::now();
    let mut secrets = secrets.lock().unwrap_or_else(PoisonError::into_inner);
    let at = secrets.iter().position(|s| s.until > now && bool::from(s.text.as_bytes().ct_eq(given.as_bytes())));
    at.map(|at| secrets.remove(at)).is_some()
}

/// 128 random bits as hex digits.
pub(crate) fn random_hex() -> Result<String, ServerError> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| ServerError::Internal(format!("/dev/urandom cannot be read: {e}")))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// The values of a cookie.
fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|v| v.to_str().ok());
    let pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(n, _)| *n == name).map(|(_, value)| value)
}

/// Cookies know no ports: two servers of one machine must not take each other's.
fn cookie_name(state: &AppState) -> String {
    format!("hearth_session_{}", state.address().map_or(state.config().port, |a| a.port()))
}

/// Whether a request comes from a page of this server that was let in. A page of another origin on the same host sends
/// the cookie too, and is told by the browser's own header.
pub(crate) fn is_signed_in(state: &AppState, headers: &HeaderMap) -> bool {
    let own_page = match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => true,
        Some(_) => false,
    };
    own_page && state.sessions().holds(headers, &cookie_name(state))
}

/// `POST /api/hearth/session/ticket`: a one-time link to the dashboard.
pub(crate) async fn ticket(State(state): State<AppState>) -> Result<Json<Value>, ServerError> {
    let ticket = state.sessions().ticket()?;
    Ok(Json(json!({"path": format!("/?ticket={ticket}"), "expires_s": TICKET_LIFE.as_secs()})))
}

/// `DELETE /api/hearth/session`: this browser is no admin any more.
pub(crate) async fn end(State(state): State<AppState>, headers: HeaderMap) -> StatusCode {
    state.sessions().end(&headers, &cookie_name(&state));
    StatusCode::NO_CONTENT
}

/// The answer to `/?ticket=…`: the cookie and the way to the page without the ticket. `None`: there is no ticket.
///
/// # Errors
/// When the system has no random bytes.
pub(crate) fn enter(state: &AppState, path: &str, query: Option<&str>) -> Result<Option<Response>, ServerError> {
    let Some(ticket) = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("ticket=")) else {
        return Ok(None);
    };
    // A used or old ticket is no error: the page itself says how to get in, or is in already.
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, path.to_owned())]).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(session) = state.sessions().redeem(ticket)? {
        let cookie = format!("{}={session}; Path=/; HttpOnly; SameSite=Strict", cookie_name(state));
        let cookie = HeaderValue::from_str(&cookie).map_err(|e| ServerError::Internal(e.to_string()))?;
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(Some(response))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(text).unwrap())])
    }

    #[test]
    fn a_ticket_is_good_once() {
        let sessions = Sessions::default();
        let ticket = sessions.ticket().unwrap();
        assert_eq!(sessions.redeem("0123").unwrap(), None);
        let session = sessions.redeem(&ticket).unwrap().unwrap();
        assert_eq!(sessions.redeem(&ticket).unwrap(), None);
        assert!(sessions.holds(&cookie(&format!("a=b; s={session}; c")), "s"));
        for wrong in [format!("t={session}"), "s=".to_owned(), format!("s={ticket}"), format!("s={session}0")] {
            assert!(!sessions.holds(&cookie(&wrong), "s"), "{wrong}");
        }
        sessions.end(&cookie(&format!("s={session}")), "s");
        assert!(!sessions.holds(&cookie(&format!("s={session}")), "s"));
    }

    #[test]
    fn the_oldest_goes_first() {
        let sessions = Sessions::default();
        let tickets: Vec<String> = (0..=MOST).map(|_| sessions.ticket().unwrap()).collect();
        assert_eq!(sessions.redeem(&tickets[0]).unwrap(), None);
        assert!(sessions.redeem(&tickets[1]).unwrap().is_some());
    }
}
