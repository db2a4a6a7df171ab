//! The icon in the menu bar and its menu, made from [`crate::shell::menu`]'s data. Everything here runs on the main thread.

use crate::shell::menu::{Action, Entry, View, entries, same_shape};
use crate::shell::status::Picture;
use crate::shell::{actions, windows};
use std::sync::{Mutex, PoisonError};
use tauri::image::Image;
use tauri::menu::{CheckMenuItem, IsMenuItem, Menu, MenuItem, PredefinedMenuItem, Submenu};
use tauri::tray::{MouseButton, MouseButtonState, TrayIcon, TrayIconBuilder, TrayIconEvent};
use tauri::{AppHandle, Wry};

/// The icon, and what it shows.
pub struct Tray {
    icon: TrayIcon<Wry>,
    shown: Mutex<Shown>,
}

struct Shown {
    entries: Vec<Entry>,
    handles: Vec<Handle>,
    picture: Picture,
    tooltip: String,
}

/// The window system's side of an entry.
enum Handle {
    Plain(MenuItem<Wry>),
    Check(CheckMenuItem<Wry>),
    Sub(Submenu<Wry>, Vec<Handle>),
    Line(PredefinedMenuItem<Wry>),
}

impl Tray {
    /// Puts the icon into the menu bar.
    ///
    /// # Errors
    /// When the window system refuses.
    pub fn new(app: &AppHandle<Wry>, view: &View) -> tauri::Result<Self> {
        let entries = entries(view);
        let (menu, handles) = build(app, &entries)?;
        let (picture, tooltip) = (view.status.picture, view.status.tooltip());
        let icon = TrayIconBuilder::with_id("hearth")
            .icon(image(picture)?)
            .icon_as_template(true)
            .tooltip(&tooltip)
            .menu(&menu)
            .show_menu_on_left_click(false)
            .on_menu_event(|app, event| {
                if let Some(action) = Action::of(event.id().as_ref()) {
                    actions::run(app, &action);
                }
            })
            .on_tray_icon_event(|icon, event| {
                if let TrayIconEvent::Click { button: MouseButton::Left, button_state, rect, .. } = event
                    && button_state == MouseButtonState::Up
                {
                    windows::toggle_popover(icon.app_handle(), rect);
                }
            })
            .build(app)?;
        Ok(Tray { icon, shown: Mutex::new(Shown { entries, handles, picture, tooltip }) })
    }

    /// Shows what is new. An open menu stays open where only its words change.
    ///
    /// # Errors
    /// When the window system refuses.
    pub fn show(&self, app: &AppHandle<Wry>, view: &View) -> tauri::Result<()> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = entries(view);
        if wanted != shown.entries {
            if same_shape(&wanted, &shown.entries) {
                update(&shown.handles, &shown.entries, &wanted)?;
            } else {
                let (menu, handles) = build(app, &wanted)?;
                self.icon.set_menu(Some(menu))?;
                shown.handles = handles;
            }
            shown.entries = wanted;
        }
        let (picture, tooltip) = (view.status.picture, view.status.tooltip());
        if picture != shown.picture {
            self.icon.set_icon_with_as_template(Some(image(picture)?), true)?;
            shown.picture = picture;
        }
        if tooltip != shown.tooltip {
            self.icon.set_tooltip(Some(&tooltip))?;
            shown.tooltip = tooltip;
        }
        Ok(())
    }

    /// Takes the icon away.
    pub fn hide(&self) {
        let _ = self.icon.set_visible(false);
    }
}

/// In menus, an ampersand marks the key of the letter after it, and two are one.
fn plain(text: &str) -> String {
    text.replace('&', "&&")
}

fn build(app: &AppHandle<Wry>, entries: &[Entry]) -> tauri::Result<(Menu<Wry>, Vec<Handle>)> {
    let menu = Menu::new(app)?;
    let handles = entries.iter().map(|entry| handle(app, entry)).collect::<tauri::Result<Vec<_>>>()?;
    for one in &handles {
        menu.append(one.item())?;
    }
    Ok((menu, handles))
}

fn handle(app: &AppHandle<Wry>, entry: &Entry) -> tauri::Result<Handle> {
    Ok(match entry {
        Entry::Note(text) => Handle::Plain(MenuItem::new(app, plain(text), false, None::<&str>)?),
        Entry::Item { action, text, enabled } => {
            Handle::Plain(MenuItem::with_id(app, action.id(), plain(text), *enabled, None::<&str>)?)
        }
        Entry::Check { action, text, on } => {
            Handle::Check(CheckMenuItem::with_id(app, action.id(), plain(text), true, *on, None::<&str>)?)
        }
        Entry::Sub { text, entries } => {
            let sub = Submenu::new(app, plain(text), true)?;
            let handles = entries.iter().map(|entry| handle(app, entry)).collect::<tauri::Result<Vec<_>>>()?;
            for one in &handles {
                sub.append(one.item())?;
            }
            Handle::Sub(sub, handles)
        }
        Entry::Line => Handle::Line(PredefinedMenuItem::separator(app)?),
    })
}

impl Handle {
    fn item(&self) -> &dyn IsMenuItem<Wry> {
        match self {
            Handle::Plain(item) => item,
            Handle::Check(item) => item,
            Handle::Sub(item, _) => item,
            Handle::Line(item) => item,
        }
    }
}

/// Changes words and switches in place; both lists have one shape.
fn update(handles: &[Handle], old: &[Entry], new: &[Entry]) -> tauri::Result<()> {
    for ((handle, old), new) in handles.iter().zip(old).zip(new) {
        match (handle, new) {
            (Handle::Sub(item, handles), Entry::Sub { text, entries }) => {
                if let Entry::Sub { text: before, entries: old } = old {
                    if before != text {
                        item.set_text(plain(text))?;
                    }
                    update(handles, old, entries)?;
                }
            }
            _ if old == new => {}
            (Handle::Plain(item), Entry::Note(text)) => item.set_text(plain(text))?,
            (Handle::Plain(item), Entry::Item { text, enabled, .. }) => {
                item.set_text(plain(text))?;
                item.set_enabled(*enabled)?;
            }
            (Handle::Check(item), Entry::Check { text, on, .. }) => {
                item.set_text(plain(text))?;
                item.set_checked(*on)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The picture, black on nothing: macOS colours it for its menu bar.
fn image(picture: Picture) -> tauri::Result<Image<'static>> {
    let png: &[u8] = match picture {
        Picture::Idle => include_bytes!("../../icons/tray/idle.png"),
        Picture::Loading => include_bytes!("../../icons/tray/loading.png"),
        Picture::Generating => include_bytes!("../../icons/tray/generating.png"),
        Picture::Pressure => include_bytes!("../../icons/tray/pressure.png"),
    };
    let image = Image::from_bytes(png)?;
    if cfg!(target_os = "macos") {
        return Ok(image);
    }
    // Other desktops show it as it is, on panels that may be dark or light.
    let mut rgba = image.rgba().to_vec();
    for pixel in rgba.chunks_exact_mut(4) {
        pixel[..3].copy_from_slice(&[0x9a, 0x9a, 0x9f]);
    }
    Ok(Image::new_owned(rgba, image.width(), image.height()))
}
