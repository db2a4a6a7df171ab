//! The terms: bytes of weights, keys and values, prompt computation, allocator and reserve for one row at a context.

use super::learned::Learned;
use super::shape::{Shape, State};
use super::weights::Kept;
use super::{CHUNK, Device, MOST_CONTEXT, Machine, Model};
use crate::kv_policy::{FROM, GROUP, KvPolicy};
use crate::layout::{LayerLayout, room_for};
use serde::Serialize;

/// Queries that share one product where attention is computed in blocks.
const QUERY_BLOCK: u64 = 128;
/// Head sizes for which MLX 0.32 on Metal has attention kernels that never hold the scores of a whole chunk
/// (mlx/backend/metal/scaled_dot_product_attention.cpp, read November 2026; 72, 96, 192 and 256 depend on the version
/// and the chip, so they count as not fused).
const FUSED: [usize; 3] = [64, 80, 128];
/// Most that the allocator keeps for the next chunk, on a GPU and on a CPU.
const MOST_ALLOCATOR: u64 = 512 << 20;
const MOST_ALLOCATOR_CPU: u64 = 32 << 20;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Terms {
    /// The weights as the device keeps them.
    pub weights: u64,
    /// Keys, values and states of one row at the context, with the room that their buffers have to spare.
    pub kv: u64,
    /// What computing a chunk of a prompt holds for a moment.
    pub prefill_transient: u64,
    /// Freed buffers that the allocators keep for the next chunk.
    pub allocator_cache: u64,
    /// For what arithmetic does not see: kernels, tokenizer, server, fragmentation.
    pub reserve: u64,
}

impl Terms {
    /// Their sum.
    pub fn total(&self) -> u64 {
        let parts = [self.kv, self.prefill_transient, self.allocator_cache, self.reserve];
        parts.into_iter().fold(self.weights, u64::saturating_add)
    }
}

/// What a GPU may hold by default on a Mac with this much memory. Two thirds up to 36 GiB and three quarters above is
/// what Metal has reported since macOS 13 (llama.cpp #2182 and ollama #434, read November 2026: 10.67 of 16 GiB, 21.3
/// of 32 GiB); macOS 26 allows more on large machines (107.5 of 128 GiB), which this does not count on.
pub fn working_set(ram: u64) -> u64 {
    if ram <= 36 * GIB { ram / 3 * 2 } else { ram / 4 * 3 }
}

/// As much of a budget as the machine has memory, if that is known.
pub fn within(machine: &Machine, budget: u64) -> u64 {
    if machine.ram > 0 { budget.min(machine.ram) } else { budget }
}

/// The budget where a question names none: the user's, else three quarters of the memory, and no more than the GPU may hold.
pub fn default_budget(machine: &Machine) -> u64 {
    if let Some(budget) = machine.allowance.budget {
        return within(machine, budget);
    }
    let share = machine.ram / 4 * 3;
    match machine.device {
        Device::Gpu => share.min(machine.working_set.unwrap_or_else(|| working_set(machine.ram))),
        Device::Cpu => share,
    }
}

/// Part of the budget that stays free: a thirty-second of the memory, from 256 MiB to 2 GiB.
pub fn reserve(ram: u64) -> u64 {
    (ram / 32).clamp(256 * MIB, 2 * GIB)
}

/// The same for a machine whose user may have said so.
pub fn reserve_of(machine: &Machine) -> u64 {
    machine.allowance.reserve.unwrap_or_else(|| reserve(machine.ram))
}

/// How much freed memory MLX's allocator may keep within this budget, as the engine sets it: a thirty-second of it, up to
/// 512 MiB (on a CPU 32 MiB).
pub fn allocator_limit(budget: u64, device: Device) -> u64 {
    let most = if device == Device::Gpu { MOST_ALLOCATOR } else { MOST_ALLOCATOR_CPU };
    (budget / 32).clamp(MIB, most)
}

/// On a CPU buffers come from the C library's heap: what a process with so many rows holds beyond MLX's own figures and its
/// allocator's, between buffers in use and in the packed panels of BLAS (fitted to what SmolLM2 was measured to take on
/// Linux, 512 and 2,048 tokens, 1 and 4 rows). In a budget this is the reserve's.
pub fn heap(device: Device, rows: u64) -> u64 {
    match device {
        Device::Gpu => 0,
        Device::Cpu => 3_000_000 + 2_500_000 * rows,
    }
}

/// One model on one machine, ready to be sized at any context.
#[derive(Debug, Clone)]
pub struct Sizing {
    shape: Shape,
    kv: KvPolicy,
    device: Device,
    kept: Kept,
    /// Bytes of a float as computed.
    element: u64,
    reserve: u64,
    /// Most that the allocator keeps.
    allocator: u64,
    /// What corrects the transient.
    learned: Learned,
}

impl Sizing {
    /// A model whose keys and values follow this policy, on this machine.
    pub fn new(model: &Model, machine: &Machine, kv: &KvPolicy) -> Self {
        let element = if machine.device == Device::Cpu { 4 } else { model.weights.float() };
        let kept = model.weights.kept(machine.device, model.shape.tied, machine.available);
        Sizing {
            shape: model.shape.clone(),
            kv: kv.clone(),
            device: machine.device,
            kept,
            element,
            reserve: reserve_of(machine),
            allocator: allocator_limit(u64::MAX, machine.device),
            learned: Learned::default(),
        }
    }

