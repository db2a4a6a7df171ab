//! Counting weights from headers alone: what each device keeps of every tensor, and which part of it one token reads.

use super::Device;
use crate::quantization::QuantizationConfig;

/// Share of the available memory that unpacked weights may take on a CPU, as the engine has it.
const UNPACK_SHARE: f64 = 0.6;

/// How a tensor's elements are stored, as far as sizes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// 32-bit floats.
    F32,
    /// f16 or bf16.
    Half,
    /// 32-bit words, in which MLX packs quantized weights.
    U32,
    /// Anything else; it stays as it is.
    Other,
}

/// One tensor of a header.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its elements are stored.
    pub stored: Stored,
    /// How many there are, packed words counting as one.
    pub elements: u64,
    /// Its bytes in the file.
    pub bytes: u64,
}

/// Bytes of some tensors in each form that a device may keep them in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Forms {
    /// As stored (GPU).
    stored: u64,
    /// Unpacked to f32 (CPU).
    dense: u64,
    /// Packed, with everything that is a float in f32 (CPU without room to unpack).
    packed: u64,
    /// Whether any of them is packed.
    quantized: bool,
}

/// What the weight files hold, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Weights {
    /// Looked up by row: read for one token, not for all.
    embedding: Forms,
    /// Further tables that are looked up by row, such as Gemma's for each layer.
    tables: Forms,
    head: Forms,
    experts: Forms,
    rest: Forms,
    /// What Hearth does not load: images, sound, prediction of several tokens.
    skipped: u64,
    /// f32 values that all of it would be.
    dense_values: u64,
    /// Values of the largest matrix that is packed.
    largest_packed: u64,
    /// Bytes of a float as the model computes, 0 until the embedding says it.
    float: u64,
    /// Tensors counted.
    tensors: u64,
}

/// Which part of the model a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Embedding,
    Table,
    Head,
    Experts,
    Rest,
    Skipped,
}

/// Modules that a language model alone does without.
const SKIPPED: [&str; 9] = [
    "vision_tower",
    "vision_model",
    "visual.",
    "multi_modal_projector",
    "mm_projector",
    "audio_tower",
    "embed_audio",
    "embed_vision",
    "rotary_emb.inv_freq",
];

/// Where the layers of a language model are. A model of many experts has a hundred thousand names of this kind: these
/// are told apart by what follows alone.
const LAYERS: [&str; 4] =
    ["model.layers.", "language_model.model.layers.", "model.language_model.layers.", "backbone.layers."];

fn part(name: &str, layers: usize) -> Part {
    let has = |word: &str| name.contains(word);
    if let Some(rest) = LAYERS.iter().find_map(|start| name.strip_prefix(start)) {
        let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
        return match number.parse::<usize>() {
            // Layers past the last one predict further tokens (DeepSeek, GLM).
            Ok(n) if n >= layers => Part::Skipped,
            _ if is_expert(rest) => Part::Experts,
            _ if rest.contains("rotary_emb.inv_freq") => Part::Skipped,
            _ => Part::Rest,
        };
    }
    if SKIPPED.iter().any(|word| has(word)) || name.starts_with("mtp.") || has(".mtp.") {
        return Part::Skipped;
    }
    let digits = name.split_once("layers.").map(|(_, rest)| rest.split('.').next().unwrap_or_default());
    if digits.and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n >= layers) {
        return Part::Skipped;
    }
    if has("embed_tokens_per_layer.") {
        Part::Table
    } else if ["embed_tokens.", "wte.", "word_embeddings.", "tok_embeddings.", "backbone.embeddings."]
        .iter()
        .any(|w| has(w))
    {
        Part::Embedding
    } else if name.starts_with("lm_head.") || has(".lm_head.") || name.starts_with("output.") {
        Part::Head
    } else if is_expert(name) {
        Part::Experts
    } else {
        Part::Rest
    }
}

/// Whether a name is that of a weight of several experts, or of one of them.
fn is_expert(name: &str) -> bool {
    const WORDS: [&str; 5] = [".experts.", ".switch_mlp.", ".switch_glu.", "moe.input_linear.", "moe.output_linear."];
    name.starts_with("experts.") || WORDS.iter().any(|word| name.contains(word))
}

impl Forms {
    fn add(&mut self, other: &Forms) {
        self.stored += other.stored;
        self.dense += other.dense;
        self.packed += other.packed;
        self.quantized |= other.quantized;
    }
}

