//! Numbers as people write and read them.

use crate::error::{Error, Result};

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// `1536` as `1.5 KiB`.
pub(super) fn bytes(n: u64) -> String {
    match UNITS.iter().find(|(_, size)| n >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", n as f64 / *size as f64),
        None => format!("{n} B"),
    }
}

/// 10⁹ bytes a second as `12.3 GB/s`, smaller rates as `4.5 MB/s` or `0.2 kB/s`.
pub(super) fn rate(gb_per_s: f64) -> String {
    match gb_per_s {
        rate if rate >= 0.1 => format!("{rate:.1} GB/s"),
        rate if rate >= 1e-4 => format!("{:.1} MB/s", rate * 1e3),
        rate => format!("{:.1} kB/s", rate * 1e6),
    }
}

/// `1234567` as `1,234,567`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 row`, `2 rows`.
pub(super) fn counted(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `64MiB`, `1.5 GiB`, `100000` as bytes.
pub(super) fn parse_bytes(text: &str) -> Result<u64> {
    let wrong = || Error::invalid(format!("not a size, write for example 512KiB, 64MiB or 1GiB: size={text:?}"));
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..split].parse().map_err(|_| wrong())?;
    let unit = match text[split..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1u64 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let bytes = number * unit as f64;
    if bytes >= 1.0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Whole seconds as `2 h 5 min`, `3 min 4 s`, `5 s`.
pub(super) fn seconds(n: u64) -> String {
    match n {
        0..60 => format!("{n} s"),
        60..3600 => format!("{} min {} s", n / 60, n % 60),
        _ => format!("{} h {} min", n / 3600, n % 3600 / 60),
    }
}

/// Milliseconds since 1970 as `2026-11-30 07:17:14 UTC`.
pub(super) fn time(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Years of 400 hold the same number of days each; they begin in March, so that the odd day comes last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!((bytes(1023), bytes(1536), bytes(5 << 40)), ("1023 B".into(), "1.5 KiB".into(), "5.0 TiB".into()));
        assert_eq!(
            (count(7), count(999), count(1000), count(1234567)),
            ("7".into(), "999".into(), "1,000".into(), "1,234,567".into())
        );
        let rates = [12.34, 0.1, 0.0999, 0.0001, 0.00002].map(rate);
        assert_eq!(rates, ["12.3 GB/s", "0.1 GB/s", "99.9 MB/s", "0.1 MB/s", "20.0 kB/s"]);
        assert_eq!((counted(1, "row"), counted(1000, "row")), ("1 row".into(), "1,000 rows".into()));
        assert_eq!((seconds(59), seconds(184), seconds(7500)), ("59 s".into(), "3 min 4 s".into(), "2 h 5 min".into()));
    }

    #[test]
    fn words_are_quoted_for_a_shell_where_they_must() {
        assert_eq!(["a/b-c.d", "a b", "", "it's"].map(quoted), ["a/b-c.d", "'a b'", "''", r"'it'\''s'"]);
    }

    #[test]
    fn times_are_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(time(951_782_399_000), "2000-02-28 23:59:59 UTC");
        assert_eq!(time(951_868_800_123), "2000-03-01 00:00:00 UTC");
        assert_eq!(time(1_790_000_000_000), "2026-09-21 14:13:20 UTC");
        assert_eq!(time(4_107_542_399_999), "2100-02-28 23:59:59 UTC");
        assert_eq!(time(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, expected) in [("17", 17), ("1KiB", 1024), ("1.5 gib", 3 << 29), ("2MB", 2_000_000), ("1m", 1 << 20)]
        {
            assert_eq!(parse_bytes(text).unwrap(), expected);
        }
        for text in ["", "GiB", "-1", "0", "1.2.3", "1 parsec", "99999999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
