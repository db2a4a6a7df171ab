//! Times the prompt cache's look-up with 10 and with 1,000 entries, in turns:
//! `cargo run --release -p hearth-engine --example lookups -- [ROUNDS]`. Prints JSON: microseconds of each round.

use hearth_engine::lookups::Lookups;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

/// Tokens that all entries share, and that each has of its own.
const SHARED: usize = 1000;
const OWN: usize = 500;
/// Look-ups of one round.
const TIMES: usize = 2000;

/// Microseconds of one look-up.
fn time(lookups: &Lookups, prompts: &[Vec<u32>]) -> Result<f64, Box<dyn Error>> {
    let at = Instant::now();
    for prompt in prompts.iter().cycle().take(TIMES) {
        if lookups.find(black_box(prompt)) != SHARED + OWN {
            return Err("a look-up missed".into());
        }
    }
    Ok(at.elapsed().as_secs_f64() * 1e6 / TIMES as f64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    let both = [10, 1000].map(|entries| Lookups::new(entries, SHARED, OWN));
    let [few, many] = both;
    let sides = [few?, many?];
    // Ten prompts on either side: what the processor's caches hold is the same.
    let prompts = sides.each_ref().map(|side| (0..10).map(|n| side.prompt(n * 97)).collect::<Vec<_>>());
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for turn in 0..2 {
            let side = (round + turn) % 2;
            let took = time(&sides[side], &prompts[side])?;
            if round > 0 {
                times[side].push(took);
            }
        }
    }
    let [few, many] = times;
    println!("{{\"entries_10\":{few:?},\"entries_1000\":{many:?}}}");
    Ok(())
}
