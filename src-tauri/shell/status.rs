//! What Hearth is doing, in the few words and the one picture that a menu bar has room for.

use hearth_core::stats::{GuardLevel, Health, ModelStats, PressureLevel, RowStats, Stats};
use hearth_host::words::counted;

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

/// A model in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Its id.
    pub id: String,
    /// Its name, short where that leaves no doubt.
    pub name: String,
    /// What it does: `ready`, or its answers.
    pub words: String,
    /// The numbers of its answers that run.
    pub rows: Vec<u64>,
    /// Whether requests for it wait or run: then it cannot leave memory.
    pub busy: bool,
}

/// Hearth at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The picture.
    pub picture: Picture,
    /// The models in memory, the one that was used last first.
    pub models: Vec<Loaded>,
    /// The model that is being loaded, by its id.
    pub loading: Option<String>,
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

    /// Everything is being ended, to begin anew.
    pub fn restarting() -> Self {
        Status { picture: Picture::Loading, ..Status::quiet("Restarting") }
    }

    /// Another process of this user serves from the same home.
    pub fn elsewhere(pid: u32) -> Self {
        Status::quiet(&format!("Another Hearth serves (process {pid})"))
    }

    fn quiet(words: &str) -> Self {
        Status { picture: Picture::Idle, models: Vec::new(), loading: None, words: words.to_owned() }
    }

    /// What the engine says of itself.
    pub fn of(health: &Health, stats: &Stats) -> Self {
        let models: Vec<Loaded> = stats.models.iter().map(|model| loaded(model, stats)).collect();
        let guard = &stats.memory.guard;
        let tight = guard.level == GuardLevel::Hard
            || matches!(guard.pressure, PressureLevel::Warning | PressureLevel::Critical);
        let (loading, words) = match health {
            Health::Loading { model, percent } => {
                (Some(model.clone()), format!("Loading {}, {percent} %", name(model, stats)))
            }
            Health::Failed { message } => (None, message.clone()),
            Health::Ready { .. } | Health::Empty => (None, together(&models, stats)),
        };
        let picture = match health {
            Health::Failed { .. } => Picture::Pressure,
            _ if tight => Picture::Pressure,
            Health::Loading { .. } => Picture::Loading,
            _ if !stats.rows.is_empty() || stats.waiting > 0 => Picture::Generating,
            _ => Picture::Idle,
        };
        let words = if tight { format!("{words}; memory is tight") } else { words };
        Status { picture, models, loading, words }
    }

    /// Whether the machine should stay awake for it.
    pub fn is_working(&self) -> bool {
        self.loading.is_some() || self.models.iter().any(|model| !model.rows.is_empty())
    }

    /// The answers of a model that run.
    pub fn rows_of(&self, id: &str) -> Vec<u64> {
        self.models.iter().filter(|model| model.id == id).flat_map(|model| model.rows.clone()).collect()
    }

    /// What the icon says when the pointer rests on it.
    pub fn tooltip(&self) -> String {
        format!("Hearth: {}", self.words)
    }
}

fn loaded(model: &ModelStats, stats: &Stats) -> Loaded {
    let rows: Vec<&RowStats> = stats.rows.iter().filter(|row| row.model == model.id).collect();
    let waiting = model.requests.saturating_sub(rows.len());
    Loaded {
        id: model.id.clone(),
        name: name(&model.id, stats).to_owned(),
        words: answers(&rows, waiting),
        rows: rows.iter().map(|row| row.id).collect(),
        busy: model.requests > 0,
    }
}

/// What runs and waits, with the speed of all that runs.
fn answers(rows: &[&RowStats], waiting: usize) -> String {
    match (rows.len(), waiting) {
        (0, 0) => "ready".to_owned(),
        (0, waiting) => format!("{waiting} waiting"),
        (rows, waiting) if waiting > 0 => format!("{rows} running, {waiting} waiting"),
        (count, _) => {
            let speed: f64 = rows.iter().map(|row| row.tokens_per_s).sum();
            let count = counted(count as u64, "answer", "answers");
            if speed > 0.0 { format!("{count}, {speed:.1} tok/s") } else { count }
        }
    }
}

/// All models in one sentence.
fn together(models: &[Loaded], stats: &Stats) -> String {
    let busy: Vec<&Loaded> = models.iter().filter(|model| model.busy || !model.rows.is_empty()).collect();
    match (models, &busy[..]) {
        ([], _) => "No model is loaded".to_owned(),
        ([one], []) => format!("{} is ready", one.name),
        ([one, other], []) => format!("{} and {} are ready", one.name, other.name),
        ([one, rest @ ..], []) => format!("{} and {} more are ready", one.name, rest.len()),
        (_, [one]) => format!("{}: {}", one.name, one.words),
        (_, several) => {
            let rows: Vec<&RowStats> = stats.rows.iter().collect();
            format!("{} models: {}", several.len(), answers(&rows, stats.waiting))
        }
    }
}

