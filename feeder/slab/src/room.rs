//! How much memory this process can have, and whether there is room for a slab before any of it is touched.
//!
//! Too large a slab must be refused with numbers. Left to the kernel it would be found out page by page, and end in the
//! out-of-memory killer or SIGBUS instead of an error. Asked are: the machine's available memory, the memory limits of
//! this process's control group and all its parents (version 1 and 2), and the limit on file sizes, which for a memfd
//! comes as a signal. What cannot be read does not limit.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::error::SlabError;

/// Bytes of this process's slabs that are not present yet: as good as taken, though nobody else can tell.
static PROMISED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes that a slab will still take. Given back as they become present, the rest when this is dropped.
#[derive(Debug)]
pub(crate) struct Promise(u64);

impl Promise {
    pub(crate) fn new(bytes: u64) -> Self {
        PROMISED_BYTES.fetch_add(bytes, Ordering::Relaxed);
        Self(bytes)
    }

    /// What is left of it.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.0
    }

    /// So many of them were taken.
    pub(crate) fn kept(&mut self, bytes: u64) {
        let bytes = bytes.min(self.0);
        self.0 -= bytes;
        PROMISED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.kept(self.0);
    }
}

/// Names of the limits, as messages show them.
const MEMORY: &str = "the machine's available memory";
const CGROUP: &str = "the memory limit of the control group";
const FILE_SIZE: &str = "the limit on file sizes (ulimit -f)";

/// The file names of one version of control groups.
struct CgroupFiles {
    mount: &'static str,
    max: &'static str,
    used: &'static str,
    /// What the kernel would give back under pressure, as lines of `memory.stat`.
    reclaimable: [&'static str; 2],
}

const V2: CgroupFiles = CgroupFiles {
    mount: "/sys/fs/cgroup",
    max: "memory.max",
    used: "memory.current",
    reclaimable: ["active_file", "inactive_file"],
};

const V1: CgroupFiles = CgroupFiles {
    mount: "/sys/fs/cgroup/memory",
    max: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: ["total_active_file", "total_inactive_file"],
};

/// Bytes that this process may still take: the least of what the machine has available, what its control groups allow,
/// and the limits on file sizes and on address space. The largest number where nothing limits.
pub fn available_bytes() -> u64 {
    least(&host_file)
        .map_or(u64::MAX, |(bytes, _)| bytes.saturating_sub(PROMISED_BYTES.load(Ordering::Relaxed)))
        .min(file_size().unwrap_or(u64::MAX))
        .min(address_space(&host_file).unwrap_or(u64::MAX))
}

/// Refuses a slab of `needed_bytes` that this process cannot have.
pub(crate) fn check(needed_bytes: u64) -> Result<(), SlabError> {
    if let Some(soft) = file_size().filter(|&soft| needed_bytes > soft) {
        return Err(SlabError::NoRoom { needed_bytes, available_bytes: Some(soft), limit: FILE_SIZE });
    }
    check_memory(needed_bytes, PROMISED_BYTES.load(Ordering::Relaxed), &host_file)
}

fn check_memory(
    needed_bytes: u64,
    promised_bytes: u64,
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<(), SlabError> {
    match least(read).map(|(bytes, limit)| (bytes.saturating_sub(promised_bytes), limit)) {
        Some((bytes, limit)) if needed_bytes > bytes => {
            Err(SlabError::NoRoom { needed_bytes, available_bytes: Some(bytes), limit })
        }
        _ => Ok(()),
    }
}

/// The memory that there is, and what limits it.
fn least(read: &dyn Fn(&str) -> Option<String>) -> Option<(u64, &'static str)> {
    let machine = read("/proc/meminfo").and_then(|text| number_of(&text, "MemAvailable:")).map(|kib| kib * 1024);
    let rooms = [(machine, MEMORY), (cgroup_room(read), CGROUP)];
    rooms.into_iter().filter_map(|(bytes, limit)| Some((bytes?, limit))).min()
}

fn host_file(path: &str) -> Option<String> {
    file_under(Path::new("/"), path)
}

/// The file at the absolute `path` of a system whose root is `root`.
fn file_under(root: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok()
}

fn file_size() -> Option<u64> {
    getrlimit(Resource::RLIMIT_FSIZE).ok().map(|(soft, _)| soft).filter(|&soft| soft != RLIM_INFINITY)
}

/// What the limit on address space (`ulimit -v`) still allows.
fn address_space(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_AS).ok().filter(|&(soft, _)| soft != RLIM_INFINITY)?;
    let pages: u64 = read("/proc/self/statm")?.split_whitespace().next()?.parse().ok()?;
    Some(soft.saturating_sub(pages.saturating_mul(crate::PAGE_BYTES as u64)))
}

/// The least that any control group above this process still allows.
fn cgroup_room(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let mine = read("/proc/self/cgroup")?;
    let mut room: Option<u64> = None;
    for line in mine.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let files = match controllers {
            "" => &V2,
            list if list.split(',').any(|name| name == "memory") => &V1,
            _ => continue,
        };
        // In a container the path may be the host's: directories that are not there are passed over, the mount is last.
        let mut path = path.trim_end_matches('/');
        loop {
            let here = group_room(&format!("{}{path}", files.mount), files, read);
            room = [room, here].into_iter().flatten().min();
            match path.rfind('/') {
                Some(end) => path = &path[..end],
                None => break,
            }
        }
    }
    room
}