    /// The same within a budget, of which the allocator keeps a share at most.
    pub fn within(self, budget: u64) -> Self {
        Sizing { allocator: allocator_limit(budget, self.device), ..self }
    }

    /// The same, with the transient of [`Sizing::terms`] corrected by what was measured.
    pub fn learning(self, learned: Learned) -> Self {
        Sizing { learned, ..self }
    }

    /// Bytes of the weights as the device keeps them.
    pub fn weights(&self) -> u64 {
        self.kept.total
    }

    /// The terms for one row of `context` tokens.
    pub fn terms(&self, context: u64) -> Terms {
        Terms {
            weights: self.kept.total,
            kv: self.row_bytes(context),
            prefill_transient: self.learned.transient(context, |context| self.whole(context)),
            // What a chunk frees for the next one.
            allocator_cache: self.layer(context.min(CHUNK), context).min(self.allocator),
            reserve: self.reserve,
        }
    }

    /// The largest context up to `most` whose total is within the budget. Every term grows with the context or stays,
    /// so that halving the range finds it.
    pub fn largest_context(&self, budget: u64, most: u64) -> Option<u64> {
        let fits = |context| self.terms(context).total() <= budget;
        if !fits(1) {
            return None;
        }
        let (mut fit, mut too_many) = (1, most.clamp(1, MOST_CONTEXT) + 1);
        while fit + 1 < too_many {
            let middle = fit + (too_many - fit) / 2;
            if fits(middle) { fit = middle } else { too_many = middle }
        }
        Some(fit)
    }

    /// Bytes that a row of `tokens` tokens holds, with the room that its buffers have to spare, at the most on the way there.
    pub fn row_bytes(&self, tokens: u64) -> u64 {
        self.kv_bytes(self.room(tokens))
    }

    /// The same of a row whose keys and values are quantized already, where they are to be.
    pub fn settled_row_bytes(&self, tokens: u64) -> u64 {
        self.settled_bytes(self.room(tokens))
    }

    /// Tokens that the buffers of a row have room for; beyond the model's own context they have none to spare.
    fn room(&self, tokens: u64) -> u64 {
        room_for(tokens).min(self.shape.context.max(tokens))
    }

    /// Bytes of keys, values and states of `tokens` tokens, at the most on the way there: what is to be quantized is floats at
    /// first.
    pub fn kv_bytes(&self, tokens: u64) -> u64 {
        self.shape.states.iter().map(|state| self.state_bytes(state, tokens)).fold(0, u64::saturating_add)
    }

    /// The same of a row whose keys and values are quantized already, where they are to be.
    pub fn settled_bytes(&self, tokens: u64) -> u64 {
        let settled =
            |state: &State| self.quantized_bytes(state, tokens).unwrap_or_else(|| self.state_bytes(state, tokens));
        self.shape.states.iter().map(settled).fold(0, u64::saturating_add)
    }

