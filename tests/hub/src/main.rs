//! `cargo xtask hub`: the test hub for trials by hand and for browser tests. Prints its address on the first line, then serves until it
//! is ended.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use hearth_test_hub::{Hub, sharded_model, tiny_model};

#[derive(Parser)]
#[command(name = "hub", about = "A model hub on loopback, with tiny models", disable_version_flag = true)]
struct Args {
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// A folder to offer as a repository; may be given several times
    #[arg(long, value_name = "ORG/NAME=FOLDER")]
    model: Vec<String>,
    /// A repository of so many weight files of so many bytes; may be given several times
    #[arg(long, value_name = "ORG/NAME=FILESxBYTES")]
    shards: Vec<String>,
    /// Milliseconds before each answer
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency: u64,
    /// Bytes per second of each connection [default: as fast as it goes]
    #[arg(long, value_name = "BYTES")]
    rate: Option<u64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let hub = Hub::start_on(args.port)?;
    for (name, size, seed) in [("test/tiny-a", 300_000, 1), ("test/tiny-b", 5_000_000, 2), ("test/gated", 100_000, 3)] {
        let files = tiny_model(size, seed);
        let files: Vec<(&str, &[u8])> = files.iter().map(|(path, bytes)| (*path, bytes.as_slice())).collect();
        hub.add(name, &files);
    }
    hub.gate("test/gated", false);
    for model in &args.model {
        let (name, folder) = model.split_once('=').context("--model takes ORG/NAME=FOLDER")?;
        hub.add_folder(name, &PathBuf::from(folder))?;
    }
    for shards in &args.shards {
        let parsed = shards.split_once('=').and_then(|(name, rest)| {
            let (files, bytes) = rest.split_once('x')?;
            Some((name, files.parse().ok()?, bytes.parse().ok()?))
        });
        let (name, files, bytes) = parsed.context("--shards takes ORG/NAME=FILESxBYTES")?;
        let files = sharded_model(files, bytes);
        let files: Vec<(&str, &[u8])> = files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
        hub.add(name, &files);
    }
    hub.latency(Duration::from_millis(args.latency));
    hub.rate(args.rate);
    println!("{}", hub.url());
    eprintln!(
        "faults: POST {}/__hub/fault {{\"path\": \"/lfs/\", \"fault\": {{\"drop\": 1000}}, \"times\": 1}}",
        hub.url()
    );
    loop {
        std::thread::park();
    }
}
