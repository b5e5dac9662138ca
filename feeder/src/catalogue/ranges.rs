//! Which records a version looks at, before filter and split: a topic's, from and up to positions or times, or those of a
//! checkpoint.
//!
//! Positions are offsets, `1000` or `partition:offset,...`; a partition that is not named is not limited. Times are those of
//! append. The log keeps them per block and segment (first and last), not per record; so a time is taken only where it parts
//! blocks, and else refused with the times and positions next to it. Nothing is rounded.

use cursorstore::records::Checkpoint;
use cursorstore::{Extent, State, TopicName};

use super::{Catalogue, version};
use crate::error::{Error, ErrorKind, Result};
use crate::job::History;
use crate::log::{PartitionView, TopicView};

/// An end of a range, as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Offsets by partition; `None` stands for the only partition.
    Offsets(Vec<(Option<u32>, u64)>),
    /// Milliseconds since 1970.
    Time(u64),
}

impl Bound {
    /// Reads `1000`, `0:1000,1:500`, `1790000000000ms`, `2026-09-21T10:00:00Z` or `2026-09-21`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            let hint = "write an offset (1000), offsets by partition (0:1000,1:500), or a time (2026-09-21T10:00:00Z, \
                        1790000000000ms)";
            Error::invalid(format!("neither a position nor a time: value={text:?}")).with_hint(hint)
        };
        if let Some(ms) = text.strip_suffix("ms") {
            return ms.parse().map(Self::Time).map_err(|_| wrong());
        }
        if text.as_bytes().get(4) == Some(&b'-') {
            return rfc3339_ms(text).map(Self::Time).ok_or_else(wrong);
        }
        let one = |part: &str| match part.trim().split_once(':') {
            None => Some((None, part.trim().parse().ok()?)),
            Some((partition, offset)) => Some((Some(partition.parse().ok()?), offset.parse().ok()?)),
        };
        let offsets: Option<Vec<(Option<u32>, u64)>> = text.split(',').map(one).collect();
        let offsets = offsets.ok_or_else(wrong)?;
        let mut named: Vec<_> = offsets.iter().map(|(partition, _)| *partition).collect();
        named.sort_unstable();
        named.dedup();
        if named.len() != offsets.len() || (named.len() > 1 && named[0].is_none()) {
            return Err(wrong());
        }
        Ok(Self::Offsets(offsets))
    }

    /// The offset that this means in a partition; `None` where it sets no limit.
    fn offset(&self, view: &PartitionView, partitions: usize) -> Result<Option<u64>> {
        match self {
            Self::Time(ms) => time_cut(view, *ms).map(Some),
            Self::Offsets(offsets) => {
                if let Some((None, offset)) = offsets.first() {
                    return match partitions {
                        1 => Ok(Some(*offset)),
                        n => Err(Error::invalid(format!(
                            "the topic has several partitions, say which an offset is of: offset={offset} partitions={n}"
                        ))
                        .with_hint(format!("0:{offset},1:{offset}"))),
                    };
                }
                let unknown = offsets.iter().find(|(partition, _)| partition.is_some_and(|p| p as usize >= partitions));
                if let Some((Some(partition), _)) = unknown {
                    let text =
                        format!("the topic has no such partition: partition={partition} partitions={partitions}");
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
                Ok(offsets.iter().find(|(of, _)| *of == Some(view.partition)).map(|(_, offset)| *offset))
            }
        }
    }
}

/// The records from `from` on and before `to`, one range per partition, those without records left out.
pub(super) fn between(view: &TopicView, from: Option<&Bound>, to: Option<&Bound>) -> Result<Vec<Extent>> {
    let mut ranges = Vec::new();
    for partition in &view.partitions {
        let offset = |bound: Option<&Bound>| match bound {
            Some(bound) => bound.offset(partition, view.partitions.len()),
            None => Ok(None),
        };
        let (first, end, number) = (partition.first, partition.end, partition.partition);
        let (from, to) = (offset(from)?.unwrap_or(first), offset(to)?.unwrap_or(end));
        if from < first && from < to {
            return Err(Error::new(
                ErrorKind::NotRetained,
                format!(
                    "records are no longer retained: topic={} partition={number} from={from} first={first} missing={}",
                    view.name,
                    first.min(to) - from
                ),
            )
            .with_hint(format!("begin at the first record that is left: --from {number}:{first}")));
        }
        if from.max(to) > end {
            return Err(Error::invalid(format!(
                "there is no such record yet: topic={} partition={number} offset={} end={end}",
                view.name,
                from.max(to)
            )));
        }
        if from < to {
            ranges.push(Extent { segment: number, incarnation: view.incarnation, from, to });
        }
    }
    Ok(ranges)
}

/// The offset with all records before it appended before `ms`, and all from it on at `ms` or later.
fn time_cut(view: &PartitionView, ms: u64) -> Result<u64> {
    let mut cut = None;
    let inexact = |(first, last): (u64, u64), from: u64, to: u64| {
        Error::invalid(format!(
            "the time falls between records whose own times are not kept: time={} partition={} offsets={from}..{to} appended={}..{}",
            time_text(ms),
            view.partition,
            time_text(first),
            time_text(last)
        ))
        .with_hint(format!("use a position, {}:{from} or {}:{to}, or a time outside of these", view.partition, view.partition))
    };
    let mut look = |time: (u64, u64), from: u64, to: u64| match cut {
        None if time.1 < ms => Ok(()),
        None if time.0 >= ms => {
            cut = Some(from);
            Ok(())
        }
        Some(_) if time.0 >= ms => Ok(()),
        _ => Err(inexact(time, from, to)),
    };
    for segment in view.segments() {
        match segment.time_ms()? {
            Some(time) if time.1 < ms || time.0 >= ms => look(time, segment.base, segment.end)?,
            _ => {
                let file = segment.file()?;
                for block in segment.blocks()?.iter() {
                    look(segment.about(&file, &block)?.1, block.base, block.end())?;
                }
            }
        }
    }
    Ok(cut.unwrap_or(view.end))
}

