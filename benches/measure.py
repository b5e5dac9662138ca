"""One measurement of one contestant, in the process that the benchmark makes for it. Prints one line of JSON.

    measure.py JOB        with JOB as JSON: what, contestant, workload, folder, and what the measurement needs

What is measured:
- check: one whole epoch against the raw file, byte by byte; of slow peers what comes in the time given.
- epochs: whole epochs, first batch included; opening and its own first steps are told apart.
- ranks: the same of one of several processes, which begin together: it says `ready` and waits for a line.
- first: a fresh loader's first batch: in order, far into the data through a loaded state, shuffled.
- latency: a consumer slower than the loader, so that batches are ready: next(), letting go of a batch, state_dict().
- paced: a consumer that takes a batch at fixed times: next(), whether or not the batch was ready.
- allocations: heap allocations in steady state, where the counter is preloaded (allocations.c).
- write: a peer's own format.

Imports are done before any clock runs, and no consumer touches the data.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import machine
import peers
from contestants import OURS, Batch, Forebay, Loop, Opened, Part
from workloads import WORKLOADS, Checker, Data, Workload

PACE_NS = 500_000
"""Time between two batches of the slow consumer: several times what reading one takes."""
WARM_UP_STEPS = 64
"""Batches before latencies count."""
LATE_MOST = 16
"""Batches that a paced consumer makes good when it is late itself."""
READY = "ready"
"""What a process says that waits for others."""
_GIGA = 1e9


@dataclass(frozen=True)
class Job:
    """What main was asked for."""

    contestant: Loop
    workload: Workload
    data: Data
    part: Part

    def open(self) -> Opened:
        """The contestant at work."""
        return self.contestant.open(self.workload, self.data, self.part)

    def forebay(self) -> Forebay:
        """Ours at work; others have no such calls."""
        opened = self.open()
        if not isinstance(opened, Forebay):
            raise TypeError(f"calls of Forebay's own are measured: contestant={self.contestant.name}")
        return opened


def _steps(opened: Opened, number: int) -> int:
    count = 0
    for _batch in opened.epoch(number):
        count += 1
    return count


def check(job: Job, cap_s: float) -> dict[str, Any]:
    """One epoch, looked at, or what of it comes within the time."""
    opened = job.open()
    checker, end = Checker(job.workload, job.data.raw), time.monotonic() + cap_s
    dtypes: dict[str, str] = {}
    whole = True
    for batch in opened.epoch(0):
        columns = {name: values.numpy() for name, values in batch.items()}
        dtypes = dtypes or {name: str(values.dtype) for name, values in columns.items()}
        checker.batch(columns.pop("id"), columns)
        if time.monotonic() > end:
            whole = checker.samples == job.workload.samples
            break
    stats = opened.stats()
    opened.close()
    field = job.workload.only
    widened = dtypes.get(field.name) if field and dtypes.get(field.name) != field.dtype else None
    return {**checker.result(), "whole": whole, "widened": widened, "slab_bytes": stats.get("slab_bytes", 0)}


class Taken:
    """Batches counted as they come, over whole epochs; a slow loader is cut off."""

    def __init__(self, job: Job, opened: Opened, cap_s: float) -> None:
        self.job, self.opened, self.cap_s = job, opened, cap_s
        self.epoch_s: list[float] = []
        self.steps = self.samples = 0
        self.first_s = 0.0
        self.capped = False

    def run(self, batches: Iterator[Batch], least_s: float, least: int, most: int) -> None:
        """Whole epochs until both leasts are reached, or `most`, or the cap."""
        take = self._rows if self.job.contestant.kind == "peer" else self._whole
        clock = time.perf_counter
        began = epoch_began = clock()
        while True:
            take(batches, began)
            now = clock()
            self.epoch_s.append(now - epoch_began)
            done = len(self.epoch_s)
            if self.capped or done >= most or (done >= least and now - began >= least_s):
                return
            epoch_began = now
            batches = self.opened.epoch(done)

    def _whole(self, batches: Iterator[Batch], began: float) -> None:
        """One epoch of a loader that gives every batch: nothing is done but counting."""
        before = self.steps
        for _batch in batches:
            if not self.steps:
                self.first_s = time.perf_counter() - began
            self.steps += 1
        if self.steps - before != self.job.workload.steps:
            raise RuntimeError(f"not every batch came: steps={self.steps - before} of={self.job.workload.steps}")
        self.samples += self.job.workload.samples

    def _rows(self, batches: Iterator[Batch], began: float) -> None:
        """One epoch of a loader that may cut batches elsewhere, as with several workers."""
        for batch in batches:
            now = time.perf_counter()
            if not self.steps:
                self.first_s = now - began
            self.steps += 1
            self.samples += len(batch["id"])
            if now - began - self.first_s > self.cap_s:
                self.capped = self.samples % self.job.workload.samples != 0
                return


def _together(contestant: Loop) -> float:
    """Processor seconds of this process, and of a peer's workers that have ended."""
    return machine.own_s() + (machine.own_s(resource.RUSAGE_CHILDREN) if contestant.kind == "peer" else 0.0)


