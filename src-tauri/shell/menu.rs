//! The menu as data: what is in it for what Hearth is doing. No window system in here.

use crate::shell::status::{Loaded, Status};
use hearth_host::words::counted;

/// Most models that the menu lists; the dashboard has all of them.
const LISTED: usize = 15;

/// What a click asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Load this model.
    Start(String),
    /// End all answers of this model.
    Stop(String),
    /// Take this model out of memory.
    Unload(String),
    /// Put the address on the clipboard.
    CopyAddress,
    /// Show the dashboard.
    Dashboard,
    /// Show the list of models in the dashboard.
    Models,
    /// Turn the login item on or off.
    LoginItem,
    /// Look for a newer version.
    Updates,
    /// End Hearth.
    Quit,
}

impl Action {
    /// Its name in the menu of the window system.
    pub fn id(&self) -> String {
        match self {
            Action::Start(model) => format!("start:{model}"),
            Action::Unload(model) => format!("unload:{model}"),
            Action::Stop(model) => format!("stop:{model}"),
            Action::CopyAddress => "copy-address".into(),
            Action::Dashboard => "dashboard".into(),
            Action::Models => "models".into(),
            Action::LoginItem => "login-item".into(),
            Action::Updates => "updates".into(),
            Action::Quit => "quit".into(),
        }
    }

    /// The action of this name.
    pub fn of(id: &str) -> Option<Self> {
        Some(match id {
            "copy-address" => Action::CopyAddress,
            "dashboard" => Action::Dashboard,
            "models" => Action::Models,
            "login-item" => Action::LoginItem,
            "updates" => Action::Updates,
            "quit" => Action::Quit,
            _ => match id.split_once(':')? {
                ("start", model) => Action::Start(model.to_owned()),
                ("stop", model) => Action::Stop(model.to_owned()),
                ("unload", model) => Action::Unload(model.to_owned()),
                _ => return None,
            },
        })
    }
}

/// One line of the menu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Text that cannot be clicked.
    Note(String),
    /// Something to click.
    Item {
        /// What it asks for.
        action: Action,
        /// What it says.
        text: String,
        /// Whether it can be clicked now.
        enabled: bool,
    },
    /// A switch.
    Check {
        /// What it asks for.
        action: Action,
        /// What it says.
        text: String,
        /// Whether it is on.
        on: bool,
    },
    /// A menu of its own.
    Sub {
        /// What it says.
        text: String,
        /// What is in it.
        entries: Vec<Entry>,
    },
    /// A line between groups.
    Line,
}

impl Entry {
    /// Whether the other one is the same but for what it says: then it need not be made anew.
    pub fn same_shape(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::Note(_), Entry::Note(_)) | (Entry::Line, Entry::Line) => true,
            (Entry::Item { action: a, .. }, Entry::Item { action: b, .. })
            | (Entry::Check { action: a, .. }, Entry::Check { action: b, .. }) => a == b,
            (Entry::Sub { entries: a, .. }, Entry::Sub { entries: b, .. }) => same_shape(a, b),
            _ => false,
        }
    }
}

/// As [`Entry::same_shape`], for a whole menu.
pub fn same_shape(a: &[Entry], b: &[Entry]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same_shape(b))
}

/// What the menu is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// What Hearth is doing.
    pub status: Status,
    /// Where it serves, once it does.
    pub address: Option<String>,
    /// The complete models on disk, by their ids; `None` where another process serves them.
    pub models: Option<Vec<String>>,
    /// Whether Hearth starts at login; `None` where that cannot be had.
    pub login: Option<bool>,
    /// Whether updates can be looked for.
    pub updates: bool,
}

/// The menu.
pub fn entries(view: &View) -> Vec<Entry> {
    let item = |action, text: String| Entry::Item { action, text, enabled: true };
    let status = &view.status;
    let serves = view.address.is_some();
    let mut all = vec![Entry::Note(status.words.clone())];
    if let Some(address) = &view.address {
        all.push(Entry::Note(format!("Serving on {address}")));
    }
    all.push(Entry::Line);
    all.extend(status.models.iter().map(in_memory));
    if serves && let Some(models) = &view.models {
        all.push(Entry::Sub { text: "Start a Model".into(), entries: startable(status, models) });
        all.push(Entry::Line);
    }
    if serves {
        all.push(item(Action::CopyAddress, "Copy Address".into()));
    }
    all.push(item(Action::Dashboard, "Open Dashboard".into()));
    all.push(Entry::Line);
    if let Some(on) = view.login {
        all.push(Entry::Check { action: Action::LoginItem, text: "Launch at Login".into(), on });
    }
    if view.updates {
        all.push(item(Action::Updates, "Check for Updates…".into()));
    }
    all.push(item(Action::Quit, "Quit Hearth".into()));
    all
}

/// A model in memory with its state, and what can be done with it.
fn in_memory(model: &Loaded) -> Entry {
    let rows = model.rows.len();
    let stop = match rows {
        0 => "No Answer Runs".to_owned(),
        _ => format!("Stop {}", counted(rows as u64, "Answer", "Answers")),
    };
    let unload = Action::Unload(model.id.clone());
    Entry::Sub {
        text: format!("{}: {}", model.name, model.words),
        entries: vec![
            Entry::Item { action: Action::Stop(model.id.clone()), text: stop, enabled: rows > 0 },
            Entry::Item { action: unload, text: "Unload".into(), enabled: !model.busy },
        ],
    }
}

