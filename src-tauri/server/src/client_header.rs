//! The header line that a client puts at the very start of its system prompt and changes with every request. It says
//! who pays, not what to do, and it would make every prompt new to the prompt cache.

/// The only header known to do so.
const NAME: &str = "x-anthropic-billing-header:";

/// The text after the header at its start: `x-anthropic-billing-header: a=b; c=d;` and the end of that line. Any other
/// text comes back as it is.
pub(crate) fn strip(text: &str) -> &str {
    let Some(mut rest) = text.strip_prefix(NAME) else { return text };
    let mut fields = 0;
    while let Some(after) = field(rest) {
        (fields, rest) = (fields + 1, after);
    }
    if fields == 0 {
        return text;
    }
    // The text may go on right behind the last field; a space between them is the header's only at a line's end.
    let end = rest.trim_start_matches([' ', '\t']);
    let newline = end.strip_prefix('\r').unwrap_or(end).strip_prefix('\n');
    newline.unwrap_or(if end.is_empty() { end } else { rest })
}

/// What comes after ` name=value;`. The last field of a line needs no semicolon.
fn field(text: &str) -> Option<&str> {
    let field = text.trim_start_matches([' ', '\t']);
    let name = field.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))?;
    let value = field[name..].strip_prefix('=').filter(|_| name > 0)?;
    let end = value.find(|c: char| c == ';' || c.is_whitespace()).unwrap_or(value.len());
    match value[end..].strip_prefix(';') {
        Some(after) => Some(after),
        None => {
            let after = &value[end..];
            let line = after.find('\n').map_or(after, |i| &after[..i]);
            line.trim().is_empty().then_some(after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_goes_and_nothing_else() {
        for (text, rest) in [
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;\nYou are X.", "You are X."),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;You are X.", "You are X."),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c; You are X.", " You are X."),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;", ""),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c; \n", ""),
            ("x-anthropic-billing-header: cch=a1b2c\r\nYou", "You"),
            ("x-anthropic-billing-header: cch=a1b2c\n\n  You\n", "\n  You\n"),
            ("x-anthropic-billing-header:cch=é;\r\nYou", "You"),
        ] {
            assert_eq!(strip(text), rest, "{text:?}");
        }
        for text in [
            "You: x-anthropic-billing-header: a=1;",
            " x-anthropic-billing-header: a=1;\nYou",
            "\nx-anthropic-billing-header: a=1;\nYou",
            "X-Anthropic-Billing-Header: a=1;\nYou",
            "x-anthropic-billing-header-2: a=1;\nYou",
            "x-anthropic-billing-header: is a header\nYou",
            "x-anthropic-billing-header:",
            "x-other-header: cch=a1b2c;\nYou",
            "",
        ] {
            assert_eq!(strip(text), text);
        }
    }
}
