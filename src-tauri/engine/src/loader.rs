//! From a folder to a model that can answer: config, weights, tokenizer and templates, each checked against the
//! others. Nothing half-loaded stays behind: an error drops everything that was read.

use crate::disk::Namespace;
use crate::error::{Error, Result};
use crate::models::{self, Model};
use crate::namespace;
use crate::weights::{Progress, Weights};
use hearth_core::config::{ModelConfig, read_file, read_json, token_ids};
use hearth_core::kv_policy::{Asked, GROUP, KvPolicy};
use hearth_core::layout::{CacheLayout, LayerLayout};
use hearth_core::tokenizer::Tokenizer;
use hearth_core::{CoreError, ServedModel};
use hearth_mlx::Device;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A model in memory, on the thread that loaded it.
pub struct Loaded {
    /// The network.
    pub model: Box<dyn Model>,
    /// What its rows keep.
    pub layout: CacheLayout,
    /// What requests need to know of it.
    pub served: Arc<ServedModel>,
    /// Bytes of its weights in memory.
    pub weight_bytes: u64,
    /// Ids that XTC never drops: end of sequence and newline.
    pub xtc_exempt: Vec<u32>,
    /// Whose state its rows compute.
    pub namespace: Namespace,
    /// Bits of each layer's keys and values, where they are quantized.
    pub kv_bits: Vec<Option<u8>>,
}

/// What may be asked of a load.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Limits the context below what the config allows, in tokens.
    pub context: Option<usize>,
    /// How keys and values are kept.
    pub kv: Asked,
}

