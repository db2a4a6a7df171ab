//! Sizes, counts and durations as people read them.

/// A size in decimal units, as Finder shows it: `999 B`, `1.5 kB`, `98.4 MB`, `12.0 GB`.
pub fn size(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    for unit in ["kB", "MB", "GB"] {
        value /= 1000.0;
        if value < 999.95 {
            return format!("{value:.1} {unit}");
        }
    }
    format!("{:.1} TB", value / 1000.0)
}

/// `1 entry`, `2 entries`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// How long ago a moment was, both in seconds since 1970: `7 s ago`, `3 min 20 s ago`.
pub fn ago(at: u64, now: u64) -> String {
    match now.saturating_sub(at) {
        seconds @ 0..60 => format!("{seconds} s ago"),
        seconds => format!("{} ago", duration(seconds as f64)),
    }
}

/// Seconds for people: `0.42 s`, `12.3 s`, `3 min 20 s`, `5 h 2 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.2} s"),
        10..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_ago_are_whole_seconds() {
        assert_eq!([ago(100, 107), ago(100, 300), ago(300, 100)], ["7 s ago", "3 min 20 s ago", "0 s ago"]);
    }

    #[test]
    fn sizes_and_times_for_people() {
        let sizes = [0, 999, 1000, 98_362_432, 999_949_999, 1_000_000_000, 2_000_000_000_000].map(size);
        assert_eq!(sizes, ["0 B", "999 B", "1.0 kB", "98.4 MB", "999.9 MB", "1.0 GB", "2.0 TB"]);
        assert_eq!([0.416, 12.34, 200.0, 18_120.0].map(duration), ["0.42 s", "12.3 s", "3 min 20 s", "5 h 2 min"]);
    }
}
