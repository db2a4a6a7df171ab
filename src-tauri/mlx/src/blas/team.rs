//! The threads that share a product. Each takes the next piece until none is left, so that one that the system holds
//! up delays the others by a piece at most.

use super::kernel::{self, Product};
use std::num::NonZero;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Weights of a piece, at least: 64 KB, some ten microseconds.
const PIECE: usize = 16 << 10;
/// Products with fewer weights are not worth a second thread.
const WORTH_SHARING: usize = 64 << 10;
/// A helper that has had nothing to do for this long goes to sleep. The next product comes sooner in a decode step.
const PATIENCE: Duration = Duration::from_micros(400);
/// More threads than this find no more memory bandwidth.
const MOST_HELPERS: usize = 7;

/// Products computed here.
static COMPUTED: AtomicU64 = AtomicU64::new(0);

/// How many products were computed here so far.
#[cfg(test)]
pub(super) fn computed() -> u64 {
    COMPUTED.load(Ordering::Relaxed)
}

/// What the helpers work on.
struct Job {
    product: Product,
    /// Outputs of a piece.
    piece: usize,
}

/// Threads, and the job that they share.
struct Team {
    helpers: Vec<Helper>,
    /// The job of the product that runs; read by a helper only while it is counted in `busy`.
    job: Mutex<()>,
    current: JobCell,
    /// First output of the next piece; at or beyond `end` when there is none.
    next: AtomicUsize,
    /// Odd while a job may be joined; helpers look for a change.
    generation: AtomicU32,
    /// Helpers that may be reading the job.
    busy: AtomicUsize,
}

struct Helper {
    thread: Thread,
    asleep: &'static AtomicU32,
}

/// The job's place. Written only while no helper is busy.
struct JobCell(std::cell::UnsafeCell<Option<Job>>);

// SAFETY: the protocol of `Team`: one writer, which holds the lock and waits until no helper reads.
unsafe impl Sync for JobCell {}
// SAFETY: pointers to memory that the caller of the running product keeps alive until all helpers are done.
unsafe impl Send for Job {}

fn team() -> &'static Team {
    static TEAM: OnceLock<&'static Team> = OnceLock::new();
    TEAM.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        // Helpers wait for the team to be published, which needs all of them: hand it over through a channel each.
        let mut helpers = Vec::new();
        let mut starts = Vec::new();
        for i in 0..(cores - 1).min(MOST_HELPERS) {
            let asleep: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
            let (start, started) = std::sync::mpsc::channel::<&'static Team>();
            let spawned = thread::Builder::new().name(format!("hearth-rows-{i}")).spawn(move || {
                if let Ok(team) = started.recv() {
                    team.help(asleep);
                }
            });
            if let Ok(handle) = spawned {
                helpers.push(Helper { thread: handle.thread().clone(), asleep });
                starts.push(start);
            }
        }
        let team: &'static Team = Box::leak(Box::new(Team {
            helpers,
            job: Mutex::new(()),
            current: JobCell(std::cell::UnsafeCell::new(None)),
            next: AtomicUsize::new(usize::MAX),
            generation: AtomicU32::new(0),
            busy: AtomicUsize::new(0),
        }));
        for start in starts {
            let _ = start.send(team);
        }
        team
    })
}

/// Computes a product, with help where it is large and the helpers are free.
///
/// # Safety
/// The product's pointers are valid for its sizes, and the CPU has what the kernels need.
pub(super) unsafe fn compute(product: Product) {
    COMPUTED.fetch_add(1, Ordering::Relaxed);
    if product.outputs * product.depth >= WORTH_SHARING {
        let team = team();
        if !team.helpers.is_empty() {
            match team.job.try_lock() {
                // SAFETY: the caller's promise.
                Ok(_held) => return unsafe { team.share(product) },
                Err(TryLockError::Poisoned(held)) => {
                    let _held = held.into_inner();
                    // SAFETY: the caller's promise.
                    return unsafe { team.share(product) };
                }
                // Another thread's product has the helpers.
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { kernel::compute(&product, 0, product.outputs) }
}

impl Team {
    /// # Safety
    /// As [`compute`]; the caller holds the lock.
    unsafe fn share(&self, product: Product) {
        // Whole cache lines of C, so that no two threads write to one.
        let piece = (PIECE / product.depth).clamp(16, product.outputs.max(16)).next_multiple_of(16);
        let end = product.outputs;
        // SAFETY: the lock is held, and the last product waited until no helper reads.
        unsafe { *self.current.0.get() = Some(Job { product, piece }) };
        self.next.store(0, Ordering::Relaxed);
        // Everything above is visible to whoever sees the new generation.
        self.generation.fetch_add(1, Ordering::SeqCst);
        for helper in &self.helpers {
            if helper.asleep.load(Ordering::SeqCst) == 1 {
                helper.thread.unpark();
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.work(&product, piece, end) };
        // No piece is left. Close the job, then wait for those who still compute one.
        self.generation.fetch_add(1, Ordering::SeqCst);
        let mut turns = 0u32;
        while self.busy.load(Ordering::SeqCst) != 0 {
            turns += 1;
            if turns < 2000 { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }

    /// Takes pieces until none is left.
    ///
    /// # Safety
    /// As [`compute`].
    unsafe fn work(&self, product: &Product, piece: usize, end: usize) {
        loop {
            let from = self.next.fetch_add(piece, Ordering::Relaxed);
            if from >= end {
                return;
            }
            // SAFETY: the caller's promise; nobody else takes this piece.
            unsafe { kernel::compute(product, from, (from + piece).min(end)) };
        }
    }

    /// A helper's life.
    fn help(&self, asleep: &AtomicU32) {
        let mut seen = 0;
        loop {
            let open = self.wait_for(seen, asleep);
            seen = open;
            self.busy.fetch_add(1, Ordering::SeqCst);
            // Counted as busy first, looked second: the owner closes first and counts second.
            if self.generation.load(Ordering::SeqCst) == open {
                // SAFETY: the job is open and this helper is counted, so that nobody writes to it.
                let job = unsafe { &*self.current.0.get() };
                if let Some(Job { product, piece }) = job {
                    // SAFETY: the owner waits for this helper before its pointers go.
                    unsafe { self.work(product, *piece, product.outputs) };
                }
            }
            self.busy.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits for a job that is open and was not seen: awake for a while, then asleep.
    fn wait_for(&self, seen: u32, asleep: &AtomicU32) -> u32 {
        let is_new = |generation: u32| generation % 2 == 1 && generation != seen;
        let since = Instant::now();
        let mut turns = 0u32;
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            if is_new(generation) {
                return generation;
            }
            turns += 1;
            if !turns.is_multiple_of(64) {
                std::hint::spin_loop();
                continue;
            }
            if since.elapsed() < PATIENCE {
                // Whoever else has work may have this core.
                thread::yield_now();
                continue;
            }
            asleep.store(1, Ordering::SeqCst);
            // Said first, looked second: the owner changes the generation first and looks second.
            while !is_new(self.generation.load(Ordering::SeqCst)) {
                thread::park();
            }
            asleep.store(0, Ordering::SeqCst);
        }
    }
}
