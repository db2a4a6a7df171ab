//! What Tauri needs of its config at build time. No page may call into the app, so there are no capabilities.

fn main() {
    if let Err(error) = tauri_build::try_build(tauri_build::Attributes::new()) {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
    for watched in ["tauri.conf.json", "src-tauri/Info.plist", "src-tauri/shell/pages", "icons"] {
        println!("cargo:rerun-if-changed={watched}");
    }
}
