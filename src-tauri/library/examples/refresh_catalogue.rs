//! Asks the hub about every model of the built-in catalogue and prints the file anew: `refresh_catalogue DATE`.
#![allow(clippy::print_stdout, reason = "the file goes to standard output")]

use hearth_library::catalogue::{Catalogue, refreshed};
use hearth_library::home::process_env;
use hearth_library::hub::{Hub, HubOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let date = std::env::args().nth(1).ok_or("give today's date, such as 2026-11-29")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (list, gone) = runtime.block_on(async {
        let hub = Hub::new(HubOptions::from_env(&process_env))?;
        refreshed(&hub, &Catalogue::built_in()?, &date).await
    })?;
    for why in gone {
        eprintln!("left out: {why}");
    }
    // One line for each model: what changed is seen at a glance.
    println!("{{\n  \"version\": {},\n  \"date\": {:?},\n  \"models\": [", list.version, list.date);
    let lines: Result<Vec<String>, _> = list.models.iter().map(serde_json::to_string).collect();
    println!("    {}\n  ]\n}}", lines?.join(",\n    "));
    Ok(())
}