    /// What one more token adds to a long row.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.kv_bytes(MOST_CONTEXT + 1) - self.kv_bytes(MOST_CONTEXT)
    }

    /// Bytes that one decoded token reads.
    pub fn bytes_per_token(&self, context: u64) -> u64 {
        let experts = match self.shape.experts {
            Some(e) => (u128::from(self.kept.experts) * u128::from(e.per_token) / u128::from(e.count.max(1))) as u64,
            None => self.kept.experts,
        };
        (self.kept.always_read + experts).saturating_add(self.kv_bytes(context))
    }

    /// The bits of a state's keys and values, where they are quantized: full layers whose heads are whole groups, as
    /// in the engine.
    fn bits(&self, state: &State) -> Option<u64> {
        match state {
            State::Cached { layer, layout: LayerLayout::Full { head_dim, .. } } if head_dim % GROUP == 0 => {
                self.kv.layer(*layer).map(u64::from)
            }
            _ => None,
        }
    }

    fn state_bytes(&self, state: &State, tokens: u64) -> u64 {
        match state {
            State::Cached { layout, .. } => match self.quantized_bytes(state, tokens) {
                Some(bytes) => bytes.max(layout.bytes(tokens.min(FROM as u64), self.element)),
                None => layout.bytes(tokens, self.element),
            },
            State::Latent { width, .. } => *width as u64 * self.element * tokens,
        }
    }

    /// Packed values, and a scale and a bias for every group, in the dtype of the computation; `None` where they stay floats.
    fn quantized_bytes(&self, state: &State, tokens: u64) -> Option<u64> {
        match state {
            State::Cached { layout: LayerLayout::Full { kv_heads, head_dim }, .. } => {
                let head = *head_dim as u64 * self.bits(state)? / 8 + (head_dim / GROUP) as u64 * 2 * self.element;
                Some(2 * *kv_heads as u64 * head * tokens)
            }
            _ => None,
        }
    }

    /// What computing a chunk of `chunk` prompt tokens (of all rows together) holds at its peak, where the longest of
    /// those rows has `context` tokens after it, with C tokens in the chunk:
    ///
    /// * the residual stream, what attention and MLP add to it, and their norms: 6 · C · hidden;
    /// * a whole layer (of a model with one, the larger half), because MLX allocates up to some fifty operations ahead of
    ///   what is computed: attention
    ///   (projections, rotated copies, scaled queries, outputs of blocks, joined and transposed, and the scores where they
    ///   exist at all) or the recurrent part (what the convolution sees, three times, and the state before and after), and
    ///   the MLP (gate and up, and their activation, which becomes the product: 3 · C · width);
    /// * the logits of the last token only: 4 · vocabulary in f32;
    /// * one layer's keys and values once more, for the moment in which their buffer grows or they are quantized;
    /// * on a CPU without room to unpack weights: the largest matrix as f32.
    pub fn transient(&self, chunk: u64, context: u64) -> u64 {
        self.layer(chunk, context) + self.kept.unpacked_at_once
    }

    /// [`Sizing::transient`], raised by the share that what was measured was above it: for whoever has to keep to it, and
    /// takes no comfort from what turned out to be less.
    pub fn raised(&self, chunk: u64, context: u64) -> u64 {
        let computed = self.transient(chunk, context);
        // Asked for in every round, and mostly nothing is known.
        if self.learned.is_empty() {
            return computed;
        }
        let full = self.whole(context);
        let measured = self.learned.transient(context, |context| self.whole(context));
        if measured <= full || full == 0 {
            return computed;
        }
        u64::try_from(u128::from(computed) * u128::from(measured) / u128::from(full)).unwrap_or(u64::MAX)
    }

    /// [`Sizing::transient`] of the largest chunk that a row of `context` tokens is computed in.
    fn whole(&self, context: u64) -> u64 {
        self.transient(context.min(CHUNK), context)
    }

    /// What a layer holds while a chunk of a row of `context` tokens is computed; grows with both.
    fn layer(&self, chunk: u64, context: u64) -> u64 {
        let (shape, element) = (&self.shape, self.element);
        let residual = 6 * chunk * shape.hidden * element;
        let attention = shape.states.iter().map(|state| self.attention(state, chunk, context)).max().unwrap_or(0);
        let mlp = chunk * (3 * shape.mlp_width + shape.expert_floats()) * element;
        let growing = shape.states.iter().map(|state| self.state_bytes(state, context)).max().unwrap_or(0);
        let layer = if shape.states.len() > 1 { attention + mlp } else { attention.max(mlp) };
        residual + layer + 4 * 4 * shape.vocab + growing
    }

    /// What one layer's attention, or what stands for it, holds.
    fn attention(&self, state: &State, chunk: u64, context: u64) -> u64 {
        let (heads, element) = (self.shape.heads, self.element);
        // Scores before and after the softmax; on a CPU in f32, and in blocks of queries in place.
        let whole = |keys: u64| 2 * heads * chunk * keys * element;
        let blocks = |keys: u64| heads * chunk.min(QUERY_BLOCK) * keys * element;
        match *state {
            State::Cached { layout: LayerLayout::Recurrent { conv, state: matrix }, .. } => {
                3 * chunk * self.shape.recurrent_width * element + 2 * (conv as u64 * element + matrix as u64 * 4)
            }
            State::Cached { layout: LayerLayout::Full { kv_heads, head_dim }, .. } => {
                let scores = match self.device {
                    Device::Cpu => blocks(context),
                    Device::Gpu if FUSED.contains(&head_dim) => 0,
                    Device::Gpu => whole(context),
                };
                // A chunk over quantized keys and values unpacks them.
                let floats = self.bits(state).map_or(0, |_| 2 * (kv_heads * head_dim) as u64 * context * element);
                self.projections(kv_heads, head_dim, chunk) + scores + floats
            }
            State::Cached { layout: LayerLayout::Sliding { kv_heads, head_dim, window }, .. } => {
                let keys = context.min(window as u64 + chunk);
                let scores = match self.device {
                    Device::Gpu if FUSED.contains(&head_dim) => 0,
                    _ => whole(keys),
                };
                let mask = 2 * chunk * keys;
                self.projections(kv_heads, head_dim, chunk) + scores + mask
            }
            State::Latent { width, head_floats, .. } => {
                // Queries, keys and values of every head are made from the latent, a block of queries at a time.
                let made = heads * head_floats as u64;
                (2 * made * chunk + made * context + 2 * width as u64 * chunk) * element + blocks(context)
            }
        }
    }

    /// Queries, keys and values as projected; queries and keys twice for their rotation; queries scaled; outputs of
    /// blocks, joined, and transposed; the gate.
    fn projections(&self, kv_heads: usize, head_dim: usize, chunk: u64) -> u64 {
        let (q, kv) = (self.shape.heads * head_dim as u64, (kv_heads * head_dim) as u64);
        let gate = if self.shape.gated { 2 * q } else { 0 };
        chunk * ((q + 2 * kv) + 2 * (q + kv) + 4 * q + gate) * self.element
    }
}