/// The models that are not in memory.
fn startable(status: &Status, models: &[String]) -> Vec<Entry> {
    let there = |id: &String| status.models.iter().any(|m| m.id == *id) || status.loading.as_ref() == Some(id);
    let rest: Vec<&String> = models.iter().filter(|id| !there(id)).collect();
    let more = Entry::Item { action: Action::Models, text: "All Models…".into(), enabled: true };
    let mut all: Vec<Entry> = rest
        .iter()
        .take(LISTED)
        .map(|id| Entry::Item { action: Action::Start((*id).clone()), text: (*id).clone(), enabled: true })
        .collect();
    match rest.len() {
        0 if models.is_empty() => all.push(Entry::Note("There is no model on this computer".into())),
        0 => all.push(Entry::Note("There is no other model on this computer".into())),
        n if n > LISTED => all.push(Entry::Note(format!("and {} more", n - LISTED))),
        _ => {}
    }
    all.push(Entry::Line);
    all.push(more);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{Health, ModelStats, RowStats, Stats};

    fn view(health: &Health, rows: usize, models: &[&str]) -> View {
        let row = |id| RowStats { id: 1, model: id, ..RowStats::default() };
        let stats = match health {
            Health::Ready { model } => Stats {
                rows: vec![row(model.clone()); rows],
                models: vec![ModelStats { id: model.clone(), requests: rows, ..ModelStats::default() }],
                ..Stats::default()
            },
            _ => Stats::default(),
        };
        View {
            status: Status::of(health, &stats),
            address: Some("http://127.0.0.1:8080".into()),
            models: Some(models.iter().map(|m| (*m).to_owned()).collect()),
            login: Some(false),
            updates: false,
        }
    }

    fn texts(entries: &[Entry]) -> Vec<String> {
        let text = |entry: &Entry| match entry {
            Entry::Note(text) => format!("({text})"),
            Entry::Item { text, enabled: true, .. } => text.clone(),
            Entry::Item { text, .. } => format!("[{text}]"),
            Entry::Check { text, on, .. } => format!("{text} {on}"),
            Entry::Sub { text, entries } => format!("{text} > {}", texts(entries).join(", ")),
            Entry::Line => "-".into(),
        };
        entries.iter().map(text).collect()
    }

    #[test]
    fn each_model_in_memory_can_be_stopped_and_unloaded() {
        let ready = Health::Ready { model: "org/a".into() };
        let lines = texts(&entries(&view(&ready, 2, &["org/a", "org/b"])));
        for line in [
            "(Serving on http://127.0.0.1:8080)",
            "Start a Model > org/b, -, All Models…",
            "a: 2 answers > Stop 2 Answers, [Unload]",
            "Copy Address",
            "Open Dashboard",
            "Launch at Login false",
            "Quit Hearth",
        ] {
            assert!(lines.iter().any(|l| l == line), "{line} is not in {lines:?}");
        }
        assert!(!lines.iter().any(|l| l.contains("Updates")), "{lines:?}");
        let idle = texts(&entries(&view(&ready, 0, &["org/a"])));
        assert!(idle.contains(&"a: ready > [No Answer Runs], Unload".to_owned()), "{idle:?}");
        assert!(
            idle.contains(&"Start a Model > (There is no other model on this computer), -, All Models…".to_owned())
        );
    }

    #[test]
    fn without_a_server_it_can_still_be_quit() {
        let view = View { address: None, login: None, status: Status::failed("no"), ..view(&Health::Empty, 0, &["m"]) };
        assert_eq!(texts(&entries(&view)), ["(no)", "-", "Open Dashboard", "-", "Quit Hearth"]);
    }

    #[test]
    fn of_another_process_only_address_and_dashboard_are_offered() {
        let view = View { models: None, login: None, ..view(&Health::Empty, 0, &[]) };
        let view = View { status: Status::elsewhere(7), ..view };
        assert_eq!(texts(&entries(&view))[2..], ["-", "Copy Address", "Open Dashboard", "-", "Quit Hearth"]);
    }

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let names: Vec<String> = (0..LISTED + 4).map(|n| format!("m{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lines = texts(&entries(&view(&Health::Empty, 0, &names)));
        assert!(lines.iter().any(|l| l.ends_with("m14, (and 4 more), -, All Models…")), "{lines:?}");
    }

    #[test]
    fn names_of_actions_come_back() {
        for action in [
            Action::Start("org/a:b".into()),
            Action::Unload("/folder/x".into()),
            Action::Stop("a:b".into()),
            Action::CopyAddress,
            Action::Dashboard,
            Action::Models,
            Action::LoginItem,
            Action::Updates,
            Action::Quit,
        ] {
            assert_eq!(Action::of(&action.id()), Some(action));
        }
        assert_eq!((Action::of("open:x"), Action::of("")), (None, None));
    }

    #[test]
    fn only_what_is_said_may_change_in_place() {
        let ready = Health::Ready { model: "a".into() };
        let (one, two) = (entries(&view(&ready, 1, &["a", "b"])), entries(&view(&ready, 2, &["a", "b"])));
        assert!(one != two && same_shape(&one, &two));
        let other = entries(&view(&Health::Empty, 0, &["a", "b"]));
        assert!(!same_shape(&one, &other));
        let more = entries(&view(&ready, 1, &["a", "b", "c"]));
        assert!(!same_shape(&one, &more), "a submenu counts as well");
    }
}
