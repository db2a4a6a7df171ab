//! Sizes in `settings.toml`: whole bytes, or a text with a unit that means them exactly.

/// Units, the largest of each kind first.
const UNITS: [(&str, u64); 8] = [
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("kB", 1000),
    ("KiB", 1 << 10),
];

/// Bytes that a text such as `18GB` or `1.5 GiB` means.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let cut = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..cut], text[cut..].trim());
    let factor = match unit {
        "" | "B" => 1,
        _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1,
    };
    let number: f64 = number.parse().ok()?;
    let bytes = number * factor as f64;
    (bytes.is_finite() && bytes < i64::MAX as f64).then_some(bytes.round() as u64)
}

/// The shortest text that means exactly these bytes; `None` when only the plain number does.
pub(super) fn exact(bytes: u64) -> Option<String> {
    let unit = UNITS.iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor))?;
    Some(format!("{}{}", bytes / unit.1, unit.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_back_exactly() {
        for (text, bytes) in
            [("18GB", 18_000_000_000), ("1.5 GiB", 3 << 29), ("0", 0), ("512MiB", 512 << 20), ("7B", 7), ("3kb", 3000)]
        {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for wrong in ["", "GB", "1.2.3GB", "5 apples", "-1GB", "99999999999TB"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        for bytes in [1000, 18_000_000_000, 3 << 29, 512 << 20, 1 << 40] {
            assert_eq!(parse(&exact(bytes).unwrap()), Some(bytes));
        }
        assert_eq!((exact(0), exact(1001)), (None, None));
    }
}