def epochs(job: Job, least_s: float, least: int, most: int, cap_s: float, together: bool = False) -> dict[str, Any]:
    """Whole epochs, until both leasts are reached."""
    clock = time.perf_counter
    machine.forget_peak_memory()
    memory = machine.memory_bytes("VmRSS")
    busy, cpu, opened_at = machine.busy_s(), _together(job.contestant), clock()
    opened = job.open()
    made_at = clock()
    if together:
        print(READY, flush=True)
        sys.stdin.readline()
        made_at = clock()
    taken = Taken(job, opened, cap_s)
    batches = opened.epoch(0)
    began, cpu_began = clock(), _together(job.contestant)
    before, usage_before = opened.stats(), resource.getrusage(resource.RUSAGE_SELF)
    taken.run(batches, least_s, least, most)
    ended = clock()
    del batches  # A peer's workers end with it, and are counted then.
    cpu_s, usage, after = _together(job.contestant), resource.getrusage(resource.RUSAGE_SELF), opened.stats()
    whole_s, others_s = clock() - opened_at, machine.busy_s() - busy - (cpu_s - cpu)
    slab_bytes = after.get("slab_bytes", 0)
    peak = machine.memory_bytes("VmHWM")
    # A slab whose slots never were all needed is not there whole.
    present_bytes = min(slab_bytes, machine.memory_bytes("RssShmem"))
    opened.close()
    steps = taken.steps
    delivered = taken.samples * job.workload.sample_bytes // job.part.world
    counts = {name: (after[name] - before[name]) / steps for name in ("units", "reads", "syscalls") if name in after}
    return {
        "bytes": delivered,
        "epoch_bytes": job.workload.epoch_bytes,
        "epoch_s": taken.epoch_s,
        "began_s": began,
        "ended_s": ended,
        "steps": steps,
        "capped": taken.capped,
        "workers": job.part.workers,
        "cpu_s": cpu_s - cpu_began,
        "open_ms": (made_at - opened_at) * 1e3,
        "start_ms": (began - made_at) * 1e3,
        "first_batch_ms": taken.first_s * 1e3,
        "whole_s": whole_s,
        "others_s": others_s,
        "slab_bytes": slab_bytes,
        "memory_beyond_slab_bytes": peak - memory - present_bytes,
        "per_batch": {
            **counts,
            "switches": (usage.ru_nvcsw - usage_before.ru_nvcsw) / steps,
            "preemptions": (usage.ru_nivcsw - usage_before.ru_nivcsw) / steps,
            "page_faults": (usage.ru_minflt - usage_before.ru_minflt) / steps,
        },
        "read_per_delivered": (after["read_bytes"] - before["read_bytes"]) / delivered
        if "read_bytes" in after
        else None,
        "stall_s": (after["stall_ns"] - before["stall_ns"]) / _GIGA if "stall_ns" in after else None,
        "checked_units": after.get("checked_units", 0) - before.get("checked_units", 0),
    }


def first(job: Job, far: bool) -> dict[str, Any]:
    """Time from nothing but imports to the first batch; `far`: at the last whole step but one, by a state."""
    state = None
    if far:
        with job.forebay().loader as loader:
            state = loader.state_dict()
        state["cursor"]["n"] = max(0, job.workload.steps - 2) * job.workload.batch
    gc.collect()
    began = time.perf_counter()
    opened = job.forebay()
    if state is not None:
        opened.loader.load_state_dict(state)
    batch = next(opened.epoch(0))
    first_s = time.perf_counter() - began
    rows = len(batch["id"])
    del batch
    opened.close()
    return {"far": far, "first_batch_ms": first_s * 1e3, "rows": rows}


def latency(job: Job, least: int) -> dict[str, Any]:
    """What calls cost when the loader is ahead. Steps whose batch was not ready are left out, and counted."""
    clock = time.perf_counter_ns
    opened = job.forebay()
    loader = opened.loader
    nexts, releases, states, late, steps, epoch = list[int](), list[int](), list[int](), 0, 0, 0
    gc.collect()
    while len(nexts) < least and steps < 4 * least:
        batches, batch = opened.epoch(epoch), None
        epoch += 1
        due = clock()
        while True:
            due = max(due + PACE_NS, clock())
            while clock() < due:
                pass
            stalled = loader.stats()["stall_ns"]
            began = clock()
            fresh = next(batches, None)
            taken = clock()
            ready = loader.stats()["stall_ns"] == stalled
            letting_go = clock()
            batch = fresh
            let_go = clock()
            if batch is None:
                break
            asked = clock()
            loader.state_dict()
            answered = clock()
            steps += 1
            if steps <= WARM_UP_STEPS:
                continue
            states.append(answered - asked)
            releases.append(let_go - letting_go)
            if ready:
                nexts.append(taken - began)
            else:
                late += 1
    opened.close()
    return {
        "pace_us": PACE_NS / 1e3,
        "late": late,
        "next_us": _spread_us(nexts),
        "release_us": _spread_us(releases),
        "state_dict_us": _spread_us(states),
    }


