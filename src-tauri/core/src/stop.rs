//! Stop strings over streamed text: nothing of a stop string is ever released, and the outcome does not depend
//! on how the text was cut into pieces.

/// Matches stop strings incrementally. The match that is complete first wins; of several that are complete at
/// the same character, the longest.
#[derive(Debug, Default, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// A matcher for these strings; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        StopMatcher { stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes new text and appends what can be shown to `out`. Returns the stop string once one is complete;
    /// the text before it has been released by then and nothing after it will be.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<&str> {
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| self.held.find(stop.as_str()).map(|at| (at + stop.len(), at, i)))
            .min();
        if let Some((_, at, i)) = first {
            out.push_str(&self.held[..at]);
            self.held.clear();
            return Some(&self.stops[i]);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let release = self.held.len() - keep;
        out.push_str(&self.held[..release]);
        self.held.drain(..release);
        None
    }

    /// What was held back, appended to `out`: the generation ended and no stop string was completed.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// Length in bytes of the longest end of `text` that begins `stop` (all of `stop` excluded).
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|&n| {
            text.is_char_boundary(text.len() - n) && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let (mut m, mut out) = (StopMatcher::new(&stops), String::new());
        for piece in pieces {
            if let Some(stop) = m.push(piece, &mut out) {
                let stop = stop.to_owned();
                return (out, Some(stop));
            }
        }
        m.finish(&mut out);
        (out, None)
    }

    #[test]
    fn across_tokens_nothing_leaks() {
        let stops = vec!["beta gamma".to_owned()];
        let (mut m, mut out) = (StopMatcher::new(&stops), String::new());
        for piece in ["alpha ", "be", "ta", " gam"] {
            assert_eq!(m.push(piece, &mut out), None);
            assert_eq!(out, "alpha ", "nothing of the stop string may show");
        }
        assert_eq!(m.push("ma delta", &mut out), Some("beta gamma"));
        assert_eq!(out, "alpha ");
    }

    #[test]
    fn a_false_start_is_released() {
        assert_eq!(run(&["beta gamma"], ["alpha be", "ta ray"]), ("alpha beta ray".into(), None));
        assert_eq!(run(&["aab"], ["aa", "a", "b!"]), ("a".into(), Some("aab".into())));
        assert_eq!(run(&["END"], ["the EN"]), ("the EN".into(), None));
    }

    #[test]
    fn the_first_complete_match_wins() {
        assert_eq!(run(&["bcd", "c"], ["abcd"]), ("ab".into(), Some("c".into())));
        assert_eq!(run(&["c", "abc"], ["xabc"]), ("x".into(), Some("abc".into())));
        assert_eq!(run(&["", "é"], ["caf", "é"]), ("caf".into(), Some("é".into())));
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_outcome(
            text in "[abcé]{0,40}",
            stops in proptest::collection::vec("[abcé]{1,4}", 0..4),
            size in 1usize..6,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let chars: Vec<String> = text.chars().collect::<Vec<_>>().chunks(size).map(|c| c.iter().collect()).collect();
            let whole = run(&stops, [text.as_str()]);
            let pieces = run(&stops, chars.iter().map(String::as_str));
            prop_assert_eq!(&whole, &pieces);
            for stop in &stops {
                prop_assert!(!whole.0.contains(stop), "{:?} leaked {:?}", whole, stop);
            }
        }
    }
}
