//! The windows: the dashboard and the popover. Both show pages of the server in this process and nothing else; links that
//! lead elsewhere open in the user's browser.

use crate::shell::{Shell, actions};
use std::process::{Command, Stdio};
use tauri::webview::NewWindowResponse;
use tauri::{AppHandle, Manager, Rect, Url, WebviewUrl, WebviewWindow, WebviewWindowBuilder, WindowEvent, Wry};

/// The dashboard's window.
pub const DASHBOARD: &str = "dashboard";
/// The popover's.
pub const POPOVER: &str = "popover";

/// The popover's size in points; its page is made for it.
const POPOVER_SIZE: (f64, f64) = (360.0, 320.0);

/// Shows the dashboard at `page` (`/`, or `#/models`), as soon as the server serves.
pub fn open_dashboard(app: &AppHandle<Wry>, page: &str) {
    if let Some(window) = app.get_webview_window(DASHBOARD) {
        // It has been let in already; only another page may be wanted.
        if page.starts_with('#')
            && let Ok(mut url) = window.url()
            && url.scheme() == "http"
        {
            url.set_fragment(Some(&page[1..]));
            let _ = window.navigate(url);
        }
        return bring_forward(&window);
    }
    let (app, page) = (app.clone(), page.to_owned());
    tauri::async_runtime::spawn(async move {
        let link = app.state::<Shell>().service.link(&page).await.ok().and_then(|link| link.parse().ok());
        let shown = app.clone();
        let _ = app.run_on_main_thread(move || match app_window(&shown, link) {
            Ok(window) => bring_forward(&window),
            Err(error) => actions::tell(&shown, "The dashboard cannot be shown", &error.to_string()),
        });
    });
}

/// Leads a dashboard that was opened too early to the server.
pub fn serve_dashboard(app: &AppHandle<Wry>) {
    let Some(window) = app.get_webview_window(DASHBOARD) else { return };
    if window.url().is_ok_and(|url| url.scheme() == "http" && url.host_str() != Some("tauri.localhost")) {
        return;
    }
    let app = app.clone();
    tauri::async_runtime::spawn(async move {
        if let Ok(link) = app.state::<Shell>().service.link("/").await
            && let Ok(url) = link.parse()
        {
            let _ = window.navigate(url);
        }
    });
}

fn app_window(app: &AppHandle<Wry>, link: Option<Url>) -> tauri::Result<WebviewWindow<Wry>> {
    if let Some(window) = app.get_webview_window(DASHBOARD) {
        return Ok(window);
    }
    // Without a server yet: a page of the app's own, which gives way to the dashboard.
    let waiting = if app.state::<Shell>().service.has_failed() { "index.html#failed" } else { "index.html" };
    let url = link.map_or_else(|| WebviewUrl::App(waiting.into()), WebviewUrl::External);
    let window =
        guarded(app, DASHBOARD, url).title("Hearth").inner_size(1120.0, 760.0).min_inner_size(360.0, 420.0).build()?;
    if app.state::<Shell>().service.address().is_some() {
        serve_dashboard(app);
    }
    Ok(window)
}

/// A window that leaves its server for nothing.
fn guarded<'a>(app: &'a AppHandle<Wry>, label: &str, url: WebviewUrl) -> WebviewWindowBuilder<'a, Wry, AppHandle<Wry>> {
    let (inside, outside) = (app.clone(), app.clone());
    WebviewWindowBuilder::new(app, label, url)
        .on_navigation(move |url| {
            let own = is_own(url, inside.state::<Shell>().service.address().as_deref());
            if !own {
                open_elsewhere(url);
            }
            own
        })
        .on_new_window(move |url, _| {
            if is_own(&url, outside.state::<Shell>().service.address().as_deref()) {
                let page = url.fragment().map_or_else(|| "/".to_owned(), |fragment| format!("#{fragment}"));
                close_popover(&outside);
                open_dashboard(&outside, &page);
            } else {
                open_elsewhere(&url);
            }
            NewWindowResponse::Deny
        })
}

/// Whether a page is the app's own or its server's.
fn is_own(url: &Url, address: Option<&str>) -> bool {
    let own_pages =
        url.scheme() == "tauri" || url.host_str() == Some("tauri.localhost") || url.as_str() == "about:blank";
    let origin = address.and_then(|address| address.parse::<Url>().ok()).map(|address| address.origin());
    own_pages || origin.is_some_and(|origin| origin == url.origin())
}