impl Weights {
    /// Counts what `other` counted as well.
    pub(super) fn merge(&mut self, other: &Weights) {
        self.embedding.add(&other.embedding);
        self.tables.add(&other.tables);
        self.head.add(&other.head);
        self.experts.add(&other.experts);
        self.rest.add(&other.rest);
        self.skipped += other.skipped;
        self.dense_values += other.dense_values;
        self.largest_packed = self.largest_packed.max(other.largest_packed);
        self.float = self.float.max(other.float);
        self.tensors += other.tensors;
    }

    /// Counts one tensor of a model of so many layers.
    pub(super) fn add(&mut self, tensor: Head<'_>, layers: usize, quantization: &QuantizationConfig) {
        let Head { name, stored, elements, bytes } = tensor;
        self.tensors += 1;
        let path = name.strip_suffix(".weight");
        let packed = stored == Stored::U32 && path.is_some();
        let values = match path.filter(|_| packed).and_then(|path| quantization.for_layer(path)) {
            Some(q) => (elements * 32).checked_div(u64::from(q.bits)).unwrap_or(elements),
            None => elements,
        };
        self.dense_values += values;
        let is_float = matches!(stored, Stored::F32 | Stored::Half);
        let of_packed = name.ends_with(".scales") || name.ends_with(".biases");
        let forms = Forms {
            stored: bytes,
            dense: match stored {
                _ if of_packed => 0,
                Stored::Other => bytes,
                _ => values * 4,
            },
            packed: if is_float { elements * 4 } else { bytes },
            quantized: packed,
        };
        let part = part(name, layers);
        if part == Part::Embedding && (is_float || of_packed) {
            // Scales of mxfp4 and its kin are bytes; the engine computes in bf16 then.
            self.float = self.float.max(if stored == Stored::F32 { 4 } else { 2 });
        }
        let group = match part {
            Part::Embedding => &mut self.embedding,
            Part::Table => &mut self.tables,
            Part::Head => &mut self.head,
            Part::Experts => &mut self.experts,
            Part::Rest => &mut self.rest,
            Part::Skipped => {
                self.skipped += bytes;
                return;
            }
        };
        group.add(&forms);
        if packed && matches!(part, Part::Head | Part::Rest) {
            self.largest_packed = self.largest_packed.max(values);
        }
    }

    /// Tensors counted.
    pub fn tensors(&self) -> u64 {
        self.tensors
    }

    /// Bytes of a float as the model computes on a GPU.
    pub fn float(&self) -> u64 {
        if self.float == 0 { 2 } else { self.float }
    }

    /// What is left out, as a sentence.
    pub(super) fn note(&self) -> Option<String> {
        let mb = self.skipped as f64 / 1e6;
        (mb >= 1.0)
            .then(|| format!("{mb:.0} MB of the files are not loaded (images, sound, or prediction of several tokens)"))
    }

    /// The weights as this device keeps them; `tied` where the config says that the LM head is the embedding, and
    /// `available` bytes are free.
    pub(super) fn kept(&self, device: Device, tied: Option<bool>, available: Option<u64>) -> Kept {
        let own_head = self.head != Forms::default() && tied != Some(true);
        let unpack = device == Device::Cpu
            && available.is_none_or(|free| ((self.dense_values * 4) as f64) < free as f64 * UNPACK_SHARE);
        let form = |forms: &Forms| match (device, unpack) {
            (Device::Gpu, _) => forms.stored,
            (Device::Cpu, true) => forms.dense,
            (Device::Cpu, false) => forms.packed,
        };
        // A table that no product reads stays packed.
        let embedding = match (device, own_head && self.embedding.quantized) {
            (Device::Cpu, true) => self.embedding.packed,
            _ => form(&self.embedding),
        };
        let head = if own_head { form(&self.head) } else { 0 };
        let (experts, rest) = (form(&self.experts), form(&self.rest));
        let table =
            if device == Device::Cpu && self.tables.quantized { self.tables.packed } else { form(&self.tables) };
        Kept {
            total: embedding + table + head + experts + rest,
            always_read: rest + if own_head { head } else { embedding },
            experts,
            unpacked_at_once: if device == Device::Cpu && !unpack { self.largest_packed * 4 } else { 0 },
        }
    }
}

/// Bytes of the weights on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// All of them.
    pub(super) total: u64,
    /// What every token reads.
    pub(super) always_read: u64,
    /// All experts, of which a token reads some.
    pub(super) experts: u64,
    /// What a prompt chunk unpacks at once of packed weights.
    pub(super) unpacked_at_once: u64,
}
