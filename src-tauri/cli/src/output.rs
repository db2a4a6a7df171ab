//! How data is shown: aligned tables, sizes, durations, JSON. Standard output is data, standard error is talk.

use crate::failure::Failure;
pub use hearth_host::words::{ago, counted, duration, size};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// Prints to standard output; what a terminal would obey is made visible there, and left as it is in a file or a pipe. A
/// reader that went away (`hearth ls | head -1`) is not an error: the rest is dropped.
///
/// # Errors
/// When standard output cannot be written for another reason, such as a full disk.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { Cow::Owned(harmless(text, true)) } else { Cow::Borrowed(text) };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::no(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line.
///
/// # Errors
/// As [`print`].
pub fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Prints a value as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::no(format!("cannot write JSON: {e}")))?;
    line(&text)
}

/// Says a line on standard error, harmless to a terminal. Takes what `format!` takes.
macro_rules! say {
    ($($arg:tt)*) => { eprintln!("{}", $crate::output::harmless(&format!($($arg)*), true)) };
}
pub(crate) use say;

/// Text with what would move a terminal's cursor, or recolour it, made visible: names of folders and models are anybody's.
/// With `lines` it may have several, and tabs.
pub fn harmless(text: &str, lines: bool) -> String {
    let stays = |c: char| !c.is_control() || (lines && (c == '\n' || c == '\t'));
    text.chars().map(|c| if stays(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Lines with aligned columns: `right` says which ones are numbers.
pub fn table(header: &[&str], right: &[bool], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell, false)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row.get(column).map_or(0, |cell| cell.chars().count()));
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let header: Vec<String> = header.iter().map(|s| s.to_string()).collect();
    for row in std::iter::once(&header).chain(&rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            let gap = if column == 0 { "" } else { "  " };
            match right.get(column) {
                Some(true) => line.extend([gap, &pad, cell]),
                _ => line.extend([gap, cell, &pad]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_move_the_terminal() {
        let rows = vec![vec!["a\x1b[2Jb\nc".into()]];
        assert_eq!(table(&["NAME"], &[false], &rows), "NAME\na\u{fffd}[2Jb\u{fffd}c\n");
        assert_eq!(harmless("two\nlines\r\ttab", true), "two\nlines\u{fffd}\ttab");
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "10".into()], vec!["lönger".into(), "9".into()]];
        assert_eq!(table(&["NAME", "N"], &[false, true], &rows), "NAME     N\na       10\nlönger   9\n");
    }
}
