//! Sizes as people write them: `2GB`, `1.5 GiB`, `4096`. What is read is printed back exactly.

/// The units, largest first within each kind.
const UNITS: [(&str, u64); 9] = [
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Bytes of a size such as `2GB`, `1.5 GiB` or `4096`; upper and lower case are the same.
///
/// # Errors
/// What was expected, for anything else.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || "expected a size such as 2GB, 512MiB or 0 (units: B, KB, KiB, MB, MiB, GB, GiB, TB, TiB)".to_owned();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let unit = match unit {
        "" => 1,
        name => UNITS.iter().find(|(unit, _)| unit.eq_ignore_ascii_case(name)).ok_or_else(wrong)?.1,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || part.is_empty() || part.len() > 15 {
        return Err(wrong());
    }
    let large = || "expected a size below 16 EiB".to_owned();
    let whole: u64 =
        whole.parse().map_err(|_| if whole.bytes().all(|b| b.is_ascii_digit()) { large() } else { wrong() })?;
    let scale = 10u128.pow(part.len() as u32);
    let part = part.parse::<u128>().map_err(|_| wrong())? * u128::from(unit);
    if part % scale != 0 {
        return Err("expected a whole number of bytes".to_owned());
    }
    let bytes = u128::from(whole) * u128::from(unit) + part / scale;
    u64::try_from(bytes).map_err(|_| large())
}

/// A size in the largest unit of which it is a whole number, so that nothing is rounded: `2 GB`, `512 MiB`, `4097 B`.
pub fn exact(bytes: u64) -> String {
    let fits = UNITS.iter().filter(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)).max_by_key(|(_, unit)| unit);
    let (name, unit) = fits.unwrap_or(&("B", 1));
    format!("{} {name}", bytes / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_to_the_byte() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17B", 17),
            ("2GB", 2_000_000_000),
            ("2 gb", 2_000_000_000),
            ("2GiB", 2 << 30),
            ("512mib", 512 << 20),
            ("64KB", 64_000),
            ("64KiB", 65_536),
            ("1.5GB", 1_500_000_000),
            ("0.25 KiB", 256),
            ("1TB", 1_000_000_000_000),
            ("1TiB", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "GB", "2GBs", "two", "-1", "-1GB", "1e9", "2G", "1..5GB", ".5GB", "5.GB", "2 G B", "0x10", "1,5GB",
            "∞", "2GB 3MB",
        ] {
            assert!(parse(text).unwrap_err().contains("2GB, 512MiB or 0"), "{text}");
        }
        assert!(parse("99999999999999999999").unwrap_err().contains("16 EiB"));
        assert!(parse("99999999TB").unwrap_err().contains("16 EiB"));
        assert!(parse("0.5B").unwrap_err().contains("whole number of bytes"));
    }

    #[test]
    fn sizes_come_back_exactly() {
        for (bytes, text) in [
            (0, "0 B"),
            (17, "17 B"),
            (2_000_000_000, "2 GB"),
            (2 << 30, "2 GiB"),
            (1_500_000_000, "1500 MB"),
            (32_000_000_000, "32 GB"),
            (32 << 30, "32 GiB"),
            (1 << 40, "1 TiB"),
            (4097, "4097 B"),
        ] {
            assert_eq!(exact(bytes), text);
            assert_eq!(parse(text), Ok(bytes));
        }
    }
}
