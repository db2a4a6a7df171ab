//! The models on disk as a person looks at them: what each can do, how large it is in words, and whether it fits on this machine.

use std::sync::Arc;

use hearth_core::fit::{self, Ask, Machine};
use serde::Serialize;
use serde_json::Value;

use crate::capabilities::{self, Capability};
use crate::folder::config_of;
use crate::headers;
use crate::scan::known::Known;
use crate::scan::{ModelEntry, together};

/// Whether a model fits, in short; `hearth fit` says why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelFit {
    /// Whether it fits with the usual context.
    pub fits: bool,
    /// Bytes that it needs with it.
    pub total: u64,
    /// The largest context that fits, in tokens.
    pub largest_context: Option<u64>,
    /// Predicted decode speed in tokens per second, where the memory's bandwidth is known.
    pub tok_s: Option<f64>,
    /// Whether this version of Hearth runs the family.
    pub supported: bool,
    /// Whether this is from the number of weights alone, without the model's files.
    pub estimated: bool,
}

/// A model on disk with all that is shown of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LibraryModel {
    /// What was found.
    #[serde(flatten)]
    pub entry: ModelEntry,
    /// Whether everything is there; `problem` says what is not, or why what is there cannot be loaded.
    pub complete: bool,
    /// What it can be used for.
    pub capabilities: Vec<Capability>,
    /// Whether it fits; `None` where that cannot be worked out.
    pub fit: Option<ModelFit>,
    /// The family, as its makers write it.
    pub family: Option<String>,
    /// Its parameters in short: `135M`, `1.7B`.
    pub size_label: Option<String>,
}

/// Looks a model over: its small files and headers only.
pub fn describe(mut entry: ModelEntry, machine: &Machine) -> LibraryModel {
    /// What it can do, and its sizes, or why they cannot be worked out.
    type Looked = (Vec<Capability>, Result<Arc<fit::Model>, String>);
    static KNOWN: Known<Looked> = Known::new();
    let (capabilities, sizes) = KNOWN.get(&entry.path, || {
        let config = config_of(&entry.path).map(Value::Object).unwrap_or_default();
        let sizes = headers::model(&entry.path).map(|(model, _)| Arc::new(model)).map_err(|e| e.to_string());
        (capabilities::of(&entry.path, &config), sizes)
    });
    // The machine's free memory is another one each time.
    let complete = entry.is_complete();
    let fit = match sizes {
        Ok(model) => complete.then(|| short_fit(&model, machine)),
        Err(why) => {
            entry.problem.get_or_insert(why);
            None
        }
    };
    LibraryModel {
        complete,
        capabilities,
        fit,
        family: entry.model_type.as_deref().map(family),
        size_label: entry.parameters.map(count),
        entry,
    }
}

/// As [`describe`], for a whole list, in its order.
pub fn describe_all(entries: Vec<ModelEntry>, machine: &Machine) -> Vec<LibraryModel> {
    let numbered: Vec<(usize, ModelEntry)> = entries.into_iter().enumerate().collect();
    let mut models = together(numbered, |(number, entry)| Some((number, describe(entry, machine))));
    models.sort_by_key(|(number, _)| *number);
    models.into_iter().map(|(_, model)| model).collect()
}

/// Whether it fits, in short.
pub(crate) fn short_fit(model: &fit::Model, machine: &Machine) -> ModelFit {
    let answer = fit::fit(model, machine, &Ask::default());
    ModelFit {
        fits: answer.fits,
        total: answer.total,
        largest_context: answer.largest_context,
        tok_s: answer.decode_tokens_per_s,
        supported: model.shape.supported,
        estimated: false,
    }
}

/// A `model_type` as people write the family: `Llama`, `Qwen3.5`.
pub fn family(model_type: &str) -> String {
    let stem = model_type.trim_end_matches("_text").trim_end_matches("_moe");
    let known = [
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("mixtral", "Mixtral"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
        ("qwen3_5", "Qwen3.5"),
        ("qwen3_next", "Qwen3-Next"),
        ("smollm3", "SmolLM3"),
        ("gemma3", "Gemma 3"),
        ("gemma3n", "Gemma 3n"),
        ("gemma2", "Gemma 2"),
        ("lfm2", "LFM2"),
        ("phi3", "Phi-3"),
        ("gpt_oss", "gpt-oss"),
        ("deepseek_v3", "DeepSeek V3"),
        ("glm4", "GLM-4"),
        ("bert", "BERT"),
    ];
    known.iter().find(|(name, _)| *name == stem).map_or_else(|| model_type.to_owned(), |(_, shown)| (*shown).to_owned())
}

/// `135M`, `1.7B`.
pub fn count(parameters: u64) -> String {
    let n = parameters as f64;
    match parameters {
        0..1_000_000 => format!("{:.0}k", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0}M", n / 1e6),
        _ => format!("{:.1}B", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_families_for_people() {
        assert_eq!([93_000, 134_515_008, 1_711_376_384].map(count), ["93k", "135M", "1.7B"]);
        assert_eq!(
            ["llama", "gemma3_text", "qwen3_moe", "odd_one"].map(family),
            ["Llama", "Gemma 3", "Qwen3", "odd_one"]
        );
    }
}
