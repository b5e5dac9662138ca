//! The list of members of a zip archive, as far as npz needs it: names, places, sizes, sums.
//!
//! Read strictly: members that share a name or overlap, encrypted members, and sizes that the file or the compression
//! cannot hold are refused, so that what the list says can be relied on. Records, all little endian:
//!
//! ```text
//! end (22 bytes)      PK\5\6 | disk u16 | disk u16 | entries u16 | entries u16 | bytes u32 | offset u32 | comment u16
//! end, 64 bit (56)    PK\6\6 | 12 bytes of size and versions.. | disks | entries u64 | entries u64 | bytes u64 | offset u64
//! its locator (20)    PK\6\7 | disk u32 | offset u64 | disks u32        just in front of the end
//! entry (46)          PK\1\2 | .. | flags u16 | method u16 | .. | crc u32 | packed u32 | bytes u32 | name, extra, comment | offset
//! member (30)         PK\3\4 | .. | name u16 | extra u16 | name, extra, data
//! ```

use super::raw::Input;
use crate::error::{Error, Result};

/// Longest archive comment, and so the furthest the end can be from the file's end.
const COMMENT_BYTES_MAX: u64 = u16::MAX as u64;
/// Most bytes of a directory that are read: some hundred thousand members.
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;
/// Deflate cannot make more of one byte than this.
const DEFLATE_RATIO_MAX: u64 = 1032;
const END_BYTES: u64 = 22;
const LOCATOR_BYTES: u64 = 20;
const END64_BYTES: usize = 56;
const ENTRY_BYTES: usize = 46;
const MEMBER_BYTES: u64 = 30;
const FLAG_ENCRYPTED: u16 = 1;

/// How a member's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Stored,
    Deflated,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) method: Method,
    pub(super) crc: u32,
    /// Where its data begin in the file.
    pub(super) at: u64,
    /// Bytes in the file.
    pub(super) packed_bytes: u64,
    /// Bytes when unpacked, as declared.
    pub(super) bytes: u64,
}

/// The members in the file's order.
pub(super) fn members(input: &Input) -> Result<Vec<Member>> {
    let (entries, at, bytes) = directory_place(input)?;
    if bytes > DIRECTORY_BYTES_MAX {
        return Err(input.corrupt("the zip directory is too large", at));
    }
    let directory = input.read(at, bytes as usize)?;
    let mut rest = directory.as_slice();
    let mut members: Vec<Member> = Vec::new();
    while !rest.is_empty() {
        let place = at + (directory.len() - rest.len()) as u64;
        members.push(entry(input, &mut rest, place)?);
    }
    if members.len() as u64 != entries {
        return Err(input.corrupt("the zip directory has another number of members than declared", at));
    }
    let mut names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(input.corrupt(&format!("two members of the zip have the same name, member={:?}", twice[0]), at));
    }
    members.sort_by_key(|member| member.at);
    let ends = members.iter().map(|member| member.at + member.packed_bytes);
    let next = members.iter().skip(1).map(|member| member.at).chain([at]);
    if let Some((end, _)) = ends.zip(next).find(|(end, next)| end > next) {
        return Err(input.corrupt("members of the zip overlap", end));
    }
    Ok(members)
}

/// Number of entries, offset and bytes of the directory.
fn directory_place(input: &Input) -> Result<(u64, u64, u64)> {
    let tail_bytes = input.bytes().min(END_BYTES + COMMENT_BYTES_MAX);
    let tail_at = input.bytes() - tail_bytes;
    let tail = input.read(tail_at, tail_bytes as usize)?;
    let missing = || {
        input
            .corrupt("the zip directory is missing", input.bytes())
            .with_hint("the file is truncated or still being written: write or copy it again")
    };
    let is_end = |at: &usize| {
        let end = &tail[*at..];
        end.starts_with(b"PK\x05\x06") && usize::from(u16_at(end, 20)) == end.len() - END_BYTES as usize
    };
    let last = tail.len().checked_sub(END_BYTES as usize).ok_or_else(missing)?;
    let place = (0..=last).rev().find(is_end).ok_or_else(missing)?;
    let end = &tail[place..];
    let end_at = tail_at + place as u64;
    let (disk, entries) = (u16_at(end, 4), u16_at(end, 10));
    let (bytes, at) = (u32_at(end, 12), u32_at(end, 16));
    if disk != 0 && disk != u16::MAX {
        return Err(input.corrupt("zips of several parts are not read", end_at));
    }
    // Some writers (CPython's, from 2 GiB on) add the 64-bit end although every value fits into the 32-bit one.
    let apart = u64::from(at) + u64::from(bytes) != end_at && has_locator(input, end_at)?;
    let (entries, at, bytes, before) = match apart || entries == u16::MAX || bytes == u32::MAX || at == u32::MAX {
        false => (u64::from(entries), u64::from(at), u64::from(bytes), end_at),
        true => end64(input, end_at)?,
    };
    match at.checked_add(bytes) {
        Some(directory_end) if directory_end == before => Ok((entries, at, bytes)),
        _ => Err(input.corrupt("the zip directory is not where its end says", end_at)),
    }
}

