//! Lists the models on this computer: `cargo run -p hearth-library --example list_models -- [FOLDER…]`.

use std::path::PathBuf;

use hearth_library::home::Home;
use hearth_library::scan::{Places, scan};

fn main() -> Result<(), hearth_library::LibraryError> {
    let extra: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let start = std::time::Instant::now();
    let found = scan(&Places::standard(&Home::locate()?, &extra));
    for m in &found.models {
        let quantization = m.quantization.as_deref().unwrap_or("?");
        let state = m.problem.as_deref().unwrap_or("complete");
        println!("{}  {}  {} bytes  {state}", m.id, quantization, m.bytes);
    }
    for folder in &found.away {
        println!("{} is away", folder.display());
    }
    println!("{} models in {:.1} ms", found.models.len(), start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
