//! A short list of models for MLX that are worth a look, by size and purpose, built into the program; and what the hub says of one
//! before anything is downloaded.
//!
//! The list is a data file with a version. What nobody has looked up is not in it: the hub is asked instead.

use hearth_core::config::is_supported;
use hearth_core::fit::memory::{default_budget, reserve_of};
use hearth_core::fit::{CHUNK, DEFAULT_CONTEXT, Device, Machine};
use serde::{Deserialize, Serialize};

use crate::LibraryError;
use crate::capabilities::Capability;
use crate::download::needed;
use crate::hub::{Hub, HubError, Repo, Revision};
use crate::shelf::{ModelFit, short_fit};
use crate::summary::Summary;

/// The file, as it was when this program was built.
const BUILT_IN: &str = include_str!("../data/catalogue.json");

/// The list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Catalogue {
    /// Of this form.
    pub version: u32,
    /// When it was last looked through.
    pub date: String,
    /// The models, small ones first.
    pub models: Vec<CatalogueModel>,
}

/// One model of the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CatalogueModel {
    /// Its repository.
    pub repo: String,
    /// What people call it.
    pub name: String,
    /// `model_type`.
    pub family: String,
    /// Number of weights.
    pub parameters: Option<u64>,
    /// Weights that take part in one token, where not all do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<u64>,
    /// How the weights are stored.
    pub quantization: String,
    /// Bytes to download, as listed publicly for `commit`.
    pub bytes: Option<u64>,
    /// The commit that `bytes` is of.
    pub commit: Option<String>,
    /// Longest context in tokens.
    pub context: Option<u64>,
    /// What it can be used for.
    pub capabilities: Vec<Capability>,
    /// What it is listed for: `try`, `chat`, `agents`, `code`, `vision`, `embeddings`.
    pub purpose: String,
    /// Where this is known from, and since when.
    pub source: String,
}

/// What models of up to some number of weights have.
struct Usual {
    below: u64,
    /// Width of the residual stream.
    hidden: u64,
    /// Keys and values of a token.
    kv_floats: u64,
}

/// By the public configs of SmolLM2 135M and 360M, Qwen3 0.6B to 32B, Llama 3.1 8B and 3.3 70B, read November 2026: the most
/// that one of that size has. Models with windows or states of a fixed size have less.
const USUAL: [Usual; 7] = [
    Usual { below: 400_000_000, hidden: 960, kv_floats: 20_480 },
    Usual { below: 1_100_000_000, hidden: 1152, kv_floats: 57_344 },
    Usual { below: 2_500_000_000, hidden: 2048, kv_floats: 57_344 },
    Usual { below: 6_000_000_000, hidden: 3072, kv_floats: 73_728 },
    Usual { below: 10_000_000_000, hidden: 4096, kv_floats: 73_728 },
    Usual { below: 20_000_000_000, hidden: 5120, kv_floats: 81_920 },
    Usual { below: 50_000_000_000, hidden: 5120, kv_floats: 131_072 },
];
const LARGEST: Usual = Usual { below: u64::MAX, hidden: 8192, kv_floats: 163_840 };

/// What the hub says of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preview {
    /// Its repository, by its name now.
    pub repo: String,
    /// The commit.
    pub commit: String,
    /// Whether its terms have to be accepted first.
    pub gated: bool,
    /// Files that a model needs.
    pub files: usize,
    /// Their bytes, where the hub says them all.
    pub bytes: Option<u64>,
    /// Whether it fits on this machine; `None` where that cannot be worked out, which `note` explains.
    pub fit: Option<ModelFit>,
    /// Why there is no `fit`.
    pub note: Option<String>,
}

impl Catalogue {
    /// The built-in list.
    ///
    /// # Errors
    /// [`LibraryError::Json`] if the program was built with a damaged one.
    pub fn built_in() -> Result<Self, LibraryError> {
        let path = std::path::Path::new("the built-in catalogue");
        crate::json::parse(path, BUILT_IN.as_bytes(), "a catalogue")
    }
}

