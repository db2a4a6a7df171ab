//! The server that runs from this user's home, if one does.

use crate::client::Client;
use crate::failure::Failure;
use hearth_library::home::{Home, ServerRecord};

/// A running server and a client with its token.
pub struct Running {
    /// What it says of itself.
    pub record: ServerRecord,
    /// Talks to it.
    pub client: Client,
}

/// The server that owns this home; `None` when there is none.
///
/// # Errors
/// Exit code 1 while it is only starting or stopping.
pub fn find(home: &Home, key: Option<String>) -> Result<Option<Running>, Failure> {
    let Some(holder) = home.inspect()? else { return Ok(None) };
    let Some(record) = holder.record.clone() else {
        return Err(Failure::no(format!("{holder}; try again in a moment")));
    };
    let client = Client::new(&url(&record), key.or_else(|| record.token.clone()))?;
    Ok(Some(Running { record, client }))
}

/// The server that owns this home.
///
/// # Errors
/// Exit code 4 when there is none.
pub fn required(home: &Home) -> Result<Running, Failure> {
    find(home, None)?.ok_or_else(|| Failure::unreachable("no server is running; start one with `hearth serve`"))
}

/// Where a client on this computer reaches it.
fn url(record: &ServerRecord) -> String {
    match record.host.parse::<std::net::IpAddr>() {
        Ok(ip) if ip.is_unspecified() => format!("http://127.0.0.1:{}", record.port),
        Ok(std::net::IpAddr::V6(ip)) => format!("http://[{ip}]:{}", record.port),
        _ => format!("http://{}:{}", record.host, record.port),
    }
}
