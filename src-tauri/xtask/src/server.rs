//! A server process of ours: started, waited for until it is ready, and ended with us.

use crate::http;
use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);

/// A running server on 127.0.0.1. Dropping it ends the process.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts `command`, which is to listen on `port`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command, port: u16) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("{program} could not be started"))?;
        Ok(Self { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) })
    }

    /// Waits until `path` is answered with 200.
    ///
    /// # Errors
    /// When the server ends, it takes longer than `patience`, or `stop` is set.
    pub fn wait_ready(&mut self, path: &str, patience: Duration, stop: &AtomicBool) -> Result<()> {
        let started = Instant::now();
        while !http::get(self.address, path).is_ok_and(|(status, _)| status == 200) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended before it was ready ({status})");
            }
            if stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            if started.elapsed() > patience {
                bail!("the server was not ready after {} s", patience.as_secs());
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Waits until the server ends by itself or `stop` is set; then asks it to end, and ends it after 10 s.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn run_until(&mut self, stop: &AtomicBool) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if stop.load(Ordering::Relaxed) {
                return self.end();
            }
            std::thread::sleep(TICK);
        }
    }

    /// Asks the server to end, and ends it after 10 s.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn end(&mut self) -> Result<ExitStatus> {
        self.end_within(Duration::from_secs(10))
    }

    /// Asks the server to end, and ends it when its time is over.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn end_within(&mut self, time: Duration) -> Result<ExitStatus> {
        let asked = Instant::now();
        terminate(&self.child);
        while asked.elapsed() < time {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(TICK);
        }
        self.kill()
    }

    /// Ends the server at once, whatever it is at (kill -9).
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// The most memory it has had so far, in bytes.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn peak_memory(&self) -> Result<u64> {
        memory(self.child.id(), "VmHWM:")
    }

    /// The memory it has now, in bytes.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn memory(&self) -> Result<u64> {
        memory(self.child.id(), "VmRSS:")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.end();
        }
    }
}

fn terminate(child: &Child) {
    let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
}

fn memory(pid: u32, field: &str) -> Result<u64> {
    if cfg!(target_os = "macos") {
        // The most so far is not to be had from ps: what it has now.
        let text = crate::sh::read(Command::new("ps").args(["-o", "rss=", "-p", &pid.to_string()]))?;
        return Ok(text.trim().parse::<u64>().context("ps printed no number")? * 1024);
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the server is gone")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).context("no such field in /proc")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// A flag that ctrl-c and SIGTERM set, in place of ending this program.
///
/// # Errors
/// When the system refuses the handler.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// True when nothing listens on `port` of 127.0.0.1.
pub fn port_is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A port that is free now.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!port_is_free(listener.local_addr().unwrap().port()));
    }

    #[test]
    fn a_server_that_ends_early_is_reported() {
        let mut server = Server::start(Command::new("sh").args(["-c", "exit 3"]), free_port().unwrap()).unwrap();
        let error = server.wait_ready("/health", Duration::from_secs(60), &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("ended before it was ready"), "{error}");
    }

    #[test]
    fn a_stop_ends_the_process() {
        let mut server = Server::start(Command::new("sleep").arg("600"), free_port().unwrap()).unwrap();
        assert!(!server.run_until(&AtomicBool::new(true)).unwrap().success());
    }
}
