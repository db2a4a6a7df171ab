//! Kills in the middle of the prompt cache's writing: after each, the server starts, its folder is under its cap,
//! nothing is left over, and every greedy answer is that of a server without a cache.

use crate::server::{Server, free_port};
use crate::workspace::remove_dir;
use crate::{http, sh};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Prompts that are asked again and again: some begin alike.
const PROMPTS: usize = 12;
/// Clients at once.
const CLIENTS: usize = 3;
/// Tokens of an answer.
const ANSWER: usize = 12;
/// Memory for two or three of the prompts, and a disk for about six: there is always something to evict.
const RAM: &str = "32MB";
const SSD: u64 = 60_000_000;
/// The kill comes after up to so many bytes of a run are written, and so many milliseconds into the next file.
const WRITTEN: u64 = 50_000_000;
const LATEST: u64 = 300;
/// For this long that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is needed.
pub struct Kills<'a> {
    /// The `hearth` binary.
    pub hearth: &'a Path,
    /// The model.
    pub model: &'a Path,
    /// Hearth's home, emptied first.
    pub home: PathBuf,
    /// How many.
    pub count: usize,
}

/// When a server is killed.
struct When {
    /// After so many bytes were written and another file was begun,
    written: u64,
    /// so much later.
    after: Duration,
    /// Whether a flush is asked for meanwhile.
    flush: bool,
}

/// A repeatable stream of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// What the loop saw.
#[derive(Default)]
struct Seen {
    answers: AtomicU64,
    from_disk: u64,
    leftovers: usize,
    most: u64,
}

