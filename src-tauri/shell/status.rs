//! What Hearth is doing, in the few words and the one picture that a menu bar has room for.

use hearth_core::stats::{GuardLevel, Health, PressureLevel, Stats};

/// The picture in the menu bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Picture {
    /// Nothing runs.
    Idle,
    /// The server starts, or a model is being loaded.
    Loading,
    /// At least one request is answered.
    Generating,
    /// Memory is tight, or something is wrong.
    Pressure,
}

/// Hearth at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The picture.
    pub picture: Picture,
    /// The model in memory, by its id.
    pub model: Option<String>,
    /// The model that is being loaded, by its id.
    pub loading: Option<String>,
    /// The numbers of the running requests.
    pub rows: Vec<u64>,
    /// One short sentence without a full stop.
    pub words: String,
}

impl Status {
    /// Before there is an engine.
    pub fn starting() -> Self {
        Status { picture: Picture::Loading, ..Status::quiet("Starting") }
    }

    /// Nothing runs and nothing will.
    pub fn failed(why: &str) -> Self {
        Status { picture: Picture::Pressure, ..Status::quiet(why) }
    }

    /// Everything is being ended.
    pub fn ending() -> Self {
        Status::quiet("Quitting")
    }

    /// Another process of this user serves from the same home.
    pub fn elsewhere(pid: u32) -> Self {
        Status::quiet(&format!("Another Hearth serves (process {pid})"))
    }

    fn quiet(words: &str) -> Self {
        Status { picture: Picture::Idle, model: None, loading: None, rows: Vec::new(), words: words.to_owned() }
    }

    /// What the engine says of itself.
    pub fn of(health: &Health, stats: &Stats) -> Self {
        let rows: Vec<u64> = stats.rows.iter().map(|row| row.id).collect();
        let busy = !rows.is_empty() || stats.waiting > 0;
        let guard = &stats.memory.guard;
        let tight = guard.level == GuardLevel::Hard
            || matches!(guard.pressure, PressureLevel::Warning | PressureLevel::Critical);
        let (model, loading, words) = match health {
            Health::Ready { model } => (Some(model.clone()), None, ready(model, stats)),
            Health::Loading { model, percent } => {
                (None, Some(model.clone()), format!("Loading {}, {percent} %", short(model)))
            }
            Health::Empty => (None, None, "No model is loaded".to_owned()),
            Health::Failed { message } => (None, None, message.clone()),
        };
        let picture = match health {
            Health::Failed { .. } => Picture::Pressure,
            _ if tight => Picture::Pressure,
            Health::Loading { .. } => Picture::Loading,
            _ if busy => Picture::Generating,
            _ => Picture::Idle,
        };
        let words = if tight { format!("{words}; memory is tight") } else { words };
        Status { picture, model, loading, rows, words }
    }

    /// Whether the machine should stay awake for it.
    pub fn is_working(&self) -> bool {
        self.loading.is_some() || !self.rows.is_empty()
    }

    /// What the icon says when the pointer rests on it.
    pub fn tooltip(&self) -> String {
        format!("Hearth: {}", self.words)
    }
}

fn ready(model: &str, stats: &Stats) -> String {
    let name = short(model);
    match (stats.rows.len(), stats.waiting) {
        (0, 0) => format!("{name} is ready"),
        (rows, 0) => {
            let speed: f64 = stats.rows.iter().map(|row| row.tokens_per_s).sum();
            let count = if rows == 1 { "1 answer".to_owned() } else { format!("{rows} answers") };
            if speed > 0.0 { format!("{name}: {count}, {speed:.1} tok/s") } else { format!("{name}: {count}") }
        }
        (rows, waiting) => format!("{name}: {rows} running, {waiting} waiting"),
    }
}

/// A model's name without its organisation or folder.
pub fn short(id: &str) -> &str {
    id.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{GuardStats, MemoryStats, RowStats};

    fn stats(rows: usize, waiting: usize) -> Stats {
        let row = |n| RowStats { id: n as u64, tokens_per_s: 10.5, ..RowStats::default() };
        Stats { rows: (1..=rows).map(row).collect(), waiting, ..Stats::default() }
    }

    fn ready() -> Health {
        Health::Ready { model: "org/tiny".into() }
    }

    #[test]
    fn each_state_has_its_picture_and_its_words() {
        let loading = Health::Loading { model: "org/tiny".into(), percent: 40 };
        let failed = Health::Failed { message: "model.safetensors is cut short".into() };
        for (health, stats, picture, words) in [
            (Health::Empty, stats(0, 0), Picture::Idle, "No model is loaded"),
            (ready(), stats(0, 0), Picture::Idle, "tiny is ready"),
            (ready(), stats(1, 0), Picture::Generating, "tiny: 1 answer, 10.5 tok/s"),
            (ready(), stats(2, 0), Picture::Generating, "tiny: 2 answers, 21.0 tok/s"),
            (ready(), stats(8, 3), Picture::Generating, "tiny: 8 running, 3 waiting"),
            (loading, stats(0, 1), Picture::Loading, "Loading tiny, 40 %"),
            (failed, stats(0, 0), Picture::Pressure, "model.safetensors is cut short"),
        ] {
            let status = Status::of(&health, &stats);
            assert_eq!((status.picture, status.words.as_str()), (picture, words));
            assert_eq!(status.tooltip(), format!("Hearth: {words}"));
        }
    }

    #[test]
    fn tight_memory_goes_before_everything_but_a_failure() {
        let guard = GuardStats { pressure: PressureLevel::Warning, ..GuardStats::default() };
        let memory = MemoryStats { guard, ..MemoryStats::default() };
        let status = Status::of(&ready(), &Stats { memory, ..stats(1, 0) });
        assert_eq!(status.picture, Picture::Pressure);
        assert!(status.words.ends_with("; memory is tight") && status.is_working(), "{status:?}");
        let soft = GuardStats { level: GuardLevel::Soft, ..GuardStats::default() };
        let memory = MemoryStats { guard: soft, ..MemoryStats::default() };
        assert_eq!(Status::of(&ready(), &Stats { memory, ..stats(0, 0) }).picture, Picture::Idle);
    }

    #[test]
    fn only_work_keeps_the_machine_awake() {
        assert!(!Status::starting().is_working() && !Status::of(&ready(), &stats(0, 0)).is_working());
        assert!(Status::of(&ready(), &stats(1, 0)).is_working());
        assert!(Status::of(&Health::Loading { model: "m".into(), percent: 0 }, &stats(0, 0)).is_working());
    }

    #[test]
    fn names_are_short() {
        assert_eq!([short("org/m"), short("/a/b/m"), short("m"), short("m/")], ["m", "m", "m", "m/"]);
    }
}
