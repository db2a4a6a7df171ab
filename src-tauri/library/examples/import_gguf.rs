//! Imports a GGUF file: `cargo run -p hearth-library --example import_gguf -- MODEL.gguf NEW-FOLDER`.

use std::path::Path;

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let [_, gguf, folder] = args.as_slice() else {
        eprintln!("usage: import_gguf MODEL.gguf NEW-FOLDER");
        return std::process::ExitCode::from(2);
    };
    match hearth_library::gguf::import_gguf(Path::new(gguf), Path::new(folder), &mut |_, _| {}) {
        Ok(report) => {
            println!("{report:#?}");
            std::process::ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            std::process::ExitCode::from(3)
        }
    }
}
