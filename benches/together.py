"""Ranks: several processes that share the data, begun together, against as many plain readers at once."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import machine
from contestants import OURS, Limit, Loop
from measure import READY
from rounds import CHILD_MOST_S, LEAST_EPOCHS, QUIET, Bench, say

EXPECTED_BYTES_PER_S = 20e9
"""Tells how many epochs take about the time asked for."""
LIMIT = "limit_slab"


def rounds(bench: Bench, loops: Sequence[Loop]) -> None:
    """All numbers of ranks with all contestants, interleaved."""
    limit = OURS[LIMIT]
    if not isinstance(limit, Limit):
        raise TypeError(f"not a limit: {LIMIT}")
    files = sorted({file for loop in loops for file in bench.files_of(loop)} | set(bench.files_of(limit)))
    for number in range(bench.options.rounds):
        machine.warm(files)
        for ranks in bench.workload.ranks:
            for loop in loops:
                result = _quietest(bench, loop, ranks)
                bench.settle(limit)
                beside = bench.limit(limit, ranks, max(result["slab_bytes"], ranks * bench.workload.batch_bytes))
                result["limit_gb_per_s"] = beside["bytes"] / sum(beside["epoch_s"]) / 1e9
                bench.put("ranks", round=number, contestant=loop.name, ranks=ranks, **result)
                rate, most = result["bytes"] / result["seconds"] / 1e9, result["limit_gb_per_s"]
                say(f"round {number + 1} {loop.name:24} ranks {ranks}: {rate:6.2f} GB/s, plain readers {most:.2f}")


def _quietest(bench: Bench, loop: Loop, ranks: int) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    while len(runs) <= bench.options.retries:
        bench.settle(loop)
        runs.append(together(bench, loop, ranks))
        if runs[-1]["others"] <= QUIET:
            break
    return {**min(runs, key=lambda run: float(run["others"])), "tries": len(runs)}


def together(bench: Bench, loop: Loop, ranks: int) -> dict[str, Any]:
    """One run of all ranks: from their common beginning until the last has ended."""
    epochs = max(LEAST_EPOCHS, math.ceil(bench.options.seconds * EXPECTED_BYTES_PER_S / bench.workload.epoch_bytes))
    children = []
    try:
        for rank in range(ranks):
            command = bench.command("ranks", loop, rank=rank, world=ranks, epochs=epochs)
            pipe = subprocess.PIPE
            children.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        for child in children:
            if child.stdout is None or child.stdout.readline().strip() != READY:
                raise RuntimeError(f"a rank did not start: {child.communicate()[1]}")
        busy, began = machine.busy_s(), time.perf_counter()
        for child in children:
            if child.stdin is not None:
                child.stdin.write("\n")
                child.stdin.flush()
        found = []
        for child in children:
            out, err = child.communicate(timeout=CHILD_MOST_S)
            if child.returncode:
                raise RuntimeError(f"a rank failed: status={child.returncode}\n{err}")
            found.append(json.loads(out.splitlines()[-1]))
        whole_s, busy_s = time.perf_counter() - began, machine.busy_s() - busy
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    cpu_s = sum(rank["cpu_s"] for rank in found)
    return {
        "bytes": sum(rank["bytes"] for rank in found),
        "seconds": max(rank["ended_s"] for rank in found) - min(rank["began_s"] for rank in found),
        "cpu_s": cpu_s,
        "slab_bytes": sum(rank["slab_bytes"] for rank in found),
        "first_batch_ms": max(rank["first_batch_ms"] for rank in found),
        "others": max(0.0, busy_s - cpu_s) / whole_s,
    }
