//! Whether a model fits on a machine, and how fast it would be there: arithmetic over its config and the headers of its
//! weight files, without MLX and without reading a single weight.
//!
//! Five terms, in bytes, which sum to the total: the weights as the device keeps them, the keys and values of one row
//! at the context, what computing a prompt chunk needs for a moment, what the allocator keeps for the next chunk, and
//! a reserve. [`memory`] has the formulas, [`shape`] reads the config, [`weights`] counts the headers.

pub mod learned;
pub mod memory;
pub mod shape;
pub mod weights;

#[cfg(test)]
mod published;
#[cfg(test)]
mod tests;

use crate::error::CoreError;
use crate::kv_policy::KvPolicy;
use crate::quantization::QuantizationConfig;
use learned::{Learned, Shown};
use memory::{Sizing, Terms};
use serde::Serialize;
use serde_json::Value;
use shape::Shape;
use std::path::{Path, PathBuf};
use weights::{Head, Weights};

/// Prompt tokens that the engine computes at once when nothing else runs.
pub const CHUNK: u64 = 2048;
/// The context that is sized when none is asked for, where the model has that much.
pub const DEFAULT_CONTEXT: u64 = 8192;
/// Largest context that may be asked for, in tokens.
pub const MOST_CONTEXT: u64 = 1 << 30;

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// Metal: weights as stored, keys and values in the dtype that the model computes in.
    Gpu,
    /// MLX's CPU backend: everything in f32.
    Cpu,
}

/// A machine as far as fitting goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// What its chip is called, if that is known.
    pub chip: Option<String>,
    /// What computes.
    pub device: Device,
    /// Installed memory in bytes; 0 is unknown.
    pub ram: u64,
    /// Bytes that programs could take now without swapping. Decides whether a CPU unpacks quantized weights; `None` is
    /// all of it.
    pub available: Option<u64>,
    /// What the GPU may hold, in bytes, where the system says so; `None` is the usual share of the memory.
    pub working_set: Option<u64>,
    /// Memory bandwidth in bytes per second, if it is known.
    pub bandwidth: Option<f64>,
    /// The share of the bandwidth that decoding reaches.
    pub efficiency: f64,
    /// What its user has set, whatever the machine's defaults are.
    pub allowance: Allowance,
}

/// How much of a machine's memory may be used, where somebody has said so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes that model and reserve may take together.
    pub budget: Option<u64>,
    /// Bytes of it that stay free.
    pub reserve: Option<u64>,
}

/// A model as far as fitting goes: what its config says, and what its weight files hold.
#[derive(Debug, Clone)]
pub struct Model {
    /// What the config says.
    pub shape: Shape,
    /// What the headers say.
    pub weights: Weights,
    quantization: QuantizationConfig,
}

impl Model {
    /// Reads a parsed `config.json`; the weights are to be [added](Model::add). `file` is only for messages.
    ///
    /// # Errors
    /// [`CoreError`] naming the field that sizes cannot do without.
    pub fn from_config(config: &Value, file: &Path) -> Result<Self, CoreError> {
        let shape = Shape::from_config(config, file)?;
        // Schemes of other libraries keep their bytes as stored; the shape's notes say that they do not run.
        let quantization = QuantizationConfig::from_config(config, file).unwrap_or_default();
        Ok(Model { shape, weights: Weights::default(), quantization })
    }

    /// Counts one tensor.
    pub fn add(&mut self, tensor: Head<'_>) {
        self.weights.add(tensor, self.shape.layers, &self.quantization);
    }

    /// The same model with nothing counted, for a part of its files.
    pub fn part(&self) -> Self {
        Model { weights: Weights::default(), ..self.clone() }
    }

    /// Counts what a [part](Model::part) counted.
    pub fn merge(&mut self, part: &Model) {
        self.weights.merge(&part.weights);
    }
}

/// What is asked of a model and a machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ask {
    /// Context in tokens; `None` is [`DEFAULT_CONTEXT`], or the model's own where that is less.
    pub context: Option<u64>,
    /// The budget in bytes; `None` is the machine's default.
    pub budget: Option<u64>,
    /// How keys and values are kept.
    pub kv: KvPolicy,
    /// What was measured on this machine, of this model and with these settings. It says nothing of other machines.
    pub learned: Learned,
}

/// Why the largest context is not larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedBy {
    /// One token more does not fit into the budget.
    Memory,
    /// The model was made for no more.
    Model,
}

