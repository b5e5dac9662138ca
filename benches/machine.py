"""The machine: what it is, what else runs on it, what is in its page cache.

Figures of a shared machine are worth what its load lets them be worth, so every run is taken down with the load and the
processor time that others used meanwhile. How the page cache was filled moves figures by two and more: it holds files
in pieces of 4 KiB to 2 MiB, the larger the faster they are copied, and read-ahead begins each file with small ones (24
MiB of them at 8 MiB of read-ahead). So it is filled in one way for all: dropped, then brought in by pieces of 2 MiB, in
which Forebay fills it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import mmap
import os
import platform
import resource
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WARM_READ_BYTES = 4 << 20
_MADV_POPULATE_READ = 22
"""Linux 5.14; Python has no name for it."""


def busy_s() -> float:
    """Processor seconds that the whole machine has used, or that were taken from it, since it started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def own_s(who: int = resource.RUSAGE_SELF) -> float:
    """Processor seconds of this process, all its threads."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def wait_idle(most_s: float, part: float = 0.12) -> None:
    """Waits until others use less than `part` of the machine, but no longer than `most_s`."""
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        busy, began = busy_s(), time.monotonic()
        time.sleep(0.25)
        if busy_s() - busy < part * (time.monotonic() - began) * (os.cpu_count() or 1):
            return


def warm(files: Iterable[Path]) -> None:
    """Brings files into the page cache: drops them, then has them read by huge pages, and in order what is left."""
    for file in sorted(files):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            _populate(fd)
            while os.read(fd, _WARM_READ_BYTES):
                pass
        finally:
            os.close(fd)


def _populate(fd: int) -> None:
    """Has the kernel bring in a file by huge pages; kernels and file systems that cannot do without it."""
    # An empty file is a ValueError.
    with contextlib.suppress(OSError, ValueError), mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_HUGEPAGE)
        mapped.madvise(_MADV_POPULATE_READ)


def drop(files: Sequence[Path], most: float = 0.01) -> None:
    """Takes files out of the page cache, whatever else is in it; raises if more than `most` stays."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    if resident_part(files) > most:
        # Somebody maps them, or the file system does not care: all that is clean then, if we may.
        with contextlib.suppress(OSError):
            Path("/proc/sys/vm/drop_caches").write_text("1\n")
    if (left := resident_part(files)) > most:
        raise RuntimeError(f"files stay in the page cache, so nothing can be measured cold: part={left:.2f}")


def resident_part(files: Iterable[Path]) -> float:
    """How much of the files is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = resident = 0
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        size = os.fstat(fd).st_size
        address = libc.mmap(None, size, 1, 1, fd, 0)  # PROT_READ, MAP_SHARED
        os.close(fd)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "cannot map a file to see its pages", str(file))
        flags = ctypes.create_string_buffer(-(-size // _PAGE_BYTES))
        failed = libc.mincore(address, size, flags)
        libc.munmap(address, size)
        if failed:
            raise OSError(ctypes.get_errno(), "cannot see a file's pages", str(file))
        pages += len(flags.raw)
        resident += sum(flag & 1 for flag in flags.raw)
    return resident / max(pages, 1)


def memory_bytes(field: str) -> int:
    """A field of this process's memory counts, such as VmRSS (now) or VmHWM (most)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"the kernel does not count it: field={field}")


def forget_peak_memory() -> None:
    """Makes VmHWM begin again at what is in use now."""
    Path("/proc/self/clear_refs").write_text("5")


def describe(data: Path, repository: Path) -> dict[str, Any]:
    """The machine and the software, without names of hosts, users or folders. `data` is on the file system meant."""
    cpu = _cpu()
    return {
        "kind": "machine",
        "cpu": cpu.get("Model name", platform.machine()),
        "cpu_family_model": f"{cpu.get('CPU family', '?')}/{cpu.get('Model', '?')}",
        "cores": os.cpu_count(),
        "l2": cpu.get("L2 cache", "?"),
        "l3": cpu.get("L3 cache", "?"),
        "hypervisor": cpu.get("Hypervisor vendor", "none"),
        "memory_gib": round(_PAGE_BYTES * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "filesystem": _filesystem(data),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("forebay", "torch", "numpy")},
        "commit": _git(repository, "rev-parse", "--short=12", "HEAD"),
        "changed": bool(_git(repository, "status", "--porcelain", "--untracked-files=no")),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": os.getloadavg()[0],
    }


def _cpu() -> dict[str, str]:
    try:
        text = subprocess.run(["lscpu"], check=True, capture_output=True, text=True, env={"LC_ALL": "C"}).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _filesystem(path: Path) -> str:
    """Type of the file system that holds `path`."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1]
    return "?"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _git(repository: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
