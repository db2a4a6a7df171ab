//! Streaming detokenization: tokens go in one at a time, whole UTF-8 characters come out.

use crate::tokenizer::Tokenizer;

/// Holds the bytes of a character until it is complete. Invalid bytes come out as one U+FFFD per maximal
/// invalid sequence, exactly as `String::from_utf8_lossy` of the whole would give, whatever the split.
#[derive(Debug, Default)]
pub struct Detokenizer {
    pending: Vec<u8>,
}

impl Detokenizer {
    /// The text that this token completes, appended to `out`.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        self.push_bytes(tokenizer.text_bytes(id), out);
    }

    /// The text that these bytes complete, appended to `out`.
    pub fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        while done < self.pending.len() {
            match std::str::from_utf8(&self.pending[done..]) {
                Ok(text) => {
                    out.push_str(text);
                    done = self.pending.len();
                }
                Err(e) => {
                    let valid = done + e.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&self.pending[done..valid]));
                    done = valid;
                    match e.error_len() {
                        Some(bad) => {
                            out.push('\u{fffd}');
                            done += bad;
                        }
                        None => break, // the start of a character: wait for the rest
                    }
                }
            }
        }
        self.pending.drain(..done);
    }

    /// What is left at the end, appended to `out`: an incomplete character as U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_split_over_tokens_is_held_until_whole() {
        let t = crate::tokenizer::tests::byte_tokenizer();
        let (mut d, mut out) = (Detokenizer::default(), String::new());
        d.push(&t, 0xc4, &mut out);
        assert_eq!(out, "", "half of ď");
        d.push(&t, 0x8f, &mut out);
        assert_eq!(out, "ď");
    }

    #[test]
    fn partial_bytes_before_a_space_keep_their_order() {
        let (mut d, mut out) = (Detokenizer::default(), String::new());
        for piece in [&b"\xe6\x97"[..], b" ", b"x"] {
            d.push_bytes(piece, &mut out);
        }
        d.finish(&mut out);
        assert_eq!(out, "\u{fffd} x");
    }

    proptest! {
        #[test]
        fn any_split_of_any_bytes_gives_the_same_text(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::vec(0usize..200, 0..20),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut d, mut out) = (Detokenizer::default(), String::new());
            for w in cuts.windows(2) {
                d.push_bytes(&bytes[w[0]..w[1]], &mut out);
            }
            d.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes).into_owned());
        }

        #[test]
        fn valid_text_never_shows_a_replacement(text in "\\PC{0,40}", size in 1usize..5) {
            let (mut d, mut out) = (Detokenizer::default(), String::new());
            for piece in text.as_bytes().chunks(size) {
                let before = out.len();
                d.push_bytes(piece, &mut out);
                let replaced = out[before..].contains('\u{fffd}') && !text.contains('\u{fffd}');
                prop_assert!(!replaced, "a whole character was replaced");
            }
            prop_assert_eq!(out, text);
        }
    }
}
