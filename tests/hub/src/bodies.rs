//! Bodies that come slowly, stop, break off, or are wrong; all count what they send.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;

use crate::{Fault, State};

/// Bytes of one piece.
const PIECE: usize = 256 << 10;

/// The bytes `start..` of a file's content, with a fault.
pub(crate) fn body(
    state: &Arc<State>,
    name: &str,
    content: Bytes,
    start: u64,
    fault: Option<Fault>,
    rate: Option<u64>,
) -> Body {
    let piece = rate.map_or(PIECE, |rate| (rate as usize / 50).clamp(1, PIECE));
    let mut content = content;
    if let Some(Fault::Corrupt(at)) = fault
        && let Some(place) = at.checked_sub(start).map(|p| p as usize).filter(|p| *p < content.len())
    {
        let mut wrong = content.to_vec();
        if let Some(byte) = wrong.get_mut(place) {
            *byte ^= 1;
        }
        content = wrong.into();
    }
    let (cut, then) = match fault {
        Some(Fault::Drop(at)) => (at.min(content.len()), End::Break),
        Some(Fault::Stall(at)) => (at.min(content.len()), End::Hang),
        _ => (content.len(), End::Done),
    };
    let content = content.slice(..cut);
    let (state, name) = (state.clone(), name.to_owned());
    let pieces = stream::iter((0..content.len()).step_by(piece)).then(move |at| {
        let bytes = content.slice(at..(at + piece).min(content.len()));
        let (state, name) = (state.clone(), name.clone());
        async move {
            if let Some(rate) = rate {
                tokio::time::sleep(Duration::from_secs_f64(bytes.len() as f64 / rate as f64)).await;
            }
            *state.lock().served.entry(name).or_default() += bytes.len() as u64;
            Ok::<_, std::io::Error>(bytes)
        }
    });
    let end = stream::once(async move {
        match then {
            End::Done => Ok(Bytes::new()),
            // What was sent before has to be on its way first.
            End::Break => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(std::io::Error::other("broken off on purpose"))
            }
            End::Hang => futures::future::pending().await,
        }
    });
    Body::from_stream(pieces.chain(end))
}

enum End {
    Done,
    Break,
    Hang,
}
