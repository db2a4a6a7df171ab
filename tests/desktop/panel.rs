//! The panel of the desk: the place where icons register (StatusNotifierWatcher), a hand that reads and clicks their menus
//! (dbusmenu), and a notification service that remembers what it was told.

use crate::desk::eventually;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zbus::blocking::{Connection, Proxy, connection};
use zbus::message::Header;
use zbus::zvariant::{OwnedValue, Structure, Value};

const WATCHER: &str = "org.kde.StatusNotifierWatcher";
const ITEM: &str = "org.kde.StatusNotifierItem";
const MENU: &str = "com.canonical.dbusmenu";

/// Bus names and paths of icons, the newest last.
type Icons = Arc<Mutex<Vec<(String, String)>>>;
/// Title and text of notifications.
type Notes = Arc<Mutex<Vec<(String, String)>>>;

struct Watcher(Icons);

#[zbus::interface(name = "org.kde.StatusNotifierWatcher")]
impl Watcher {
    fn register_status_notifier_item(&self, service: &str, #[zbus(header)] header: Header<'_>) {
        let sender = header.sender().map(ToString::to_string).unwrap_or_default();
        let icon = match service.starts_with('/') {
            true => (sender, service.to_owned()),
            false => (service.to_owned(), "/StatusNotifierItem".to_owned()),
        };
        self.0.lock().unwrap().push(icon);
    }

    fn register_status_notifier_host(&self, _service: &str) {}

    #[zbus(property)]
    fn registered_status_notifier_items(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(bus, path)| format!("{bus}{path}")).collect()
    }

    #[zbus(property)]
    fn is_status_notifier_host_registered(&self) -> bool {
        true
    }

    #[zbus(property)]
    fn protocol_version(&self) -> i32 {
        0
    }
}

struct Notifications(Notes);

#[zbus::interface(name = "org.freedesktop.Notifications")]
impl Notifications {
    #[allow(clippy::too_many_arguments, reason = "the specification's")]
    fn notify(
        &self,
        _app: &str,
        _replaces: u32,
        _icon: &str,
        summary: &str,
        body: &str,
        _actions: Vec<String>,
        _hints: HashMap<String, OwnedValue>,
        _timeout: i32,
    ) -> u32 {
        let mut notes = self.0.lock().unwrap();
        notes.push((summary.to_owned(), body.to_owned()));
        notes.len() as u32
    }

    fn close_notification(&self, _id: u32) {}

    fn get_capabilities(&self) -> Vec<String> {
        vec!["body".into()]
    }

    fn get_server_information(&self) -> (String, String, String, String) {
        ("panel".into(), "tests".into(), "1".into(), "1.2".into())
    }
}

/// One line of a menu.
#[derive(Debug, Clone)]
struct Line {
    id: i32,
    label: String,
    enabled: bool,
    checked: bool,
    lines: Vec<Line>,
}

/// The panel.
pub struct Panel {
    connection: Connection,
    icons: Icons,
    notes: Notes,
}

/// A menu item as D-Bus has it: number, properties, children.
type MenuItem = (i32, HashMap<String, OwnedValue>, Vec<OwnedValue>);

impl Panel {
    /// A panel on this bus.
    pub fn on(bus: &str) -> Self {
        let (icons, notes) = (Icons::default(), Notes::default());
        let connection = connection::Builder::address(bus)
            .and_then(|b| b.name(WATCHER))
            .and_then(|b| b.name("org.freedesktop.Notifications"))
            .and_then(|b| b.serve_at("/StatusNotifierWatcher", Watcher(icons.clone())))
            .and_then(|b| b.serve_at("/org/freedesktop/Notifications", Notifications(notes.clone())))
            .and_then(|b| b.build())
            .unwrap();
        Panel { connection, icons, notes }
    }