/// How the engine gets its models. The real one is [`load`]; tests put faulty ones in its place.
pub type Loader = Box<dyn Fn(&Path, &str, LoadOptions, Progress<'_>) -> Result<Loaded> + Send>;

/// Loads the model in this folder.
///
/// # Errors
/// [`CoreError`] naming the file, what was expected and what was found.
pub fn load(dir: &Path, id: &str, options: LoadOptions, progress: Progress<'_>) -> Result<Loaded> {
    load_for(hearth_mlx::device()?, dir, id, options, progress)
}

/// [`load`], laid out for a device of this kind whatever the real one is: a CPU can run a GPU's layout, slowly.
///
/// # Errors
/// As [`load`].
pub fn load_for(device: Device, dir: &Path, id: &str, options: LoadOptions, progress: Progress<'_>) -> Result<Loaded> {
    let folder = hearth_library::folder::open(dir).map_err(|e| CoreError::Folder(e.to_string()))?;
    let config_file = dir.join("config.json");
    let config = ModelConfig::read(&config_file)?;
    let layout = config.cache_layout();
    let policy = KvPolicy::for_model(dir, layout.layers.len(), &options.kv)?;
    let namespace = namespace::of_model(&folder, device, &policy)?;
    // The tokenizer takes as long to parse as a small model's weights to load: do both at once.
    let (served, model, weight_bytes) = std::thread::scope(|scope| {
        let texts = scope.spawn(|| served(dir, id, options.context, &config));
        let mut weights = Weights::new(&folder, config.quantization.clone(), device, progress);
        let model = models::load(&config, &mut weights);
        let served = texts.join().unwrap_or_else(|_| Err(broken_tokenizer(dir)));
        Ok::<_, Error>((served?, model?, weights.kept()))
    })?;
    hearth_mlx::clear_cache()?;
    let newline = served.tokenizer.encode("\n", false).unwrap_or_default();
    let xtc_exempt = served.eos.iter().chain(newline.last()).copied().collect();
    let kv_bits = kv_bits(&policy, &layout);
    Ok(Loaded { model, layout, served: Arc::new(served), weight_bytes, xtc_exempt, namespace, kv_bits })
}

/// Whether what is text about the model in this folder can be used: what there is to know before anything else leaves for it.
///
/// # Errors
/// As [`load`], for config, tokenizer, templates and generation defaults.
pub fn check_texts(dir: &Path) -> Result<()> {
    let config = ModelConfig::read(&dir.join("config.json"))?;
    served(dir, "", None, &config).map(|_| ())
}

/// Which layers keep their keys and values quantized: those that are asked to, and whose heads are whole groups.
/// Sliding windows and recurrent states are small and stay as they are.
fn kv_bits(policy: &KvPolicy, layout: &CacheLayout) -> Vec<Option<u8>> {
    let mut unfit = 0;
    let bits = layout.layers.iter().enumerate().map(|(n, layer)| match layer {
        LayerLayout::Full { head_dim, .. } if head_dim % GROUP == 0 => policy.layer(n),
        LayerLayout::Full { .. } => policy.layer(n).and_then(|_| {
            unfit += 1;
            None
        }),
        LayerLayout::Sliding { .. } | LayerLayout::Recurrent { .. } => None,
    });
    let bits = bits.collect();
    if unfit > 0 {
        tracing::warn!("{unfit} layers keep their keys and values as computed: their heads are no multiple of {GROUP}");
    }
    bits
}

fn broken_tokenizer(dir: &Path) -> Error {
    CoreError::Invalid {
        file: dir.join("tokenizer.json"),
        what: "tokenizer".into(),
        expected: "a tokenizer in Hugging Face's format".into(),
        found: "something that its parser gives up on".into(),
    }
    .into()
}

/// Everything about the model that is text.
fn served(dir: &Path, id: &str, context: Option<usize>, config: &ModelConfig) -> Result<ServedModel> {
    let tokenizer_file = dir.join("tokenizer.json");
    let tokenizer = Tokenizer::from_file(&tokenizer_file)?;
    let tokenizer_config = optional_json(&dir.join("tokenizer_config.json"))?;
    let generation_file = dir.join("generation_config.json");
    let generation_config = optional_json(&generation_file)?;
    if tokenizer.vocab_size() > config.vocab_size {
        return Err(foreign(
            &tokenizer_file,
            format!("at most {} ids, as config.json says", config.vocab_size),
            format!("{} ids", tokenizer.vocab_size()),
        ));
    }
    // LM heads are padded, but never to twice the vocabulary.
    if tokenizer.vocab_size() * 2 < config.vocab_size {
        let expected = format!("about {} ids, as config.json says", config.vocab_size);
        return Err(foreign(&tokenizer_file, expected, format!("{} ids", tokenizer.vocab_size())));
    }
    let mut eos = config.eos.clone();
    eos.extend(token_ids(&generation_config["eos_token_id"], "eos_token_id", &generation_file)?);
    if let Some(token) = token_text(&tokenizer_config["eos_token"]) {
        match tokenizer.token_to_id(token) {
            Some(id) => eos.push(id),
            None => {
                return Err(foreign(
                    &tokenizer_file,
                    format!("the end-of-sequence token {token} of tokenizer_config.json"),
                    "no such token".into(),
                ));
            }
        }
    }
    eos.sort_unstable();
    eos.dedup();
    if let Some(id) = eos.iter().find(|&&id| id as usize >= config.vocab_size) {
        return Err(foreign(
            &dir.join("config.json"),
            format!("end-of-sequence ids below {}", config.vocab_size),
            id.to_string(),
        ));
    }
    if let Some(id) = config.eos.iter().find(|&&id| id as usize >= tokenizer.vocab_size()) {
        return Err(foreign(
            &tokenizer_file,
            format!("the end-of-sequence id {id} of config.json"),
            format!("{} ids", tokenizer.vocab_size()),
        ));
    }
    let limit = config.max_position_embeddings;
    if let Some(asked) = context.filter(|&c| c > limit) {
        tracing::warn!("the model's context is {limit} tokens; the {asked} that were asked for are more than it has");
    }
    Ok(ServedModel {
        id: id.to_owned(),
        path: dir.to_owned(),
        model_type: config.model_type.clone(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        context: context.map_or(limit, |c| c.clamp(2, limit)),
        vocab_size: config.vocab_size,
        eos,
        tokenizer: Arc::new(tokenizer),
        chat_template: chat_template(dir)?,
        tokenizer_config: Arc::new(tokenizer_config),
        generation_config: Arc::new(generation_config),
    })
}

fn foreign(file: &Path, expected: String, found: String) -> Error {
    let what = "does not belong to this model".to_owned();
    CoreError::Invalid { file: file.to_owned(), what, expected, found }.into()
}

/// A special token in `tokenizer_config.json`: its text, or an object with its content.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// A JSON object, or an empty one where there is no file.
fn optional_json(file: &Path) -> Result<Value> {
    if file.exists() { Ok(read_json(file)?) } else { Ok(json!({})) }
}

/// `chat_template.jinja`, or the one in `chat_template.json`; `tokenizer_config.json` has its own.
fn chat_template(dir: &Path) -> Result<Option<String>> {
    let jinja = dir.join("chat_template.jinja");
    if jinja.exists() {
        let text = String::from_utf8(read_file(&jinja, "a chat template")?);
        return Ok(Some(text.map_err(|e| CoreError::Io { file: jinja, message: e.to_string() })?));
    }
    Ok(optional_json(&dir.join("chat_template.json"))?["chat_template"].as_str().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_file_that_shrinks_while_it_is_read_is_named() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/llama-f32");
        let dir = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            std::fs::copy(golden.join(file), dir.path().join(file)).unwrap();
        }
        let weights = dir.path().join("model.safetensors");
        let mut shrink = |_: f64| {
            let file = std::fs::OpenOptions::new().write(true).open(&weights).unwrap();
            file.set_len(file.metadata().unwrap().len() / 4).unwrap();
        };
        let refusal = load(dir.path(), "m", LoadOptions::default(), &mut shrink).err().unwrap().to_string();
        assert!(refusal.contains("model.safetensors: it became shorter while it was read: expected "), "{refusal}");
    }
}
