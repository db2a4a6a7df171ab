//! What a click in the menu does. Nothing here waits: what takes time goes to the runtime's threads.

use crate::shell::menu::Action;
use crate::shell::service::{Notice, base_url};
use crate::shell::{Shell, updates, windows};
use std::sync::{Mutex, PoisonError};
use tauri::{AppHandle, Manager, Wry};
use tauri_plugin_notification::NotificationExt;

/// Does what was clicked.
pub fn run(app: &AppHandle<Wry>, action: &Action) {
    let service = app.state::<Shell>().service.clone();
    let app = app.clone();
    match action {
        Action::Start(model) => {
            let model = model.clone();
            tauri::async_runtime::spawn(async move {
                if let Err(why) = service.load(&model).await {
                    service.tell("The model is not started", &why, None);
                }
            });
        }
        Action::Unload(model) => {
            let model = model.clone();
            tauri::async_runtime::spawn(async move {
                if let Err(why) = service.unload(&model).await {
                    service.tell("The model is not unloaded", &why, None);
                }
            });
        }
        Action::Stop(model) => service.stop_answers(model),
        Action::CopyAddress => {
            if let Some(address) = service.address() {
                copy(&app, &base_url(&address));
            }
        }
        Action::Dashboard => windows::open_dashboard(&app, "/"),
        Action::Models => windows::open_dashboard(&app, "#/models"),
        Action::LoginItem => drop(tauri::async_runtime::spawn_blocking(move || service.toggle_login())),
        Action::Updates => {
            tauri::async_runtime::spawn(async move {
                let said = updates::install(&app).await;
                service.tell("Updates", said.as_ref().unwrap_or_else(|why| why), None);
            });
        }
        Action::Quit => quit(&app),
    }
}

/// Ends Hearth in order: what can be seen goes at once, the rest as soon as it is saved.
pub fn quit(app: &AppHandle<Wry>) {
    let app = app.clone();
    let shell = app.state::<Shell>();
    if std::mem::replace(&mut *shell.quitting.lock().unwrap_or_else(PoisonError::into_inner), true) {
        return;
    }
    let hidden = app.clone();
    let _ = app.run_on_main_thread(move || {
        windows::close_all(&hidden);
        if let Some(tray) = hidden.state::<Shell>().tray.get() {
            tray.hide();
        }
    });
    let service = shell.service.clone();
    tauri::async_runtime::spawn(async move {
        if !service.quit().await {
            hearth_host::leave_at_once(0);
        }
        app.exit(0);
    });
}

/// Shows a notification, and puts on the clipboard what belongs to it.
pub fn notify(app: &AppHandle<Wry>, notice: &Notice) {
    tracing::info!(title = notice.title, body = notice.body, "told the user");
    if let Some(text) = &notice.copy {
        copy(app, text);
    }
    tell(app, &notice.title, &notice.body);
}

/// Shows a notification.
pub fn tell(app: &AppHandle<Wry>, title: &str, body: &str) {
    // A desktop without notifications loses nothing that the menu or the dashboard does not say.
    if let Err(error) = app.notification().builder().title(title).body(body).show() {
        tracing::warn!(%error, title, body, "no notification could be shown");
    }
}

/// The clipboard, kept while Hearth runs: on X11 its owner must be there when somebody pastes.
#[derive(Default)]
pub struct Clipboard(Mutex<Option<arboard::Clipboard>>);

fn copy(app: &AppHandle<Wry>, text: &str) {
    let shell = app.state::<Shell>();
    let mut clipboard = shell.clipboard.0.lock().unwrap_or_else(PoisonError::into_inner);
    let done = match &mut *clipboard {
        Some(open) => open.set_text(text),
        none => arboard::Clipboard::new().and_then(|new| none.insert(new).set_text(text)),
    };
    if let Err(error) = done {
        tell(app, "The address could not be copied", &format!("It is {text}. ({error})"));
    }
}
