//! Which process a run record is of, and whether it is certain that this process is gone.
//!
//! A launcher may start a job again under the name of the attempt before. A run record of that attempt whose rank 0 is
//! gone is not what the new ranks wait for. The text is `<boot id>/<pid namespace>/<pid>/<start time>`: a process id that
//! is used again has another start time. What another machine, or another container, cannot see, it does not judge.

use std::fs;

/// This process, where the system says all parts.
pub fn this_process() -> Option<String> {
    let pid = std::process::id();
    let (_, started) = stat(pid)?;
    Some(format!("{}/{}/{pid}/{started}", boot_id()?, namespace()?))
}

/// Name of this machine.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".into() } else { name.into() }
}

/// Whether a process has ended. `false` if it runs, is stopped, or cannot be judged from here.
pub fn is_gone(process: Option<&str>, its_host: &str) -> bool {
    let Some([boot, space, pid, started]) = process.and_then(parts) else { return false };
    let (Some(boot_here), Some(space_here)) = (boot_id(), namespace()) else { return false };
    if boot != boot_here {
        // The machine was started anew since; another machine is none of ours to judge.
        return its_host == host();
    }
    let Ok(pid) = pid.parse() else { return false };
    // A process without an entry there has ended, as has one that only waits for its parent to take notice.
    space == space_here && stat(pid).is_none_or(|(state, since)| matches!(state, 'Z' | 'X') || since != started)
}

/// Whether it is certain that a process has not ended.
pub fn is_running(process: Option<&str>) -> bool {
    let Some([boot, space, pid, started]) = process.and_then(parts) else { return false };
    let here = boot_id().is_some_and(|here| here == boot) && namespace().is_some_and(|here| here == space);
    let found = pid.parse().ok().and_then(stat);
    here && found.is_some_and(|(state, since)| !matches!(state, 'Z' | 'X') && since == started)
}

fn parts(text: &str) -> Option<[&str; 4]> {
    text.split('/').collect::<Vec<_>>().try_into().ok()
}

fn boot_id() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().into())
}

/// Inode of the pid namespace.
fn namespace() -> Option<String> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let digits: String = link.to_str()?.chars().filter(char::is_ascii_digit).collect();
    (!digits.is_empty()).then_some(digits)
}

/// State letter and start time, in ticks since the machine started.
fn stat(pid: u32) -> Option<(char, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.into()))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_living_and_the_dead_are_told_apart() {
        let own = this_process().unwrap();
        assert!(is_running(Some(&own)) && !is_gone(Some(&own), &host()));

        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let [boot, space, ..] = parts(&own).unwrap();
        let (_, started) = stat(child.id()).unwrap();
        let theirs = format!("{boot}/{space}/{}/{started}", child.id());
        assert!(is_running(Some(&theirs)) && !is_gone(Some(&theirs), &host()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(Some(&theirs), &host()) && !is_running(Some(&theirs)));
    }

    #[test]
    fn a_process_id_used_again_is_another_process() {
        let own = this_process().unwrap();
        let [boot, space, pid, _] = parts(&own).unwrap();
        let earlier = format!("{boot}/{space}/{pid}/1");
        assert!(is_gone(Some(&earlier), &host()) && !is_running(Some(&earlier)));
    }

    #[test]
    fn what_cannot_be_seen_from_here_is_not_judged() {
        let own = this_process().unwrap();
        let [boot, space, pid, started] = parts(&own).unwrap();
        let elsewhere = format!("{boot}/1{space}/{pid}/1");
        for process in [None, Some(""), Some("x/y"), Some(&*elsewhere), Some(&*format!("b/{space}/{pid}/{started}"))] {
            assert!(!is_gone(process, "another-host") && !is_running(process), "{process:?}");
        }
        assert!(is_gone(Some(&format!("b/{space}/{pid}/{started}")), &host()), "before this machine's last start");
    }
}
