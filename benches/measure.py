"""One measurement of one contestant, in the process that the benchmark makes for it. Prints one line of JSON.

    measure.py JOB        with JOB as JSON: what, contestant, workload, raw, root, and what the measurement needs

What is measured:
- check: one whole epoch against the raw file, byte by byte.
- epochs: whole epochs, first batch included; opening and its own first steps are told apart.
- latency: a consumer slower than the loader, so that batches are ready: next(), letting go of a batch, state_dict().
- allocations: heap allocations in steady state, where the counter is preloaded (allocations.c).

Imports are done before any clock runs, and no consumer touches the data.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import machine
from contestants import CONTESTANTS, Forebay, Loop, Opened
from workloads import WORKLOADS, Checker, Data, Workload

PACE_NS = 500_000
"""Time between two batches of the slow consumer: several times what reading one takes."""
WARM_UP_STEPS = 64
"""Batches before latencies count."""
_GIGA = 1e9


def _steps(opened: Opened, number: int) -> int:
    count = 0
    for _batch in opened.epoch(number):
        count += 1
    return count


def check(contestant: Loop, workload: Workload, data: Data) -> dict[str, Any]:
    """One epoch, looked at."""
    opened = contestant.open(workload, data)
    checker = Checker(workload, data.raw)
    for batch in opened.epoch(0):
        checker.batch(batch["id"].numpy(), batch["x"].numpy())
    stats = opened.stats()
    opened.close()
    return {**checker.result(), "slab_bytes": stats.get("slab_bytes", 0)}


def epochs(contestant: Loop, workload: Workload, data: Data, least_s: float, least: int, most: int) -> dict[str, Any]:
    """Whole epochs, until both leasts are reached."""
    clock = time.perf_counter
    machine.forget_peak_memory()
    memory = machine.memory_bytes("VmRSS")
    busy, cpu, opened_at = machine.busy_s(), machine.own_s(), clock()
    opened = contestant.open(workload, data)
    made_at = clock()
    batches = opened.epoch(0)
    began, cpu_began = clock(), machine.own_s()
    before, usage_before = opened.stats(), resource.getrusage(resource.RUSAGE_SELF)
    first_s, epoch_s, steps, epoch_began = 0.0, list[float](), 0, began
    while True:
        for _batch in batches:
            if not steps:
                first_s = clock() - began
            steps += 1
        now = clock()
        epoch_s.append(now - epoch_began)
        if len(epoch_s) >= most or (len(epoch_s) >= least and now - began >= least_s):
            break
        epoch_began = now
        batches = opened.epoch(len(epoch_s))
    cpu_s, usage, after = machine.own_s(), resource.getrusage(resource.RUSAGE_SELF), opened.stats()
    whole_s, others_s = clock() - opened_at, machine.busy_s() - busy - (cpu_s - cpu)
    slab_bytes = after.get("slab_bytes", 0)
    peak = machine.memory_bytes("VmHWM")
    opened.close()
    if steps != len(epoch_s) * workload.steps:
        raise RuntimeError(f"not every batch came: steps={steps} epochs={len(epoch_s)} steps_each={workload.steps}")
    counts = {name: (after[name] - before[name]) / steps for name in ("units", "reads", "syscalls") if name in after}
    return {
        "epoch_bytes": workload.epoch_bytes,
        "epoch_s": epoch_s,
        "steps": steps,
        "cpu_s": cpu_s - cpu_began,
        "open_ms": (made_at - opened_at) * 1e3,
        "start_ms": (began - made_at) * 1e3,
        "first_batch_ms": first_s * 1e3,
        "whole_s": whole_s,
        "others_s": others_s,
        "slab_bytes": slab_bytes,
        "memory_beyond_slab_bytes": peak - memory - slab_bytes,
        "per_batch": {
            **counts,
            "switches": (usage.ru_nvcsw - usage_before.ru_nvcsw) / steps,
            "preemptions": (usage.ru_nivcsw - usage_before.ru_nivcsw) / steps,
            "page_faults": (usage.ru_minflt - usage_before.ru_minflt) / steps,
        },
        "read_per_delivered": (after["read_bytes"] - before["read_bytes"]) / (len(epoch_s) * workload.epoch_bytes)
        if "read_bytes" in after
        else None,
        "stall_s": (after["stall_ns"] - before["stall_ns"]) / _GIGA if "stall_ns" in after else None,
        "checked_units": after.get("checked_units", 0) - before.get("checked_units", 0),
    }


def latency(contestant: Loop, workload: Workload, data: Data, least: int) -> dict[str, Any]:
    """What calls cost when the loader is ahead. Steps whose batch was not ready are left out, and counted."""
    clock = time.perf_counter_ns
    opened = contestant.open(workload, data)
    if not isinstance(opened, Forebay):
        raise TypeError(f"latencies are of Forebay's own calls: contestant={contestant.name}")
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


def _spread_us(values_ns: list[int]) -> dict[str, float]:
    values = sorted(values_ns)
    if not values:
        return {"count": 0}
    at = {"min": 0, "p50": len(values) // 2, "p99": min(len(values) - 1, len(values) * 99 // 100), "max": -1}
    return {"count": len(values), **{name: values[index] / 1e3 for name, index in at.items()}}


def allocations(contestant: Loop, workload: Workload, data: Data, least: int) -> dict[str, Any]:
    """Heap allocations of a batch after the first epoch: those of Rust, of torch, and Python's above 512 bytes."""
    count = ctypes.CDLL(None).forebay_bench_allocations
    calls, size = ctypes.c_uint64(), ctypes.c_uint64()
    opened = contestant.open(workload, data)
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


def main() -> None:
    """Does the job named on the command line."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    import torch  # noqa: F401 (outside of every clock)

    contestant, workload = CONTESTANTS[job["contestant"]], WORKLOADS[job["workload"]]
    if not isinstance(contestant, Loop):
        raise TypeError(f"a limit is measured by its own program: contestant={contestant.name}")
    data = Data(Path(job["raw"]), Path(job["root"]))
    match job["what"]:
        case "check":
            result = check(contestant, workload, data)
        case "epochs":
            result = epochs(contestant, workload, data, job["least_s"], job["least"], job.get("most", sys.maxsize))
        case "latency":
            result = latency(contestant, workload, data, job["least"])
        case "allocations":
            result = allocations(contestant, workload, data, job["least"])
        case what:
            raise ValueError(f"unknown measurement: what={what}")
    print(json.dumps(result), flush=True)
    # What is measured is over; interpreters take long to end.
    os._exit(0)


if __name__ == "__main__":
    main()
