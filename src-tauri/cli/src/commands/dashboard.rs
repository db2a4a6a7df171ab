//! `hearth dashboard`: the way into the running server's dashboard for a browser, by a link that works once.

use crate::args::DashboardArgs;
use crate::commands::running;
use crate::failure::Failure;
use crate::output;
use hearth_library::home::Home;
use serde_json::json;
use std::process::{Command, Stdio};

/// Makes a link, prints it, and opens it unless told not to.
///
/// # Errors
/// Exit code 4 when no server runs, 1 when it refuses.
pub async fn run(args: &DashboardArgs, home: &Home) -> Result<(), Failure> {
    let server = running::required(home)?;
    let ticket = server.client.dashboard_ticket().await?;
    let url = format!("{}{}", server.client.base(), ticket.path);
    // The link is a key for two minutes: an opened one need not stay in a terminal's history.
    let opened = !args.no_open && !args.json && open(&url);
    if args.json {
        return output::json(&json!({"url": url, "expires_s": ticket.expires_s}));
    }
    if opened {
        return output::line(&format!("opened the dashboard of {}", server.client.base()));
    }
    output::line(&url)?;
    eprintln!("open this link within {} s; it works once", ticket.expires_s);
    Ok(())
}

/// Hands the link to the system's browser; false where there is none, as over SSH.
fn open(url: &str) -> bool {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else if std::env::var_os("DISPLAY").is_some() || std::env::var_os("WAYLAND_DISPLAY").is_some() {
        "xdg-open"
    } else {
        return false;
    };
    let status =
        Command::new(program).arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