/// The answer for one machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// The chip's name, if it is known.
    pub chip: Option<String>,
    /// What computes.
    pub device: Device,
    /// Installed memory in bytes.
    pub ram: u64,
    /// Bytes that model and reserve may take together.
    pub budget: u64,
    /// Whether `total` is within the budget.
    pub fits: bool,
    /// The terms in bytes.
    pub terms: Terms,
    /// Their sum.
    pub total: u64,
    /// The largest context that fits, in tokens; absent when not even one token does.
    pub largest_context: Option<u64>,
    /// Why it is not larger.
    pub limited_by: LimitedBy,
    /// Bytes that one decoded token reads at the context: the weights that take part in it, and all keys and values.
    pub bytes_per_token: u64,
    /// Predicted decode speed of one row; absent where neither the bandwidth is known nor the speed was measured.
    pub decode_tokens_per_s: Option<f64>,
}

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What the model is called.
    pub model: String,
    /// Its folder.
    pub path: PathBuf,
    /// `model_type` of its config.
    pub model_type: String,
    /// Whether this version of Hearth runs it; the notes say why not.
    pub supported: bool,
    /// What else there is to know, in sentences.
    pub notes: Vec<String>,
    /// The context that the terms are for, in tokens.
    pub context: u64,
    /// The longest that the model was made for.
    pub model_context: u64,
    /// Bytes that each further token of a long row takes: windows are full then, and states do not grow.
    pub kv_bytes_per_token: u64,
    /// This machine.
    #[serde(flatten)]
    pub here: Fit,
    /// What was measured here and went into the terms; absent where nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned: Option<Shown>,
    /// Other machines, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skus: Option<Vec<Fit>>,
}

/// The answer for one machine.
pub fn fit(model: &Model, machine: &Machine, ask: &Ask) -> Fit {
    let budget = ask.budget.map_or_else(|| memory::default_budget(machine), |budget| memory::within(machine, budget));
    let sizing = Sizing::new(model, machine, &ask.kv).learning(ask.learned.clone()).within(budget);
    let context = context(model, ask);
    let terms = sizing.terms(context);
    let total = terms.total();
    let largest = sizing.largest_context(budget, model.shape.context);
    let bytes_per_token = sizing.bytes_per_token(context);
    let predicted = machine.bandwidth.map(|b| b * machine.efficiency / bytes_per_token.max(1) as f64);
    let speed = ask.learned.decode(bytes_per_token).or(predicted);
    Fit {
        chip: machine.chip.clone(),
        device: machine.device,
        ram: machine.ram,
        budget,
        fits: total <= budget,
        terms,
        total,
        largest_context: largest,
        limited_by: if largest == Some(model.shape.context) { LimitedBy::Model } else { LimitedBy::Memory },
        bytes_per_token,
        decode_tokens_per_s: speed,
    }
}

/// The whole answer: for `here`, and for each of `skus` where there are any. A budget that was asked for is this
/// machine's; the others have their own.
pub fn report(id: &str, path: &Path, model: &Model, here: &Machine, ask: &Ask, skus: Option<&[Machine]>) -> Report {
    let shape = &model.shape;
    let own = Ask { budget: None, learned: Learned::default(), ..ask.clone() };
    let sizing = Sizing::new(model, here, &ask.kv);
    let context = context(model, ask);
    let mut notes = shape.notes.clone();
    notes.extend(model.weights.note());
    let asked = ask.budget.or(here.allowance.budget);
    if let Some(budget) = asked.filter(|&budget| memory::within(here, budget) < budget) {
        let ram = here.ram;
        notes.push(format!("the budget of {budget} bytes is more than this computer's memory: {ram} bytes count"));
    }
    if context > shape.context {
        notes.push(format!(
            "the model was made for {} tokens of context, less than the {context} asked for",
            shape.context
        ));
    }
    Report {
        model: id.to_owned(),
        path: path.to_owned(),
        model_type: shape.model_type.clone(),
        supported: shape.supported,
        notes,
        context,
        model_context: shape.context,
        kv_bytes_per_token: sizing.kv_bytes_per_token(),
        learned: ask.learned.shown(context, sizing.transient(context.min(CHUNK), context)),
        here: fit(model, here, ask),
        skus: skus.map(|all| all.iter().map(|machine| fit(model, machine, &own)).collect()),
    }
}

/// The context that the terms are for.
fn context(model: &Model, ask: &Ask) -> u64 {
    ask.context.unwrap_or(DEFAULT_CONTEXT.min(model.shape.context)).clamp(1, MOST_CONTEXT)
}