impl Catalogue {
    /// The checkpoint that `job@step`, `job@tag` or `job@latest` names.
    pub(super) fn checkpoint(&self, text: &str) -> Result<Checkpoint> {
        History::named(&self.store, text).map(|(_, checkpoint)| checkpoint)
    }

    /// The topic and all records that a state is over: its windows, or those of the version that it names.
    pub(super) fn of_state(&self, state: &State) -> Result<(TopicName, Vec<Extent>)> {
        let Some(pinned) = &state.dataset else {
            let extents = state.windows.iter().flat_map(|window| window.extents.clone());
            return Ok((state.topic.clone(), extents.filter(|extent| extent.count() > 0).collect()));
        };
        let named = self.resolve(&pinned.version)?;
        if version::fingerprint(&named) != pinned.fingerprint {
            let text = "the version was unpinned and made again since the checkpoint";
            return Err(Error::new(ErrorKind::StateMismatch, format!("{text}: version={}", pinned.version)));
        }
        let mut extents: Vec<Extent> = Vec::new();
        self.extents(&named, &mut |extent| {
            match extents.last_mut() {
                Some(last) if super::open::follows(last, extent) => last.to = extent.to,
                _ => extents.push(extent.extent()),
            }
            Ok(())
        })?;
        Ok((named.topic, extents))
    }
}

/// Milliseconds since 1970 as RFC 3339 in UTC.
pub fn time_text(ms: u64) -> String {
    let (days, ms) = (ms / 86_400_000, ms % 86_400_000);
    let (year, month, day) = civil(days);
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    match ms {
        0 => format!("{year:04}-{month:02}-{day:02}T{clock}Z"),
        ms => format!("{year:04}-{month:02}-{day:02}T{clock}.{ms:03}Z"),
    }
}

/// Year, month and day of a day since 1970, by counting in eras of 400 years that begin in March.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (month, year) = (if month < 10 { month + 3 } else { month - 9 }, year + 400 * era);
    (year + u64::from(month <= 2), month, day_of_year - (153 * ((month + 9) % 12) + 2) / 5 + 1)
}

/// The other way round.
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    let shifted = year.checked_sub(u64::from(month <= 2))?;
    let (era, year_of_era) = (shifted / 400, shifted % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = days.checked_sub(719_468)?;
    (civil(days) == (year, month, day)).then_some(days)
}

/// `2026-09-21T10:00:00Z`, with fraction down to milliseconds and offset, or a day.
fn rfc3339_ms(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let is = |at: usize, allowed: &str| text.as_bytes().get(at).is_some_and(|&b| allowed.contains(b as char));
    if !(is(4, "-") && is(7, "-")) {
        return None;
    }
    let days = days_of(number(0..4)?, number(5..7)?, number(8..10)?)?;
    if text.len() == 10 {
        return days.checked_mul(86_400_000);
    }
    if !(is(10, "Tt ") && is(13, ":") && is(16, ":")) {
        return None;
    }
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let rest = text.get(19..)?;
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let ms = match digits {
        0 => 0,
        1..=3 => number(20..20 + digits)? * 10u64.pow(3 - digits as u32),
        _ => return None,
    };
    let zone = if digits > 0 { rest.get(1 + digits..)? } else { rest };
    let local = ((days * 24 + hour) * 60 + minute) as i64;
    let minutes = match zone.as_bytes() {
        b"Z" | b"z" => local,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()) => {
            let digit = |b: &u8| i64::from(b - b'0');
            let offset = (digit(h1) * 10 + digit(h2)) * 60 + digit(m1) * 10 + digit(m2);
            if *sign == b'+' { local - offset } else { local + offset }
        }
        _ => return None,
    };
    u64::try_from(minutes).ok().map(|minutes| (minutes * 60 + second) * 1000 + ms)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_are_read() {
        let offsets = |list: &[(Option<u32>, u64)]| Bound::Offsets(list.into());
        for (text, bound) in [
            ("1000", offsets(&[(None, 1000)])),
            ("0:5, 3:7", offsets(&[(Some(0), 5), (Some(3), 7)])),
            ("17ms", Bound::Time(17)),
            ("1970-01-02", Bound::Time(86_400_000)),
            ("2026-09-21T10:00:00Z", Bound::Time(1_789_984_800_000)),
            ("2026-09-21T12:00:00.25+02:00", Bound::Time(1_789_984_800_250)),
        ] {
            assert_eq!(Bound::parse(text).unwrap(), bound, "{text}");
        }
        for text in [
            "",
            "x",
            "-1",
            "1:",
            ":1",
            "1,2",
            "0:1,0:2",
            "1,0:2",
            "ms",
            "2026-02-30",
            "2026-13-01",
            "2026-09-21T10:00:00",
            "2026-09-21T24:00:00Z",
            "2026-09-21T10:00:00.1234Z",
            "2026-09-21T10:00:00+0200",
            "1969-12-31",
            "2026-09-21é",
        ] {
            assert!(Bound::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn times_round_trip(ms in 0u64..253_402_300_800_000) {
            prop_assert_eq!(Bound::parse(&time_text(ms)).unwrap(), Bound::Time(ms));
        }

        #[test]
        fn no_text_panics(text in "[-0-9:,.TZms+é ]{0,30}") {
            let _ = Bound::parse(&text);
        }
    }
}