    /// The menu of the newest icon; empty while there is none.
    fn menu(&self) -> (Option<Proxy<'static>>, Vec<Line>) {
        let Some((bus, path)) = self.icons.lock().unwrap().last().cloned() else { return (None, Vec::new()) };
        let read = || -> zbus::Result<(Proxy<'static>, Vec<Line>)> {
            let item = Proxy::new(&self.connection, bus.clone(), path.clone(), ITEM)?;
            let menu: zbus::zvariant::OwnedObjectPath = item.get_property("Menu")?;
            let menu = Proxy::new(&self.connection, bus.clone(), menu, MENU)?;
            let all: (u32, MenuItem) = menu.call("GetLayout", &(0_i32, -1_i32, Vec::<String>::new()))?;
            Ok((menu, all.1.2.iter().filter_map(line).collect()))
        };
        match read() {
            Ok((proxy, lines)) => (Some(proxy), lines),
            // The icon is on its way in or out.
            Err(_) => (None, Vec::new()),
        }
    }

    /// Every text of the menu, for looking and for messages.
    fn texts(&self) -> Vec<String> {
        fn add(lines: &[Line], all: &mut Vec<String>) {
            for line in lines {
                all.push(line.label.clone());
                add(&line.lines, all);
            }
        }
        let mut all = Vec::new();
        add(&self.menu().1, &mut all);
        all
    }

    /// Waits until a line of the menu holds this text; gives the line.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        let mut found = None;
        let mut last = Vec::new();
        let began = std::time::Instant::now();
        while found.is_none() {
            last = self.texts();
            found = last.iter().find(|line| line.contains(text)).cloned();
            assert!(began.elapsed().as_secs() < 120, "no line with {text:?} in {last:?}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        drop(last);
        found.unwrap()
    }

    /// Clicks the line at the end of this path of menus, once it is there and can be clicked.
    #[track_caller]
    pub fn click(&self, path: &[&str]) {
        eventually(&format!("{path:?} in {:?}", self.texts()), || {
            let (proxy, mut lines) = self.menu();
            let Some(proxy) = proxy else { return false };
            let mut found = None;
            for label in path {
                let Some(line) = lines.iter().find(|line| line.label == *label && line.enabled).cloned() else {
                    return false;
                };
                lines = line.lines.clone();
                found = Some(line.id);
            }
            let clicked: zbus::Result<()> = proxy.call("Event", &(found.unwrap(), "clicked", Value::from(""), 0_u32));
            clicked.is_ok()
        });
    }

    /// Whether a switch of the menu is on.
    pub fn is_checked(&self, label: &str) -> bool {
        self.menu().1.iter().any(|line| line.label == label && line.checked)
    }

    /// Waits for a notification with this title; gives its text.
    #[track_caller]
    pub fn notification(&self, title: &str) -> String {
        let mut body = None;
        eventually(&format!("a notification {title:?}"), || {
            body = self.notes.lock().unwrap().iter().find(|(t, _)| t == title).map(|(_, body)| body.clone());
            body.is_some()
        });
        body.unwrap()
    }
}

/// A line from `(ia{sv}av)`.
fn line(value: &OwnedValue) -> Option<Line> {
    let structure: Structure<'_> = value.downcast_ref().ok()?;
    let [id, properties, children] = structure.fields() else { return None };
    let properties: HashMap<String, Value<'_>> = HashMap::try_from(properties.try_clone().ok()?).ok()?;
    let children: Vec<OwnedValue> = match children {
        Value::Array(all) => all.iter().filter_map(|child| child.try_to_owned().ok()).collect(),
        _ => Vec::new(),
    };
    let children = children.iter().filter_map(|child| match &**child {
        Value::Value(inner) => inner.try_to_owned().ok(),
        other => other.try_to_owned().ok(),
    });
    let text = |name: &str| properties.get(name).and_then(|v| String::try_from(v.try_clone().ok()?).ok());
    let flag = |name: &str| properties.get(name).and_then(|v| bool::try_from(v).ok());
    let state = properties.get("toggle-state").and_then(|v| i32::try_from(v).ok());
    Some(Line {
        id: i32::try_from(id).ok()?,
        // An underscore marks the key of the letter after it, and two are one.
        label: text("label").unwrap_or_default().replace("__", "\u{0}").replace('_', "").replace('\u{0}', "_"),
        enabled: flag("enabled").unwrap_or(true),
        checked: state == Some(1),
        lines: children.filter_map(|child| line(&child)).collect(),
    })
}