def paced(job: Job, least: int, seconds: float, part: float) -> dict[str, Any]:
    """What next() takes when batches are wanted at `part` of the rate that the same loader reached just before.

    That is what whole epochs took at full speed, of so many seconds. Between batches the consumer looks at the clock.
    """
    clock = time.perf_counter_ns
    opened = job.forebay()
    # In the first epoch the slab grows while a reader begins; what is asked is how a training goes on.
    _steps(opened, 0)
    steps, epoch, began = 0, 1, clock()
    while clock() - began < seconds * 1e9:
        steps += _steps(opened, epoch)
        epoch += 1
    pace_ns = round((clock() - began) / steps / part)
    gc.collect()
    nexts, began = list[int](), clock()
    while len(nexts) < least + WARM_UP_STEPS:
        batches, due = opened.epoch(epoch), clock()
        epoch += 1
        while True:
            due = max(due + pace_ns, clock() - LATE_MOST * pace_ns)
            while clock() < due:
                pass
            asked = clock()
            batch = next(batches, None)
            answered = clock()
            if batch is None:
                break
            nexts.append(answered - asked)
    reached_ns = (clock() - began) / len(nexts)
    opened.close()
    return {"pace_us": pace_ns / 1e3, "reached_us": reached_ns / 1e3, "next_us": _spread_us(nexts[WARM_UP_STEPS:])}


def _spread_us(values_ns: list[int]) -> dict[str, float]:
    values = sorted(values_ns)
    if not values:
        return {"count": 0}
    at = {"min": 0, "p50": len(values) // 2, "p99": min(len(values) - 1, len(values) * 99 // 100), "max": -1}
    return {"count": len(values), **{name: values[index] / 1e3 for name, index in at.items()}}


def allocations(job: Job, least: int) -> dict[str, Any]:
    """Heap allocations of a batch after the first epoch: those of Rust, of torch, and Python's above 512 bytes."""
    count = ctypes.CDLL(None).forebay_bench_allocations
    calls, size = ctypes.c_uint64(), ctypes.c_uint64()
    opened = job.open()
    _steps(opened, 0)
    gc.collect()
    count(ctypes.byref(calls), ctypes.byref(size))
    calls_before, bytes_before, steps = calls.value, size.value, 0
    for number in range(1, least + 1):
        steps += _steps(opened, number)
    count(ctypes.byref(calls), ctypes.byref(size))
    opened.close()
    return {
        "allocations_per_batch": (calls.value - calls_before) / steps,
        "allocated_bytes_per_batch": (size.value - bytes_before) / steps,
    }


def write(job: Job, name: str) -> dict[str, Any]:
    """A peer's own format, from the raw file."""
    began = time.perf_counter()
    peers.write(job.workload, job.data, name)
    files = job.data.of_format(name)
    written = sum(file.stat().st_size for file in files)
    return {"format": name, "seconds": time.perf_counter() - began, "bytes": written, "files": len(files)}


def _version(contestant: Loop) -> dict[str, str]:
    package = contestant.package if isinstance(contestant, peers.Peer) else None
    return {"version": importlib.metadata.version(package)} if package else {}


def measure(what: str, job: Job, asked: dict[str, Any]) -> dict[str, Any]:
    """Does what was asked for."""
    cap_s = float(asked.get("cap_s", sys.maxsize))
    match what:
        case "check":
            return {**check(job, cap_s), **_version(job.contestant)}
        case "epochs":
            return epochs(job, asked["least_s"], asked["least"], asked.get("most", sys.maxsize), cap_s)
        case "ranks":
            return epochs(job, 0, asked["epochs"], asked["epochs"], cap_s, together=True)
        case "first":
            return first(job, asked["far"])
        case "latency":
            return latency(job, asked["least"])
        case "paced":
            return paced(job, asked["least"], asked["seconds"], asked["part"])
        case "allocations":
            return allocations(job, asked["least"])
        case "write":
            return write(job, asked["format"])
    raise ValueError(f"unknown measurement: what={what}")


def main() -> None:
    """Does the job named on the command line."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    import torch  # noqa: F401 (outside of every clock)

    contestant: Any = OURS.get(asked["contestant"]) or peers.PEERS[asked["contestant"]]
    if not isinstance(contestant, Loop):
        raise TypeError(f"a limit is measured by its own program: contestant={contestant.name}")
    if isinstance(contestant, peers.Peer):
        peers.quiet()
        importlib.import_module(contestant.module)
    elif contestant.kind == "forebay":
        importlib.import_module("forebay")
    workload = WORKLOADS[asked["workload"]]
    workload = replace(workload, samples=asked.get("samples", workload.samples))
    part = Part(asked.get("rank", 0), asked.get("world", 1), asked.get("workers", 0))
    job = Job(contestant, workload, Data.under(Path(asked["folder"])), part)
    print(json.dumps(measure(asked["what"], job, asked)), flush=True)
    if not (isinstance(contestant, peers.Peer) and contestant.tidies_up):
        # What is measured is over; interpreters take long to end.
        os._exit(0)


if __name__ == "__main__":
    main()
