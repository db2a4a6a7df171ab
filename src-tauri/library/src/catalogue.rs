//! A short list of models for MLX that are worth a look, by size and purpose, built into the program; and what the hub says of one
//! before anything is downloaded.
//!
//! The list is a data file with a version. What nobody has looked up is not in it: the hub is asked instead.

use hearth_core::fit::Machine;
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
}

/// The class by the number in a name, such as `Qwen3.5 27B`.
fn class_by_name(name: &str) -> &'static str {
    let billions = name.split([' ', '-']).find_map(|word| word.strip_suffix('B')?.parse::<f64>().ok());
    match billions {
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
    use std::collections::BTreeSet;

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
