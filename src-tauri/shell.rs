//! The desktop side of Hearth: menu-bar icon, windows, login item, notifications. It has no model logic; what it shows
//! comes from the engine's figures, and what it does goes through the server's admin routes.

mod actions;
mod awake;
mod command;
mod control;
mod login;
mod menu;
mod plan;
mod service;
mod status;
mod tray;
mod updates;
mod wake;
mod windows;

use hearth_host::leave_at_once;
use hearth_library::home::Home;
use hearth_server::logs::LogRing;
use service::Service;
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use tauri::{App, AppHandle, Manager, RunEvent, Wry};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// When the system ends the app by itself (at logout, say), what runs gets this long.
const AT_LOGOUT: Duration = Duration::from_millis(2500);

/// What the windows and the menu share.
struct Shell {
    service: Service,
    tray: OnceLock<tray::Tray>,
    clipboard: actions::Clipboard,
    quitting: Mutex<bool>,
}

/// Runs the app to its end.
pub fn run() -> ExitCode {
    hearth_machine::prepare_allocator();
    let logs = LogRing::default();
    log_to(logs.clone());
    point_to_kernels();
    // Few threads for sockets: the cores are the engine's.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: Hearth cannot start its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    tauri::async_runtime::set(runtime.handle().clone());
    // The window system's loop takes this thread; the plugin for one instance ends a second one here.
    let app = tauri::Builder::default()
        .plugin(tauri_plugin_single_instance::init(|app, _, _| windows::open_dashboard(app, "/")))
        .plugin(tauri_plugin_notification::init())
        .plugin(tauri_plugin_updater::Builder::new().build())
        .setup(move |app| Ok(set_up(app, logs)?))
        .build(tauri::generate_context!());
    let app = match app {
        Ok(app) => app,
        Err(error) => {
            eprintln!("error: Hearth cannot show itself: {error}");
            return ExitCode::FAILURE;
        }
    };
    app.run(on_event);
    ExitCode::SUCCESS
}

/// Standard error gets what `HEARTH_LOG` asks for; the dashboard's page of logs has its own measure.
fn log_to(logs: LogRing) {
    let filter = std::env::var("HEARTH_LOG").unwrap_or_else(|_| "warn".to_owned());
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|_| EnvFilter::new("warn"));
    let terminal = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_filter(filter);
    tracing_subscriber::registry().with(terminal).with(logs.with_filter(LevelFilter::INFO)).init();
}

/// In a bundle the Metal kernels are among its resources; the path that MLX was built with is not on a user's Mac.
#[cfg(target_os = "macos")]
fn point_to_kernels() {
    let Ok(program) = std::env::current_exe() else { return };
    let Some(contents) = program.parent().and_then(std::path::Path::parent) else { return };
    let kernels = contents.join("Resources/mlx.metallib");
    if kernels.is_file()
        && let Err(error) = hearth_mlx::set_metallib(&kernels)
    {
        tracing::error!(%error, path = %kernels.display(), "the Metal kernels in the bundle cannot be used");
    }
}

#[cfg(not(target_os = "macos"))]
fn point_to_kernels() {}

fn set_up(app: &mut App<Wry>, logs: LogRing) -> tauri::Result<()> {
    #[cfg(target_os = "macos")]
    app.set_activation_policy(tauri::ActivationPolicy::Accessory);
    let home = Home::locate().map_err(|e| e.to_string());
    let service = tauri::async_runtime::block_on(async { Service::start(home, logs) });
    let handle = app.handle().clone();
    let view = service.view();
    app.manage(Shell {
        service: service.clone(),
        tray: OnceLock::new(),
        clipboard: actions::Clipboard::default(),
        quitting: Mutex::new(false),
    });
    let tray = tray::Tray::new(&handle, &view.borrow())?;
    let _ = app.state::<Shell>().tray.set(tray);
    tauri::async_runtime::spawn(follow(handle.clone(), service.clone()));
    tauri::async_runtime::spawn(notices(handle.clone(), service));
    tauri::async_runtime::spawn(signals(handle));
    Ok(())
}

/// Brings what is new to the menu bar.
async fn follow(app: AppHandle<Wry>, service: Service) {
    let mut views = service.view();
    // What was said before anybody looked is news all the same: a start that failed at once.
    views.mark_changed();
    let mut served = false;
    while views.changed().await.is_ok() {
        let view = views.borrow_and_update().clone();
        let serves = view.address.is_some();
        let begins = serves && !std::mem::replace(&mut served, serves);
        let shown = app.clone();
        let _ = app.run_on_main_thread(move || {
            if let Some(tray) = shown.state::<Shell>().tray.get()
                && let Err(error) = tray.show(&shown, &view)
            {
                tracing::warn!(%error, "the menu cannot be changed");
            }
            if begins {
                windows::serve_dashboard(&shown);
            }
        });
    }
}

async fn notices(app: AppHandle<Wry>, service: Service) {
    let mut notices = service.notices();
    loop {
        let notice = notices.borrow_and_update().clone();
        if let Some(notice) = notice {
            actions::notify(&app, &notice);
        }
        if notices.changed().await.is_err() {
            return;
        }
    }
}

/// A signal ends the app as its menu does.
async fn signals(app: AppHandle<Wry>) {
    use tokio::signal::unix::{SignalKind, signal};
    let all = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = all else {
        tracing::warn!("signals cannot be watched");
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    actions::quit(&app);
}

fn on_event(app: &AppHandle<Wry>, event: RunEvent) {
    match event {
        // The last window was closed: the menu-bar icon stays.
        RunEvent::ExitRequested { code: None, api, .. } => api.prevent_exit(),
        #[cfg(target_os = "macos")]
        RunEvent::Reopen { .. } => windows::open_dashboard(app, "/"),
        RunEvent::Exit => {
            // After a quit from the menu this is over at once; at logout it is all the time there is.
            let service = app.state::<Shell>().service.clone();
            let ended = tauri::async_runtime::block_on(async { tokio::time::timeout(AT_LOGOUT, service.quit()).await });
            if !matches!(ended, Ok(true)) {
                leave_at_once(0);
            }
        }
        _ => {}
    }
}