/// Hands a link to the user's browser or mail program; only such links.
fn open_elsewhere(url: &Url) {
    if !matches!(url.scheme(), "http" | "https" | "mailto") {
        return;
    }
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut open = Command::new(program);
    open.arg(url.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match open.spawn() {
        // It hands the link over and ends.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => tracing::warn!(%error, program, "a link cannot be opened"),
    }
}

fn bring_forward(window: &WebviewWindow<Wry>) {
    let _ = window.unminimize();
    let _ = window.show();
    let _ = window.set_focus();
}

/// Shows the popover below the icon, or closes it.
pub fn toggle_popover(app: &AppHandle<Wry>, icon: Rect) {
    if app.get_webview_window(POPOVER).is_some() {
        return close_popover(app);
    }
    let app = app.clone();
    tauri::async_runtime::spawn(async move {
        let link = app.state::<Shell>().service.link("/popover").await.ok().and_then(|link| link.parse().ok());
        let shown = app.clone();
        let _ = app.run_on_main_thread(move || {
            if let Err(error) = popover(&shown, link, icon) {
                tracing::warn!(%error, "the popover cannot be shown");
            }
        });
    });
}

fn popover(app: &AppHandle<Wry>, link: Option<Url>, icon: Rect) -> tauri::Result<()> {
    let url = link.map_or_else(|| WebviewUrl::App("index.html".into()), WebviewUrl::External);
    let window = guarded(app, POPOVER, url)
        .title("Hearth")
        .inner_size(POPOVER_SIZE.0, POPOVER_SIZE.1)
        .decorations(false)
        .resizable(false)
        .skip_taskbar(true)
        .always_on_top(true)
        .visible(false)
        .build()?;
    let scale = window.scale_factor()?;
    let (at, size) = (icon.position.to_logical::<f64>(scale), icon.size.to_logical::<f64>(scale));
    let edge = window.current_monitor()?.map(|screen| {
        let (from, size) = (screen.position().to_logical::<f64>(scale), screen.size().to_logical::<f64>(scale));
        (from.x, from.x + size.width)
    });
    let (x, y) = below((at.x, at.y), (size.width, size.height), edge);
    window.set_position(tauri::LogicalPosition::new(x, y))?;
    let closing = app.clone();
    window.on_window_event(move |event| {
        if matches!(event, WindowEvent::Focused(false)) {
            close_popover(&closing);
        }
    });
    bring_forward(&window);
    Ok(())
}

/// Where the popover's corner is for an icon at this place: centred below it, and on the screen.
fn below(icon: (f64, f64), size: (f64, f64), edges: Option<(f64, f64)>) -> (f64, f64) {
    const GAP: f64 = 6.0;
    let x = icon.0 + size.0 / 2.0 - POPOVER_SIZE.0 / 2.0;
    let x = match edges {
        Some((left, right)) => x.min(right - POPOVER_SIZE.0 - GAP).max(left + GAP),
        None => x,
    };
    (x, icon.1 + size.1 + GAP)
}

/// Closes the popover if it is open.
pub fn close_popover(app: &AppHandle<Wry>) {
    if let Some(window) = app.get_webview_window(POPOVER) {
        let _ = window.destroy();
    }
}

/// Closes everything, for the end.
pub fn close_all(app: &AppHandle<Wry>) {
    for window in app.webview_windows().into_values() {
        let _ = window.destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_pages_stay_in_the_window() {
        let address = Some("http://127.0.0.1:8080");
        let own = |url: &str| is_own(&url.parse().unwrap(), address);
        assert!(own("http://127.0.0.1:8080/?ticket=1#/models") && own("tauri://localhost/index.html"));
        for other in
            ["http://127.0.0.1:8081/", "https://127.0.0.1:8080/", "http://localhost:8080/", "file:///etc/passwd"]
        {
            assert!(!own(other), "{other}");
        }
        assert!(!is_own(&"http://127.0.0.1:8080/".parse().unwrap(), None));
    }

    #[test]
    fn the_popover_hangs_below_its_icon_and_stays_on_the_screen() {
        assert_eq!(below((800.0, 0.0), (30.0, 24.0), Some((0.0, 1440.0))), (635.0, 30.0));
        assert_eq!(below((1420.0, 0.0), (30.0, 24.0), Some((0.0, 1440.0))), (1074.0, 30.0));
        assert_eq!(below((0.0, 0.0), (30.0, 24.0), Some((0.0, 1440.0))), (6.0, 30.0));
        assert_eq!(below((800.0, 0.0), (30.0, 24.0), None), (635.0, 30.0));
    }
}
