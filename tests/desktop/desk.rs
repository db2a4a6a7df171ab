//! A desk of its own for every test: a virtual screen, a session bus, a window manager, and a panel for icons.

use crate::panel::Panel;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test gives up. Far more than it takes: this only ends what hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that ends with its test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is so.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "waited {} s for {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The desk. Dropping it takes everything away.
pub struct Desk {
    /// Where icons, menus and notifications arrive.
    pub panel: Panel,
    display: String,
    bus: String,
    /// XDG_RUNTIME_DIR.
    run: TempDir,
    manager: Ended,
    _bus: Ended,
    _screen: Ended,
}

impl Desk {
    /// A new one.
    pub fn new() -> Self {
        let run = tempfile::Builder::new().prefix("hearth-desk-").tempdir().unwrap();
        let mut xvfb = program("Xvfb");
        // Without the last flag the screen begins anew when its last client leaves, and ends whoever is just coming.
        xvfb.args(["-displayfd", "1", "-screen", "0", "1280x900x24", "-nolisten", "tcp", "-noreset"])
            .stderr(Stdio::null());
        let (screen, number) = says(xvfb);
        let display = format!(":{number}");
        let mut daemon = program("dbus-daemon");
        daemon.args(["--session", "--nofork", "--print-address=1"]).env("XDG_RUNTIME_DIR", run.path());
        let (daemon, bus) = says(daemon);
        let panel = Panel::on(&bus);
        let mut openbox = program("openbox");
        openbox.args(["--sm-disable"]).env("DISPLAY", &display).env("XDG_RUNTIME_DIR", run.path());
        openbox.env("HOME", run.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut manage = || Ended(openbox.spawn().expect("openbox"));
        let mut desk = Desk { panel, display, bus, run, manager: manage(), _bus: daemon, _screen: screen };
        eventually("the window manager", || {
            if desk.manager.0.try_wait().unwrap().is_some() {
                desk.manager = manage();
            }
            desk.tool("wmctrl", &["-m"]).is_some()
        });
        desk
    }

    /// Puts a program on this desk.
    pub fn seat(&self, cmd: &mut Command) {
        cmd.env("DISPLAY", &self.display).env("DBUS_SESSION_BUS_ADDRESS", &self.bus);
        cmd.env("XDG_RUNTIME_DIR", self.run.path()).env_remove("WAYLAND_DISPLAY");
        cmd.env("GDK_BACKEND", "x11").env("NO_AT_BRIDGE", "1").env("LIBGL_ALWAYS_SOFTWARE", "1");
        cmd.env("WEBKIT_DISABLE_DMABUF_RENDERER", "1");
    }

    /// What a tool prints on this desk; `None` when it fails.
    fn tool(&self, name: &str, args: &[&str]) -> Option<String> {
        let mut cmd = program(name);
        self.seat(&mut cmd);
        let out = cmd.args(args).stderr(Stdio::null()).output().unwrap_or_else(|e| panic!("{name}: {e}"));
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// The windows' titles.
    pub fn windows(&self) -> Vec<String> {
        let listed = self.tool("wmctrl", &["-l"]).unwrap_or_default();
        // Number, desktop, machine, title.
        listed.lines().map(|line| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ")).collect()
    }

    /// Waits until there are so many.
    #[track_caller]
    pub fn wait_for_windows(&self, count: usize) {
        eventually(&format!("{count} windows"), || self.windows().len() == count);
    }

    /// Closes the window as its close button does.
    pub fn close_window(&self) {
        self.tool("wmctrl", &["-c", "Hearth"]).expect("a window to close");
    }

    /// Waits for a text on the clipboard.
    #[track_caller]
    pub fn clipboard_becomes(&self, text: &str) {
        eventually(&format!("{text} on the clipboard"), || {
            self.tool("xclip", &["-o", "-selection", "clipboard"]).as_deref() == Some(text)
        });
    }
}

fn program(name: &str) -> Command {
    let mut cmd = Command::new(name);
    cmd.stdin(Stdio::null()).current_dir(Path::new("/"));
    cmd
}

/// Starts a program and takes the first line that it prints.
fn says(mut cmd: Command) -> (Ended, String) {
    let name = cmd.get_program().to_string_lossy().into_owned();
    let child = cmd.stdout(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|e| panic!("{name}: {e}; `cargo xtask setup` installs what these tests need"));
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    // What else it says is of no interest, but a full pipe would stop it.
    std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    assert!(!line.trim().is_empty(), "{name} did not start");
    (Ended(child), line.trim().to_owned())
}
