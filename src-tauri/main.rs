//! `hearth-desktop`: the menu-bar app. Everything is in the library beside it.

fn main() -> std::process::ExitCode {
    hearth_desktop::run()
}
