//! One round on the device: a chunk of prompts, a step of all rows that decode, and the tokens of the step before.

use super::{InFlight, Report, Worker};
use crate::cache::LayerCache;
use crate::error::Result;
use crate::row::{Outcome, Pending};
use crate::sampler::Sampled;
use crate::scheduler::Round;
use crate::step::{Segment, Step};
use hearth_core::EngineError;
use hearth_core::event::TokenInfo;
use hearth_mlx::{Dtype, Tensor, async_eval, concatenate, eval};
use std::rc::Rc;
use std::time::Instant;

/// The allocator's cache is given back after this many steps.
const CLEAR_EVERY: u64 = 256;
/// Chunks of fewer tokens do not count as a measurement of prefill speed.
const LEAST_MEASURED: usize = 64;
/// What a row is told whose logits are no numbers.
const NOT_A_NUMBER: &str = "the model computed values that are not numbers; its weights or its config are damaged";

impl Worker<'_> {
    pub(super) fn run_round(&mut self, round: Round) {
        if !round.prefill.is_empty() {
            // A chunk can take seconds: let it be seen what is computed.
            self.publish(true);
            let ids: Vec<u64> = round.prefill.iter().map(|p| p.0).collect();
            if let Err(e) = self.prefill(round.prefill) {
                self.fail(&ids, &e.into());
            }
        }
        let dispatched = !round.decode.is_empty();
        if dispatched && let Err(e) = self.decode(&round.decode) {
            self.fail(&round.decode, &e.into());
        }
        // With a step dispatched its tokens stay unread until the next one is on its way.
        let keep = usize::from(dispatched);
        while self.slot.in_flight.len() > keep {
            let Some(step) = self.slot.in_flight.pop_front() else { break };
            if let Err(e) = self.read(&step) {
                self.fail(&step.rows, &e.into());
            }
        }
    }

    /// Computes these prompt tokens; rows whose prompt is complete draw their first token.
    fn prefill(&mut self, parts: Vec<(u64, usize)>) -> Result<()> {
        let Some(loaded) = &self.slot.model else { return Ok(()) };
        let started = Instant::now();
        let (mut ids, mut segments_of) = (Vec::new(), Vec::new());
        for (id, n) in &parts {
            if let Some(row) = self.slot.rows.get_mut(id) {
                ids.extend(row.tokens(row.prefilled, *n));
                segments_of.push((*id, *n, std::mem::take(&mut row.caches)));
            }
        }
        let total = ids.len();
        let segments = segments_of.iter_mut().map(|(_, n, caches)| Segment { tokens: *n, caches }).collect();
        let hidden = loaded.model.forward(&Tensor::from_u32(&ids)?, &mut Step::new(segments))?;
        let (mut complete, mut last) = (Vec::new(), Vec::new());
        let mut at = 0u32;
        for (id, n, caches) in segments_of {
            at += n as u32;
            if let Some(row) = self.slot.rows.get_mut(&id) {
                row.caches = caches;
                row.prefilled += n;
                if self.slot.scheduler.prefilled(id, n) {
                    self.slot.rooms.decodes(id);
                    // One that was parked has its next token already.
                    if row.next.is_none() {
                        complete.push(id);
                        last.push(at - 1);
                    }
                }
            }
        }
        if !complete.is_empty() {
            let hidden = match last[..] {
                [one] => hidden.slice(0, one as i32, one as i32 + 1)?,
                _ => hidden.take(&Tensor::from_u32(&last)?, 0)?,
            };
            let logits = loaded.model.logits(&hidden)?;
            self.draw(&complete, &logits)?;
        }
        let rows = parts.iter().filter_map(|(id, _)| self.slot.rows.get(id));
        let tensors = rows.flat_map(|row| row.caches.iter().flat_map(LayerCache::tensors));
        eval(tensors.chain(self.slot.in_flight.back().map(|step| &*step.tokens)))?;
        for (id, _) in &parts {
            self.after_chunk(*id)?;
        }
        hearth_mlx::clear_cache()?;
        // A few tokens cost as much as many: they say nothing about the speed of a chunk.
        if total >= LEAST_MEASURED {
            // What the C library keeps of a chunk counts against the budget as well.
            hearth_machine::release_freed();
            let rate = total as f64 / started.elapsed().as_secs_f64().max(1e-6);
            self.slot.prefill_rate = Some(self.slot.prefill_rate.map_or(rate, |old| 0.7 * old + 0.3 * rate));
        }
        for (id, _) in &parts {
            if let Some(row) = self.slot.rows.get_mut(id) {
                row.report_prefill();
            }
        }
        self.shared.count(|totals| totals.prompt_tokens += total as u64);
        Ok(())
    }

    /// Dispatches one step of these rows.
    fn decode(&mut self, ids: &[u64]) -> Result<()> {
        let Some(loaded) = &self.slot.model else { return Ok(()) };
        let input = self.inputs(ids)?;
        let mut caches = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(row) = self.slot.rows.get_mut(id) {
                caches.push(std::mem::take(&mut row.caches));
            }
        }
        let segments = caches.iter_mut().map(|caches| Segment { tokens: 1, caches }).collect();
        let hidden = loaded.model.forward(&input, &mut Step::new(segments))?;
        let logits = loaded.model.logits(&hidden)?;
        for (id, caches) in ids.iter().zip(caches) {
            if let Some(row) = self.slot.rows.get_mut(id) {
                row.caches = caches;
            }
        }
        self.draw(ids, &logits)?;
        for id in ids {
            self.convert(*id)?;
        }
        self.steps += 1;
        if self.steps.is_multiple_of(CLEAR_EVERY) {
            hearth_mlx::clear_cache()?;
        }
        self.shared.count(|totals| totals.steps += 1);
        Ok(())
    }

    /// The tokens that these rows' next step starts from, `[rows]`: usually the last step's, as they are.
    fn inputs(&self, ids: &[u64]) -> Result<Tensor> {
        let pending: Vec<&Pending> =
            ids.iter().filter_map(|id| self.slot.rows.get(id)).filter_map(|row| row.next.as_ref()).collect();
        if let Some(first) = pending.first() {
            let whole = first.tokens.dim(0) as usize == pending.len();
            let same = |(i, p): (usize, &&Pending)| p.index == i && Rc::ptr_eq(&p.tokens, &first.tokens);
            if whole && pending.iter().enumerate().all(same) {
                return Ok(first.tokens.share());
            }
        }
        let one = |p: &&Pending| p.tokens.slice(0, p.index as i32, p.index as i32 + 1);
        let tokens = pending.iter().map(one).collect::<hearth_mlx::Result<Vec<_>>>()?;
        Ok(concatenate(&tokens, 0)?)
    }

    /// Draws a token for each of these rows from the logits `[rows, vocab]`, and dispatches.
    fn draw(&mut self, ids: &[u64], logits: &Tensor) -> Result<()> {
        let logits = logits.astype(Dtype::F32)?;
        let logits = match &self.slot.padding {
            Some(padding) => logits.add(padding)?,
            None => logits,
        };
        let plain = ids.iter().filter_map(|id| self.slot.rows.get(id)).all(|row| row.sampler.is_plain());
        let normalizer = logits.logsumexp_axis(-1)?;
        let (tokens, sampled) = if plain {
            let logprobs = logits.subtract(&normalizer)?;
            (logprobs.argmax(-1)?, ids.iter().map(|_| None).collect())
        } else {
            let mut drawn = Vec::with_capacity(ids.len());
            for (i, id) in ids.iter().enumerate() {
                if let Some(row) = self.slot.rows.get_mut(id) {
                    drawn.push(row.sampler.sample(&logits.slice(0, i as i32, i as i32 + 1)?)?);
                }
            }
            let tokens = concatenate(drawn.iter().map(|d| &d.token), 0)?;
            (tokens, drawn.into_iter().map(|Sampled { logprobs, .. }| logprobs).collect::<Vec<_>>())
        };
        let reports = sampled.iter().flatten().flat_map(|(chosen, best)| {
            let best = best.iter().flat_map(|(ids, values)| [ids, values]);
            std::iter::once(chosen).chain(best)
        });
        async_eval([&tokens, &normalizer].into_iter().chain(reports))?;
        let tokens = Rc::new(tokens);
        for (index, id) in ids.iter().enumerate() {
            if let Some(row) = self.slot.rows.get_mut(id) {
                row.next = Some(Pending { tokens: tokens.clone(), index });
                row.sampled += 1;
            }
        }
        self.slot.in_flight.push_back(InFlight { rows: ids.to_vec(), tokens, sampled, normalizer });
        Ok(())
    }

    /// Waits for a step's tokens and gives them to their rows, as far as those are still there.
    fn read(&mut self, step: &InFlight) -> Result<()> {
        let tokens = step.tokens.to_vec_u32()?;
        let Some(served) = self.slot.model.as_ref().map(|m| m.served.clone()) else { return Ok(()) };
        let normalizer = step.normalizer.to_vec_f32()?;
        let mut read = 0;
        for (((id, token), report), normalizer) in step.rows.iter().zip(tokens).zip(&step.sampled).zip(normalizer) {
            if !normalizer.is_finite() {
                self.fail(&[*id], &EngineError::Compute { message: NOT_A_NUMBER.into() });
                continue;
            }
            let Some(row) = self.slot.rows.get_mut(id) else { continue };
            read += 1;
            let first = row.ids.is_empty();
            if row.take(token_info(token, report, row.request.logprobs)?, &served) == Outcome::Finished {
                if let Some(mut row) = self.slot.rows.remove(id) {
                    self.keep(&mut row);
                    self.retire(row);
                }
                self.left(*id, |totals| totals.finished += 1);
            } else if first {
                hearth_mlx::clear_cache()?;
            }
        }
        self.shared.count(|totals| totals.generated_tokens += read);
        Ok(())
    }
}

/// A token with what was asked to be known of it: alternatives best first, the lower id first among equals.
fn token_info(id: u32, report: &Report, asked: Option<u8>) -> Result<TokenInfo> {
    let Some((chosen, best)) = report else { return Ok(TokenInfo { id, logprob: None, top: Vec::new() }) };
    let mut top: Vec<(u32, f32)> = match best {
        Some((ids, values)) => ids.to_vec_u32()?.into_iter().zip(values.to_vec_f32()?).collect(),
        None => Vec::new(),
    };
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    top.truncate(usize::from(asked.unwrap_or(0)));
    Ok(TokenInfo { id, logprob: chosen.to_vec_f32()?.first().copied(), top })
}
