//! Limits that users change while the engine runs: whether they can hold, and what they would mean.

use crate::handle::State;
use crate::ledger::Ledger;
use crate::sizes::Sizes;
use hearth_core::{EngineError, Limits, LimitsPreview};

/// Refuses a prompt that can never fit, with the numbers that say so. `context` is the limit in tokens.
///
/// # Errors
/// [`EngineError::PromptBeyondMemory`]; one that is too long for the model itself is the caller's to refuse.
pub fn check_prompt(prompt: usize, context: usize, sizes: &Sizes, budget: u64) -> Result<(), EngineError> {
    let needed = sizes.terms(prompt as u64 + 1).total();
    if needed <= budget || prompt as u64 >= sizes.context() {
        return Ok(());
    }
    let largest = sizes.largest_context(budget).unwrap_or(0) as usize;
    // A limit that was set by hand is the shorter one: memory is not what is in the way.
    if context < largest {
        return Ok(());
    }
    Err(EngineError::PromptBeyondMemory { prompt, limit: largest, needed, budget })
}

/// The context limit with these sizes: as asked for, else what the budget has room for; never above the model's own.
pub fn context(sizes: &Sizes, asked: Option<usize>, budget: u64) -> usize {
    let most = sizes.context();
    let context = match asked.filter(|&n| n > 0) {
        Some(asked) => asked as u64,
        None => sizes.largest_context(budget).unwrap_or(1),
    };
    context.clamp(2, most.max(2)) as usize
}

/// The limits that hold, the context as it is with the loaded model.
pub fn shown(state: &State) -> Limits {
    let context = state.served.as_ref().map(|served| served.context).or(state.limits.context);
    Limits { context, ..state.limits }
}

/// Checks that each limit is one that could hold on this machine, whatever is loaded.
fn check_ranges(state: &State, asked: Limits) -> Result<(), EngineError> {
    if let Some(budget) = asked.budget {
        let ram = hearth_machine::memory().total;
        if budget > ram {
            let allowed = format!("at most {ram} bytes, all of this machine's memory");
            return Err(EngineError::param("budget", &allowed, budget));
        }
    }
    if let Some(rows) = asked.max_rows.filter(|rows| !(1..=256).contains(rows)) {
        return Err(EngineError::param("max_rows", "between 1 and 256", rows));
    }
    if let Some(context) = asked.context.filter(|&n| n == 1 || n > 1 << 30) {
        return Err(EngineError::param("context", "0, or between 2 and 1073741824 tokens", context));
    }
    if let Some(ssd) = asked.cache_ssd.filter(|&ssd| (ssd == 0) != (state.limits.cache_ssd.unwrap_or(0) == 0)) {
        let allowed = match ssd {
            0 => "above 0: the prompt cache on disk cannot be turned off while the server runs",
            _ => "0: the prompt cache on disk is off, and is turned on by a start with --cache-ssd",
        };
        return Err(EngineError::param("cache_ssd", allowed, ssd));
    }
    Ok(())
}

/// Checks limits that are to hold from now on.
///
/// # Errors
/// [`EngineError::InvalidRequest`] naming the limit, its range and the value, or by how much the loaded model would not
/// fit.
pub fn check(state: &State, asked: Limits) -> Result<(), EngineError> {
    let preview = preview(state, asked)?;
    if preview.fits {
        return Ok(());
    }
    let budget = asked.budget.or(state.limits.budget).unwrap_or(0);
    let (name, value) = match asked.budget {
        None => ("context", asked.context.unwrap_or(0) as u64),
        Some(budget) => ("budget", budget),
    };
    Err(EngineError::InvalidRequest {
        param: name.to_owned(),
        message: format!(
            "`{name}` {value} does not do: the loaded model would need {} bytes and the budget would be {budget}, {} bytes short",
            budget.saturating_add(preview.short_by),
            preview.short_by
        ),
    })
}

/// What limits would mean for the loaded model and the prompt cache.
///
/// # Errors
/// [`EngineError::InvalidRequest`] naming a limit that is out of its range, and the range.
pub fn preview(state: &State, asked: Limits) -> Result<LimitsPreview, EngineError> {
    check_ranges(state, asked)?;
    let budget = asked.budget.or(state.limits.budget).unwrap_or(0);
    let cap = asked.cache_ram.or(state.limits.cache_ram).unwrap_or(0);
    let marks = Ledger { budget, ..Ledger::default() };
    let now = &state.stats.memory.ledger;
    // Models that nobody uses leave for a row, but nothing is taken out of memory to lower a limit.
    let others: u64 = state.models.iter().skip(1).map(|model| model.stats.weights).sum();
    let (mut needed, mut largest) = (0, 0);
    if let Some(sizes) = &state.sizes {
        let least = match asked.context.filter(|&n| n > 0) {
            Some(context) => (context as u64).min(sizes.context()),
            None => sizes.smallest(),
        };
        needed = sizes.terms(least).total().saturating_add(others);
        largest = sizes.largest_context(budget).unwrap_or(0);
    }
    let others = now.total.saturating_sub(now.prompt_cache);
    let cap = cap.min(marks.soft().saturating_sub(others));
    let mut over = state.entries.iter().sum::<u64>().saturating_sub(cap);
    let leave = state.entries.iter().take_while(|&&bytes| {
        let leaves = over > 0;
        over = over.saturating_sub(bytes);
        leaves
    });
    let (demoted_entries, demoted_bytes) = leave.fold((0, 0), |(n, sum), bytes| (n + 1, sum + bytes));
    Ok(LimitsPreview {
        fits: needed <= budget,
        short_by: needed.saturating_sub(budget),
        largest_context: largest,
        demoted_entries,
        demoted_bytes,
    })
}