/// Whether the pointer to a 64-bit end stands before the end.
fn has_locator(input: &Input, end_at: u64) -> Result<bool> {
    match end_at.checked_sub(LOCATOR_BYTES) {
        Some(at) => Ok(input.read(at, LOCATOR_BYTES as usize)?.starts_with(b"PK\x06\x07")),
        None => Ok(false),
    }
}

/// The same from the 64-bit end, and that end's own offset.
fn end64(input: &Input, end_at: u64) -> Result<(u64, u64, u64, u64)> {
    let wrong = |at| input.corrupt("the 64-bit end of the zip directory is damaged", at);
    let locator_at = end_at.checked_sub(LOCATOR_BYTES).ok_or_else(|| wrong(end_at))?;
    let locator = input.read(locator_at, LOCATOR_BYTES as usize)?;
    if !locator.starts_with(b"PK\x06\x07") {
        return Err(wrong(locator_at));
    }
    let at = u64_at(&locator, 8);
    let end = input.read(at, END64_BYTES).map_err(|_| wrong(locator_at))?;
    if !end.starts_with(b"PK\x06\x06") {
        return Err(wrong(at));
    }
    Ok((u64_at(&end, 32), u64_at(&end, 48), u64_at(&end, 40), at))
}

/// Takes one entry off the directory.
fn entry(input: &Input, rest: &mut &[u8], place: u64) -> Result<Member> {
    let damaged = || input.corrupt("an entry of the zip directory is damaged", place);
    let fixed = take(rest, ENTRY_BYTES).filter(|fixed| fixed.starts_with(b"PK\x01\x02")).ok_or_else(damaged)?;
    let name = take(rest, usize::from(u16_at(fixed, 28))).ok_or_else(damaged)?;
    let mut extra = take(rest, usize::from(u16_at(fixed, 30))).ok_or_else(damaged)?;
    take(rest, usize::from(u16_at(fixed, 32))).ok_or_else(damaged)?;
    let name = String::from_utf8(name.to_vec()).map_err(|_| damaged())?;
    let refuse = |why: &str| Err(Error::invalid(format!("{why}: path={} member={name:?}", input.path().display())));

    let (mut packed_bytes, mut bytes) = (u64::from(u32_at(fixed, 20)), u64::from(u32_at(fixed, 24)));
    let mut header_at = u64::from(u32_at(fixed, 42));
    while extra.len() >= 4 {
        let (id, length) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        extra = &extra[4..];
        let mut field = take(&mut extra, length).ok_or_else(damaged)?;
        if id == 1 {
            // Only those values are here whose 32-bit form is all ones, in this order.
            for value in [&mut bytes, &mut packed_bytes, &mut header_at] {
                if *value == u64::from(u32::MAX) {
                    *value = u64_at(take(&mut field, 8).ok_or_else(damaged)?, 0);
                }
            }
        }
    }
    if u16_at(fixed, 8) & FLAG_ENCRYPTED != 0 {
        return refuse("encrypted members of a zip are not read");
    }
    let method = match u16_at(fixed, 10) {
        0 => Method::Stored,
        8 => Method::Deflated,
        other => return refuse(&format!("members are read stored or deflated, not with compression method {other}")),
    };
    let possible = match method {
        Method::Stored => bytes == packed_bytes,
        Method::Deflated => bytes <= packed_bytes.saturating_mul(DEFLATE_RATIO_MAX),
    };
    if !possible {
        return Err(input.corrupt(&format!("a member declares a size that it cannot have, member={name:?}"), place));
    }
    let header = input.read(header_at, MEMBER_BYTES as usize).map_err(|_| damaged())?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(damaged());
    }
    let at = header_at + MEMBER_BYTES + u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
    match at.checked_add(packed_bytes) {
        Some(end) if end <= input.bytes() => {
            Ok(Member { name, method, crc: u32_at(fixed, 16), at, packed_bytes, bytes })
        }
        _ => Err(damaged()),
    }
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(bytes)?;
    *rest = tail;
    Some(head)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