/// A model's name without its organisation or folder, where no other one in memory has the same.
fn name<'a>(id: &'a str, stats: &Stats) -> &'a str {
    let name = short(id);
    let others = stats.models.iter().filter(|model| model.id != id);
    if others.map(|model| short(&model.id)).any(|other| other == name) { id } else { name }
}

fn short(id: &str) -> &str {
    id.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{GuardStats, MemoryStats};

    /// Models in memory, each with so many answers that run and requests that wait.
    fn stats(models: &[(&str, usize, usize)]) -> Stats {
        let row = |id, model: &str| RowStats { id, tokens_per_s: 10.5, model: model.into(), ..RowStats::default() };
        let rows = models.iter().flat_map(|(id, rows, _)| vec![*id; *rows]);
        let model = |(id, rows, waiting): &(&str, usize, usize)| ModelStats {
            id: (*id).into(),
            requests: rows + waiting,
            ..ModelStats::default()
        };
        Stats {
            rows: (1..).zip(rows).map(|(n, id)| row(n, id)).collect(),
            waiting: models.iter().map(|(_, _, waiting)| waiting).sum(),
            models: models.iter().map(model).collect(),
            ..Stats::default()
        }
    }

    fn ready() -> Health {
        Health::Ready { model: "org/tiny".into() }
    }

    #[test]
    fn each_state_has_its_picture_and_its_words() {
        let loading = Health::Loading { model: "org/tiny".into(), percent: 40 };
        let failed = Health::Failed { message: "model.safetensors is cut short".into() };
        for (health, models, picture, words) in [
            (Health::Empty, &[][..], Picture::Idle, "No model is loaded"),
            (ready(), &[("org/tiny", 0, 0)], Picture::Idle, "tiny is ready"),
            (ready(), &[("org/tiny", 1, 0)], Picture::Generating, "tiny: 1 answer, 10.5 tok/s"),
            (ready(), &[("org/tiny", 2, 0)], Picture::Generating, "tiny: 2 answers, 21.0 tok/s"),
            (ready(), &[("org/tiny", 8, 3)], Picture::Generating, "tiny: 8 running, 3 waiting"),
            (ready(), &[("org/tiny", 0, 0), ("b", 0, 0)], Picture::Idle, "tiny and b are ready"),
            (ready(), &[("a", 0, 0), ("b", 0, 0), ("c", 0, 0)], Picture::Idle, "a and 2 more are ready"),
            (ready(), &[("x/a", 0, 0), ("y/a", 1, 0)], Picture::Generating, "y/a: 1 answer, 10.5 tok/s"),
            (ready(), &[("a", 1, 0), ("b", 2, 0)], Picture::Generating, "2 models: 3 answers, 31.5 tok/s"),
            (loading.clone(), &[], Picture::Loading, "Loading tiny, 40 %"),
            (loading, &[("b", 1, 0)], Picture::Loading, "Loading tiny, 40 %"),
            (failed, &[], Picture::Pressure, "model.safetensors is cut short"),
        ] {
            let status = Status::of(&health, &stats(models));
            assert_eq!((status.picture, status.words.as_str()), (picture, words));
            assert_eq!(status.tooltip(), format!("Hearth: {words}"));
        }
    }

    #[test]
    fn each_model_has_its_own_words_and_answers() {
        let status = Status::of(&ready(), &stats(&[("org/a", 2, 0), ("b", 0, 0), ("c", 0, 1)]));
        let said: Vec<(&str, &str, bool)> =
            status.models.iter().map(|m| (m.name.as_str(), m.words.as_str(), m.busy)).collect();
        assert_eq!(said, [("a", "2 answers, 21.0 tok/s", true), ("b", "ready", false), ("c", "1 waiting", true)]);
        assert_eq!((status.rows_of("org/a"), status.rows_of("b")), (vec![1, 2], vec![]));
    }

    #[test]
    fn tight_memory_goes_before_everything_but_a_failure() {
        let guard = GuardStats { pressure: PressureLevel::Warning, ..GuardStats::default() };
        let memory = MemoryStats { guard, ..MemoryStats::default() };
        let status = Status::of(&ready(), &Stats { memory, ..stats(&[("org/tiny", 1, 0)]) });
        assert_eq!(status.picture, Picture::Pressure);
        assert!(status.words.ends_with("; memory is tight") && status.is_working(), "{status:?}");
        let soft = GuardStats { level: GuardLevel::Soft, ..GuardStats::default() };
        let memory = MemoryStats { guard: soft, ..MemoryStats::default() };
        assert_eq!(Status::of(&ready(), &Stats { memory, ..stats(&[]) }).picture, Picture::Idle);
    }

    #[test]
    fn only_work_keeps_the_machine_awake() {
        assert!(!Status::starting().is_working() && !Status::of(&ready(), &stats(&[("m", 0, 0)])).is_working());
        assert!(Status::of(&ready(), &stats(&[("m", 1, 0)])).is_working());
        assert!(Status::of(&Health::Loading { model: "m".into(), percent: 0 }, &stats(&[])).is_working());
    }

    #[test]
    fn names_are_short() {
        assert_eq!([short("org/m"), short("/a/b/m"), short("m"), short("m/")], ["m", "m", "m", "m/"]);
    }
}