impl CatalogueModel {
    /// How large it is, in words that sort it: `tiny`, `small`, `medium`, `large`, `huge`.
    pub fn size_class(&self) -> &'static str {
        // Where the number of weights is not known, the bytes of 4-bit ones stand in for it.
        match self.parameters.or(self.bytes.map(|b| b * 7 / 4)) {
            Some(0..1_000_000_000) => "tiny",
            Some(1_000_000_000..5_000_000_000) => "small",
            Some(5_000_000_000..16_000_000_000) => "medium",
            Some(16_000_000_000..40_000_000_000) => "large",
            Some(_) => "huge",
            None => class_by_name(&self.name),
        }
    }

    /// Whether it fits on `machine`, as far as the list says it: bytes or number of weights, and for the rest what models
    /// of that size have. `None` where neither is known. The hub's [`preview`] knows better.
    pub fn estimate(&self, machine: &Machine) -> Option<ModelFit> {
        let parameters = self.parameters.or(billions(&self.name).map(|b| (b * 1e9) as u64));
        let bits = match self.quantization.as_str() {
            // With the scales and biases of groups of 64, and of 32 in mxfp4.
            "4-bit" => 4.5,
            "8-bit" => 8.5,
            "mxfp4" => 4.25,
            _ => 16.0,
        };
        let weights = self.bytes.or(parameters.map(|n| (n as f64 * bits / 8.0) as u64))?;
        let size = parameters.unwrap_or((weights as f64 * 8.0 / bits) as u64);
        let shape = USUAL.iter().find(|shape| size < shape.below).unwrap_or(&LARGEST);
        let element = if machine.device == Device::Cpu { 4 } else { 2 };
        let kv = shape.kv_floats * element;
        // Residual stream, one attention and one MLP, and half of that once more in the allocator.
        let transient = shape.hidden * 26 * element * CHUNK * 3 / 2;
        let fixed = weights + transient + reserve_of(machine);
        let most = self.context.unwrap_or(DEFAULT_CONTEXT);
        let total = fixed + kv * most.min(DEFAULT_CONTEXT);
        let budget = default_budget(machine);
        let largest = (budget.saturating_sub(fixed) / kv).min(most);
        let share = match (self.active_parameters, parameters) {
            (Some(active), Some(all)) if all > 0 => (active as f64 / all as f64).min(1.0),
            _ => 1.0,
        };
        let read = weights as f64 * share + (kv * most.min(DEFAULT_CONTEXT)) as f64;
        Some(ModelFit {
            fits: total <= budget,
            total,
            largest_context: Some(largest).filter(|&n| n > 0),
            tok_s: machine.bandwidth.map(|bandwidth| bandwidth * machine.efficiency / read),
            supported: is_supported(&self.family),
            estimated: true,
        })
    }
}

/// Billions of weights by the number in a name, such as `Qwen3.5 27B`.
fn billions(name: &str) -> Option<f64> {
    name.split([' ', '-']).find_map(|word| word.strip_suffix('B')?.parse().ok())
}

/// The class by the number in a name.
fn class_by_name(name: &str) -> &'static str {
    match billions(name) {
        Some(b) if b < 1.0 => "tiny",
        Some(b) if b < 5.0 => "small",
        Some(b) if b < 16.0 => "medium",
        Some(b) if b < 40.0 => "large",
        Some(_) => "huge",
        None => "medium",
    }
}

/// Asks the hub about a model: how much there is to download, and whether it fits on `machine`. Reads headers only, by range requests.
///
/// # Errors
/// [`LibraryError::Hub`].
pub async fn preview(hub: &Hub, repo: &Repo, revision: &Revision, machine: &Machine) -> Result<Preview, LibraryError> {
    let info = hub.info(repo, revision).await?;
    let files = needed(&info.repo, &info.files)?;
    let bytes = files.iter().map(|f| f.size).sum::<Option<u64>>();
    let (fit, note) = match hub.sizes(&info, &files).await {
        Ok(model) => (Some(short_fit(&model, machine)), None),
        Err(e) => (None, Some(e.to_string())),
    };
    let commit = info.commit.clone();
    Ok(Preview { repo: info.repo.to_string(), commit, gated: info.gated, files: files.len(), bytes, fit, note })
}

/// The list with what the hub says of each model on `date` (such as `2026-11-29`): bytes, commit, family and context. Models that the hub
/// does not give any more are left out; the second list says which, and why.
///
/// # Errors
/// When the hub cannot be reached at all.
pub async fn refreshed(hub: &Hub, list: &Catalogue, date: &str) -> Result<(Catalogue, Vec<String>), LibraryError> {
    let (mut models, mut gone) = (Vec::new(), Vec::new());
    for model in &list.models {
        match looked_up(hub, model, date).await {
            Ok(model) => models.push(model),
            Err(e @ LibraryError::Hub(HubError::Unreachable { .. } | HubError::Offline)) => return Err(e),
            Err(e) => gone.push(format!("{}: {e}", model.repo)),
        }
    }
    Ok((Catalogue { version: list.version, date: date.to_owned(), models }, gone))
}