impl Kills<'_> {
    /// Runs the loop; what it saw, in a sentence.
    ///
    /// # Errors
    /// When a server does not start, an answer is another than without a cache, the folder is over its cap, or
    /// something is left over.
    pub fn run(&self, stop: &AtomicBool) -> Result<String> {
        remove_dir(&self.home)?;
        fs::create_dir_all(&self.home)?;
        let expected = self.expected(stop)?;
        let mut seen = Seen::default();
        let mut dice = Dice(50);
        for kill in 0..self.count {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            eprintln!("  kill {} of {}", kill + 1, self.count);
            let mut server =
                self.start(&["--cache-ram", RAM, "--cache-ssd", &SSD.to_string(), "--cache-idle", "1"], stop)?;
            self.look(&mut seen).with_context(|| format!("after {kill} kills"))?;
            let after = Duration::from_millis(dice.roll(LATEST));
            let when = When { written: dice.roll(WRITTEN), after, flush: dice.roll(2) == 0 };
            self.ask_until(&mut server, &expected, &mut seen, &when, dice.roll(1 << 20))
                .with_context(|| format!("after {kill} kills"))?;
            seen.leftovers += self.files()?.iter().filter(|(name, _)| is_temporary(name)).count();
            seen.most = seen.most.max(self.bytes()?);
        }
        // The last one answers everything.
        let mut server = self.start(&["--cache-ram", RAM, "--cache-ssd", &SSD.to_string()], stop)?;
        self.look(&mut seen)?;
        for (number, ids) in expected.iter().enumerate() {
            check(number, ids, &complete(server.address, number)?)?;
        }
        let disk = stats(server.address)?["cache"]["ssd"].clone();
        if disk["state"] != "ready" || disk["failed_restores"] != 0 || disk["corrupt"] != 0 {
            bail!("the cache on disk is not well: {disk}");
        }
        seen.from_disk += disk["hits"].as_u64().unwrap_or(0);
        server.end_within(Duration::from_secs(90))?;
        remove_dir(&self.home)?;
        Ok(format!(
            "{} kills; {} answers, all as without a cache; {} continued from disk; {} half-written files reclaimed; \
             at most {:.0} of {:.0} MB on disk",
            self.count,
            seen.answers.into_inner() + expected.len() as u64,
            seen.from_disk,
            seen.leftovers,
            seen.most as f64 / 1e6,
            SSD as f64 / 1e6
        ))
    }

    fn start(&self, args: &[&str], stop: &AtomicBool) -> Result<Server> {
        let port = free_port()?;
        let mut serve = self.hearth();
        serve.arg("serve").arg(self.model).args(["--port", &port.to_string()]).args(args).stdout(Stdio::null());
        let mut server = Server::start(&mut serve, port)?;
        server.wait_ready("/health", Duration::from_secs(300), stop)?;
        Ok(server)
    }

    fn hearth(&self) -> Command {
        let mut cmd = Command::new(self.hearth);
        cmd.env("HEARTH_HOME", &self.home);
        cmd
    }

    /// The answers of a server that caches nothing.
    fn expected(&self, stop: &AtomicBool) -> Result<Vec<Value>> {
        let mut server = self.start(&["--cache-ram", "0", "--cache-ssd", "0"], stop)?;
        let expected = sh::step("Asking without a cache", || {
            (0..PROMPTS)
                .map(|number| Ok(complete(server.address, number)?["choices"][0]["token_ids"].clone()))
                .collect()
        });
        server.end()?;
        expected
    }

    /// Clients ask until the server is killed, a while after its first answer.
    fn ask_until(
        &self,
        server: &mut Server,
        expected: &[Value],
        seen: &mut Seen,
        when: &When,
        seed: u64,
    ) -> Result<()> {
        let (killed, answers, address) = (AtomicBool::new(false), AtomicU64::new(0), server.address);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS as u64)
                .map(|client| {
                    let (killed, answers) = (&killed, &answers);
                    scope.spawn(move || -> Result<()> {
                        let mut dice = Dice(seed + client);
                        while !killed.load(Ordering::Relaxed) {
                            let number = dice.roll(PROMPTS as u64) as usize;
                            match complete(address, number) {
                                Ok(answer) => check(number, &expected[number], &answer)?,
                                Err(_) if killed.load(Ordering::Relaxed) => break,
                                Err(error) => return Err(error),
                            }
                            answers.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            let started = Instant::now();
            let failed = || clients.iter().any(|client| client.is_finished());
            while answers.load(Ordering::Relaxed) == 0 && !failed() && started.elapsed() < 4 * PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
            let flush = when.flush.then(|| {
                let mut cmd = self.hearth();
                cmd.args(["cache", "flush"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
            });
            let started = Instant::now();
            while !failed() && started.elapsed() < PATIENCE && !self.writes(address, when.written)? {
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(when.after);
            let hits = stats(address).map(|stats| stats["cache"]["ssd"]["hits"].as_u64().unwrap_or(0));
            killed.store(true, Ordering::Relaxed);
            server.kill()?;
            if let Some(flush) = flush {
                flush?.wait()?;
            }
            for client in clients {
                client.join().map_err(|_| anyhow::anyhow!("a client failed"))??;
            }
            seen.from_disk += hits?;
            anyhow::Ok(())
        })?;
        if answers.load(Ordering::Relaxed) == 0 {
            bail!("no answer came");
        }
        seen.answers.fetch_add(answers.into_inner(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether this many bytes are written and another file is in the making.
    fn writes(&self, server: SocketAddr, bytes: u64) -> Result<bool> {
        let written = stats(server)?["cache"]["ssd"]["written"].as_u64().context("no written bytes in /stats")?;
        Ok(written >= bytes && self.files()?.iter().any(|(name, _)| is_temporary(name)))
    }

    /// The folder right after a start.
    fn look(&self, seen: &mut Seen) -> Result<()> {
        let bytes = self.bytes()?;
        seen.most = seen.most.max(bytes);
        if bytes > SSD {
            bail!("the folder holds {bytes} bytes, and its cap is {SSD}");
        }
        match self.files()?.into_iter().find(|(name, _)| is_temporary(name)) {
            Some((name, _)) => bail!("{name} is left over"),
            None => Ok(()),
        }
    }

    /// Names and sizes in the cache's folder.
    fn files(&self) -> Result<Vec<(String, u64)>> {
        let dir = self.home.join("cache");
        let listed = fs::read_dir(&dir).with_context(|| format!("no folder {}", dir.display()))?;
        let mut files = Vec::new();
        for file in listed {
            let file = file?;
            // One may go while we look.
            if let Ok(meta) = file.metadata() {
                files.push((file.file_name().to_string_lossy().into_owned(), meta.len()));
            }
        }
        Ok(files)
    }

    fn bytes(&self) -> Result<u64> {
        Ok(self.files()?.iter().filter(|(name, _)| name.contains(".hearthkv")).map(|(_, bytes)| bytes).sum())
    }
}

fn is_temporary(name: &str) -> bool {
    name.ends_with(".tmp")
}

/// Prompt `number`: a beginning that four have in common, and an end of its own.
fn prompt(number: usize) -> String {
    let line = |n: usize| format!("Story {n} is about the number {}, and about {} ships. ", n * 37, n % 7 + 2);
    let shared: String = (0..8).map(|i| line(number % 3 * 100 + i)).collect();
    let own: String = (0..4).map(|i| line(1000 + number * 50 + i)).collect();
    shared + &own
}

fn complete(server: SocketAddr, number: usize) -> Result<Value> {
    let body = json!({"prompt": prompt(number), "max_tokens": ANSWER, "temperature": 0, "ignore_eos": true,
                      "return_token_ids": true});
    http::post(server, "/v1/completions", &body)
}

fn check(number: usize, expected: &Value, answer: &Value) -> Result<()> {
    let choice = &answer["choices"][0];
    if choice["token_ids"] != *expected {
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        bail!("prompt {number} with {cached} cached tokens: {} instead of {expected}", choice["token_ids"]);
    }
    Ok(())
}

fn stats(server: SocketAddr) -> Result<Value> {
    Ok(serde_json::from_str(&http::get(server, "/stats")?.1)?)
}