fn group_room(dir: &str, files: &CgroupFiles, read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    // "max" is no number and no limit.
    let max: u64 = read(&format!("{dir}/{}", files.max))?.trim().parse().ok()?;
    // What is used may be hidden; the limit holds all the same.
    let used: u64 = read(&format!("{dir}/{}", files.used)).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let stat = read(&format!("{dir}/memory.stat")).unwrap_or_default();
    let reclaimable: u64 = files.reclaimable.iter().filter_map(|name| number_of(&stat, name)).sum();
    Some(max.saturating_sub(used.saturating_sub(reclaimable)))
}

/// The number in the line that begins with the word `name`.
fn number_of(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_ascii_whitespace).find(|words| words.clone().next() == Some(name))?;
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(files: &[(&str, &str)], needed_bytes: u64) -> Option<(u64, &'static str)> {
        let read = |path: &str| files.iter().find(|file| file.0 == path).map(|file| file.1.to_owned());
        match check_memory(needed_bytes, 0, &read) {
            Ok(()) => None,
            Err(SlabError::NoRoom { available_bytes, limit, .. }) => Some((available_bytes.unwrap(), limit)),
            Err(error) => panic!("{error}"),
        }
    }

    const MEMINFO: (&str, &str) = ("/proc/meminfo", "MemTotal:  64 kB\nMemAvailable:      32 kB\nBuffers: 1 kB\n");

    #[test]
    fn what_slabs_will_still_take_is_not_available() {
        let read = |path: &str| (path == MEMINFO.0).then(|| MEMINFO.1.to_owned());
        assert!(check_memory(16 * 1024, 16 * 1024, &read).is_ok());
        for (promised, left) in [(16 * 1024 + 1, 16 * 1024 - 1), (64 * 1024, 0)] {
            match check_memory(16 * 1024, promised, &read) {
                Err(SlabError::NoRoom { available_bytes, .. }) => assert_eq!(available_bytes, Some(left)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn available_memory_limits() {
        assert_eq!(refused(&[MEMINFO], 32 * 1024), None);
        assert_eq!(refused(&[MEMINFO], 32 * 1024 + 1), Some((32 * 1024, MEMORY)));
        assert_eq!(refused(&[], u64::MAX), None);
        assert_eq!(refused(&[("/proc/meminfo", "MemAvailable: many kB")], u64::MAX), None);
    }

    #[test]
    fn every_parent_group_limits_and_page_cache_does_not_count() {
        let files = [
            MEMINFO,
            ("/proc/self/cgroup", "1:cpu:/x\n0::/pod/job\n"),
            ("/sys/fs/cgroup/pod/job/memory.max", "max\n"),
            ("/sys/fs/cgroup/pod/job/memory.current", "10\n"),
            ("/sys/fs/cgroup/pod/memory.max", "1000\n"),
            ("/sys/fs/cgroup/pod/memory.current", "900\n"),
            ("/sys/fs/cgroup/pod/memory.stat", "anon 100\ninactive_file 300\nactive_file 200\n"),
        ];
        assert_eq!(refused(&files, 600), None);
        assert_eq!(refused(&files, 601), Some((600, CGROUP)));
    }

    /// A system with the group `/pod/job` of version 2 and these files, as real ones: `(path, text)`.
    fn room_of(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/self/cgroup", "0::/pod/job\n")].iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        cgroup_room(&|path| file_under(root.path(), path))
    }

    #[test]
    fn groups_of_version_2_are_read_from_their_files() {
        let (job, job_used) = ("sys/fs/cgroup/pod/job/memory.max", "sys/fs/cgroup/pod/job/memory.current");
        let (pod, pod_used) = ("sys/fs/cgroup/pod/memory.max", "sys/fs/cgroup/pod/memory.current");
        let mount = "sys/fs/cgroup/memory.max";
        assert_eq!(room_of(&[]), None, "nothing is mounted");
        assert_eq!(room_of(&[(job, "max\n"), (job_used, "10\n")]), None, "no limit");
        assert_eq!(room_of(&[(job, "1000\n"), (job_used, "10\n")]), Some(990));
        // The least of all groups above counts, wherever it stands; those without a file are passed over.
        let nested = [(job, "1000\n"), (job_used, "10\n"), (pod, "500\n"), (pod_used, "20\n")];
        assert_eq!(room_of(&nested), Some(480));
        assert_eq!(room_of(&[(job, "max\n"), (job_used, "10\n"), (pod, "500\n"), (pod_used, "20\n")]), Some(480));
        assert_eq!(room_of(&[(job, "1000\n"), (job_used, "10\n"), (pod, "max\n"), (pod_used, "20\n")]), Some(990));
        assert_eq!(room_of(&[(job, "1000\n"), (job_used, "10\n"), (mount, "300\n")]), Some(300), "a namespace's own");
        // Page cache is given back under pressure.
        let stat = ("sys/fs/cgroup/pod/job/memory.stat", "anon 3\nfile 9\nactive_file 5\ninactive_file 4\n");
        assert_eq!(room_of(&[(job, "1000\n"), (job_used, "10\n"), stat]), Some(999));
        let odd = ("sys/fs/cgroup/pod/job/memory.stat", "active_file many\ninactive_file\n\n");
        assert_eq!(room_of(&[(job, "1000\n"), (job_used, "10\n"), odd]), Some(990));
        // More than everything is used: no room, and no overflow.
        assert_eq!(room_of(&[(job, "1000\n"), (job_used, "4096\n")]), Some(0));
    }

    #[test]
    fn numbers_of_groups_that_cannot_be_read_do_not_limit() {
        let (job, job_used) = ("sys/fs/cgroup/pod/job/memory.max", "sys/fs/cgroup/pod/job/memory.current");
        for text in ["", "\n", "many", "-1", "1e9", "99999999999999999999999999"] {
            assert_eq!(room_of(&[(job, text), (job_used, "10\n")]), None, "memory.max={text:?}");
            assert_eq!(room_of(&[(job, "1000\n"), (job_used, text)]), Some(1000), "memory.current={text:?}");
        }
        assert_eq!(room_of(&[(job, "1000\n")]), Some(1000));
        let lines = |text| room_of(&[("proc/self/cgroup", text), (job, "1000\n")]);
        for text in ["", "0::", "0\n", "::\n", "0::/another\n", "1:cpu:/pod/job\n"] {
            assert_eq!(lines(text), None, "{text:?}");
        }
        assert_eq!(lines("0::/pod/job/deeper\n"), Some(1000));
    }

    #[test]
    fn a_container_whose_path_is_the_hosts_is_limited_by_its_mount() {
        let files = [
            ("/proc/self/cgroup", "12:cpu,cpuacct:/a\n4:memory:/docker/0123\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 150\n"),
        ];
        assert_eq!(refused(&files, 50), None);
        assert_eq!(refused(&files, 51), Some((50, CGROUP)));
    }

    #[test]
    fn a_small_slab_has_room_here() {
        check(1 << 20).unwrap();
        assert!(available_bytes() >= 1 << 20);
        assert!(matches!(check(1 << 60), Err(SlabError::NoRoom { needed_bytes, .. }) if needed_bytes == 1 << 60));
    }
}