async fn looked_up(hub: &Hub, model: &CatalogueModel, date: &str) -> Result<CatalogueModel, LibraryError> {
    const MOST: u64 = 8 << 20;
    let info = hub.info(&Repo::parse(&model.repo)?, &Revision::main()).await?;
    let files = needed(&info.repo, &info.files)?;
    let config = hub.bytes(&info.repo, &info.commit, "config.json", 0, MOST).await?;
    let path = std::path::PathBuf::from(format!("{}/config.json", info.repo));
    let config = Summary::of(&crate::json::parse(&path, &config, "a JSON object")?);
    Ok(CatalogueModel {
        repo: info.repo.to_string(),
        bytes: files.iter().map(|f| f.size).sum(),
        commit: Some(info.commit.clone()),
        family: config.model_type.unwrap_or_else(|| model.family.clone()),
        context: config.context.or(model.context),
        source: format!("the hub's listing of this commit, {date}"),
        ..model.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::fit::Allowance;
    use std::collections::BTreeSet;

    /// A Mac with this much memory.
    fn mac(gib: u64) -> Machine {
        Machine {
            chip: None,
            device: Device::Gpu,
            ram: gib << 30,
            available: None,
            working_set: None,
            bandwidth: Some(100e9),
            efficiency: 0.7,
            allowance: Allowance::default(),
        }
    }

    #[test]
    fn what_fits_can_be_told_from_the_list_alone() {
        let list = Catalogue::built_in().unwrap();
        let fits = |gib, part: &str| {
            let model = list.models.iter().find(|m| m.repo.contains(part)).unwrap();
            model.estimate(&mac(gib)).unwrap()
        };
        assert!(
            list.models.iter().filter(|m| m.bytes.or(m.parameters).is_some()).all(|m| m.estimate(&mac(8)).is_some())
        );
        for (gib, part, expected) in [
            (8, "SmolLM2-135M", true),
            (8, "Qwen3-4B-4bit", true),
            (8, "Qwen3-8B-4bit", false),
            (16, "Qwen3-8B-4bit", true),
            (16, "Qwen2.5-Coder-32B", false),
            (32, "Qwen3-14B", true),
            (64, "Llama-3.3-70B", true),
            (32, "Llama-3.3-70B", false),
        ] {
            let fit = fits(gib, part);
            assert_eq!(fit.fits, expected, "{part} in {gib} GiB: {fit:?}");
            assert!(fit.estimated);
        }
        let (large, small) = (fits(16, "Qwen3-14B"), fits(16, "Qwen3-4B-4bit"));
        assert!(large.largest_context < small.largest_context && large.tok_s < small.tok_s, "{large:?} {small:?}");
        assert!(fits(64, "Coder-30B-A3B").tok_s > fits(64, "Coder-32B").tok_s, "few weights are active");
        assert!(fits(16, "Llama-3.2-3B").supported && !fits(64, "gpt-oss").supported);
    }

    #[test]
    fn the_built_in_list_is_sound() {
        let list = Catalogue::built_in().unwrap();
        assert_eq!(list.version, 1);
        assert!((24..=60).contains(&list.models.len()), "{}", list.models.len());
        let mut names = BTreeSet::new();
        for model in &list.models {
            Repo::parse(&model.repo).unwrap();
            assert!(names.insert(&model.repo), "{} is there twice", model.repo);
            assert!(!model.capabilities.is_empty() && model.source.contains("2026"), "{}", model.repo);
            assert!(["try", "chat", "agents", "code", "vision", "embeddings"].contains(&model.purpose.as_str()));
            let bits = |q: &str| match q {
                "4-bit" | "mxfp4" => 4.0,
                "8-bit" => 8.0,
                _ => 16.0,
            };
            // Bytes that are listed have to be possible for the weights: scales and tokenizer come on top.
            if let (Some(bytes), Some(parameters)) = (model.bytes, model.parameters) {
                let least = parameters as f64 * bits(&model.quantization) / 8.0;
                assert!(
                    (least * 0.95..least * 1.6 + 6e7).contains(&(bytes as f64)),
                    "{}: {bytes} for {least}",
                    model.repo
                );
            }
            if let Some(commit) = &model.commit {
                assert!(commit.len() == 40 && model.bytes.is_some(), "{}", model.repo);
            }
        }
        let classes: BTreeSet<&str> = list.models.iter().map(CatalogueModel::size_class).collect();
        assert_eq!(classes, BTreeSet::from(["huge", "large", "medium", "small", "tiny"]));
    }
}
