//! A model on the caller's thread, without scheduler or text: what the parity tests and `cargo xtask bench` look at.

use crate::cache::LayerCache;
use crate::error::Result;
use crate::loader::{self, LoadOptions, Loaded};
use crate::step::{Segment, Step};
use hearth_mlx::{Device, Tensor, eval};
use std::path::Path;

/// A loaded model whose logits can be asked for.
pub struct Probe {
    loaded: Loaded,
}

impl Probe {
    /// Loads the model in this folder.
    ///
    /// # Errors
    /// As for serving it.
    pub fn load(dir: &Path) -> Result<Self> {
        Ok(Probe { loaded: loader::load(dir, "probe", LoadOptions::default(), &mut |_| {})? })
    }

    /// Loads the model laid out as on a GPU (weights as stored, fused rotation, fused attention for every step), on
    /// whatever device there is: the Mac's path, checked where there is no Mac.
    ///
    /// # Errors
    /// As for serving it.
    pub fn load_for_gpu(dir: &Path) -> Result<Self> {
        Ok(Probe { loaded: loader::load_for(Device::Gpu, dir, "probe", LoadOptions::default(), &mut |_| {})? })
    }

    /// Logits at every position, `[prompt, vocab]` row-major, computed `chunk` tokens at a time.
    ///
    /// # Errors
    /// MLX's.
    pub fn logits(&self, prompt: &[u32], chunk: usize) -> Result<Vec<f32>> {
        let mut caches = LayerCache::for_layout(&self.loaded.layout);
        let mut logits = Vec::new();
        for ids in prompt.chunks(chunk.max(1)) {
            let mut step = Step::new(vec![Segment { tokens: ids.len(), caches: &mut caches }]);
            let hidden = self.loaded.model.forward(&Tensor::from_u32(ids)?, &mut step)?;
            let part = self.loaded.model.logits(&hidden)?;
            eval([&part])?;
            logits.extend(part.to_vec_f32()?);
        }
        Ok(logits)
    }
}
