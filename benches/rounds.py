"""One invocation of the benchmark: runs, each a process of its own, and what is taken down of them.

Within a round the contestants follow each other, each round beginning with another one, and ratios are made within
rounds: what slows the machine for minutes slows all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import machine
import report
from contestants import Limit, Loop
from peers import Peer
from rivals import Rivals
from workloads import Data, Workload

HERE = Path(__file__).resolve().parent
CALLS_OF = ("forebay_sequential", "forebay_shuffled")
"""Contestants whose calls are timed one by one."""
PACED_OF = ("forebay_sequential_1", "forebay_shuffled_1")
"""Those that a paced consumer takes batches of: one that looks at the clock all the time needs a core of its own."""
LATENCY_CALLS = 1000
PACED_CALLS = 5000
PACED_PART = 0.9
"""A paced consumer takes that part of what it reaches at full speed just before."""
IMPORTS = 15
"""Fresh interpreters of each kind whose start is timed."""
LEAST_EPOCHS = 3
COUNTED_EPOCHS = (2, 8)
"""System calls are counted over runs of so many epochs; the difference is that of epochs in steady state."""
SYSTEM_CALLS = (
    *("io_uring_enter", "preadv", "preadv2", "pread64", "read", "write", "futex", "poll", "ppoll", "sched_yield"),
    *("getpid", "gettid", "mmap", "munmap", "madvise", "brk", "io_uring_register"),
)
"""Those told apart; all of them are counted together."""
RESIDENT_LEAST = 0.999
"""Files of which less is in the page cache are brought there again before a run."""
CHILD_MOST_S = 900
QUIET = 0.1
"""Cores that others may use during a run before it is made again."""


class Bench:
    """See the module: the workload, the data, where results go."""

    def __init__(self, workload: Workload, data: Data, out: TextIO, options: argparse.Namespace) -> None:
        self.workload, self.data, self.out, self.options = workload, data, out, options
        self.rivals = Rivals(self, workload, data)
        self.slabs: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []

    def put(self, kind: str, **values: Any) -> None:
        """Takes down one result."""
        row = {"kind": kind, "workload": self.workload.name, "load": round(os.getloadavg()[0], 2), **values}
        self.rows.append(row)
        self.out.write(json.dumps(row) + "\n")
        self.out.flush()

    def command(self, what: str, contestant: Loop, **more: Any) -> list[str]:
        """The program that measures."""
        job = {"what": what, "contestant": contestant.name, "workload": self.workload.name, **more}
        job["folder"] = str(self.data.raw.parent)
        python = sys.executable
        if isinstance(contestant, Peer):
            python = str(self.rivals.python(contestant))
            job = {"samples": self.rivals.workload.samples, "workers": self.rivals.workers(contestant), **job}
        return [python, str(HERE / "measure.py"), json.dumps(job)]

    def child(self, what: str, contestant: Loop, wrap: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        """Runs measure.py."""
        return json_of([*wrap, *self.command(what, contestant, **more)])

    def files_of(self, contestant: Limit | Loop) -> list[Path]:
        """What it reads."""
        if isinstance(contestant, Peer) and contestant.over != "rows":
            return self.data.of_format(contestant.over)
        topic = contestant.topic if isinstance(contestant, Limit) else contestant.kind == "forebay"
        return self.data.segments if topic else [self.data.raw]

    def settle(self, contestant: Limit | Loop) -> None:
        """The same ground for every run: files in the page cache (or not), others quiet if they will be."""
        files = self.files_of(contestant)
        if self.workload.cold:
            machine.drop(files)
        elif machine.resident_part(files) < RESIDENT_LEAST:
            machine.warm(files)
        machine.wait_idle(self.options.patience)

    def check(self, loops: Iterable[Loop]) -> list[Loop]:
        """One epoch of each, compared; raises if one of ours is wrong, and returns those that are right."""
        right = []
        for loop in loops:
            peer = isinstance(loop, Peer)
            found = self.child("check", loop, **({"cap_s": self.options.cap} if peer else {}))
            self.slabs[loop.name] = found["slab_bytes"]
            self.put("check", contestant=loop.name, **found)
            good = not (found["wrong"] or found["repeated"] or (found["whole"] and found["missing"]))
            in_order = peer or found["in_order"] == (loop.order == "sequential")
            if not (good and in_order):
                if isinstance(loop, Peer):
                    self.rivals.skip(loop.name, f"delivers other data than it should: {found}")
                    continue
                raise RuntimeError(f"a contestant delivers other data than it should: contestant={loop.name} {found}")
            right.append(loop)
            part = "every sample once" if found["whole"] else "a part of the epoch"
            say(f"checked {loop.name}: {part}, content and id together, mix={found['mix']}")
        return right

    def rounds(self, chosen: Sequence[Limit | Loop]) -> None:
        """The interleaved rounds."""
        files = sorted({file for contestant in chosen for file in self.files_of(contestant)})
        for number in range(self.options.rounds):
            if not self.workload.cold:
                machine.warm(files)
            first = number % max(len(chosen), 1)
            for contestant in (*chosen[first:], *chosen[:first]):
                result = self.quietest(contestant)
                self.put("run", round=number, contestant=contestant.name, order=contestant.order, **result)
                rate, others = report.gigabytes_per_s(result), f"others {result['others']:4.0%} of a core"
                say(f"round {number + 1} {contestant.name:32} {rate:6.2f} GB/s  {others}")
            if not self.workload.cold:
                self.calls_of([c for c in chosen if isinstance(c, Loop)], number)

    def calls_of(self, loops: Iterable[Loop], number: int) -> None:
        """Single calls and first batches, after a round."""
        for loop in loops:
            if loop.name in (*CALLS_OF, *PACED_OF):
                say(f"round {number + 1} {loop.name}: single calls")
            self.settle(loop)
            of = {"round": number, "contestant": loop.name}
            if loop.name in CALLS_OF:
                self.put("latency", **of, **self.child("latency", loop, least=LATENCY_CALLS))
                for far in (False, True):
                    self.put("first", **of, **self.child("first", loop, far=far))
            if loop.name in PACED_OF:
                seconds, part = self.options.seconds, PACED_PART
                self.put("paced", **of, **self.child("paced", loop, least=PACED_CALLS, seconds=seconds, part=part))

    def quietest(self, contestant: Limit | Loop) -> dict[str, Any]:
        """One run, again if others were busy meanwhile; of all the one that was disturbed least, whatever its rate."""
        runs: list[dict[str, Any]] = []
        while len(runs) <= self.options.retries:
            self.settle(contestant)
            result = self.limit(contestant) if isinstance(contestant, Limit) else self.loop(contestant)
            runs.append({**result, "others": max(0.0, result["others_s"] / result["whole_s"])})
            if runs[-1]["others"] <= QUIET:
                break
        return {**min(runs, key=lambda run: float(run["others"])), "tries": len(runs)}

    def limit(self, limit: Limit, threads: int = 0, memory_bytes: int = 0) -> dict[str, Any]:
        """One run of the program in C, with other threads and memory where they are given."""
        threads = threads or limit.threads
        memory = memory_bytes or limit.memory_bytes(self.workload, self.slabs)
        file = max(self.files_of(limit), key=lambda file: file.stat().st_size)
        read = limit.read_bytes(self.workload)
        leasts = (0, 1) if self.workload.cold else (self.options.seconds, LEAST_EPOCHS)
        numbers = map(str, (read, memory, threads, *leasts, limit.way))
        busy, own = machine.busy_s(), machine.own_s(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        result = json_of([str(self.options.tools / "limits"), str(file), *numbers])
        whole_s = time.perf_counter() - began
        others_s = machine.busy_s() - busy - (machine.own_s(resource.RUSAGE_CHILDREN) - own)
        result["bytes"] = result["epoch_bytes"] * len(result["epoch_s"])
        return {**result, "whole_s": whole_s, "others_s": others_s, "memory_bytes": memory}

    def loop(self, loop: Loop) -> dict[str, Any]:
        """One run of a loop."""
        leasts = {"least_s": self.options.seconds, "least": LEAST_EPOCHS}
        if self.workload.cold:
            leasts = {"least_s": 0, "least": 1, "most": 1}
        elif isinstance(loop, Peer):
            leasts |= {"least": 1, "cap_s": self.options.cap}
        return self.child("epochs", loop, **leasts)

    def counts(self, loops: Iterable[Loop]) -> None:
        """What a batch costs in heap allocations and system calls: no clock, so once is enough."""
        preload = ("env", f"LD_PRELOAD={self.options.tools / 'allocations.so'}")
        for loop in loops:
            say(f"counting allocations and system calls of {loop.name}")
            found = self.child("allocations", loop, wrap=preload, least=2)
            if _can_count_calls():
                found["calls_per_batch"] = self.calls(loop)
            self.put("counts", contestant=loop.name, **found)

    def calls(self, loop: Loop) -> dict[str, float]:
        """System calls of a batch by name, and `all`."""
        events = ["raw_syscalls:sys_enter", *(f"syscalls:sys_enter_{name}" for name in SYSTEM_CALLS)]
        seen = []
        with tempfile.NamedTemporaryFile("r") as file:
            wrap = ("perf", "stat", "-x;", "-o", file.name, "-e", ",".join(events), "--")
            for epochs in COUNTED_EPOCHS:
                self.child("epochs", loop, wrap=wrap, least_s=0, least=epochs, most=epochs)
                lines = [line.split(";") for line in Path(file.name).read_text().splitlines() if ";" in line]
                seen.append({line[2].rpartition("sys_enter")[2].lstrip("_") or "all": float(line[0]) for line in lines})
        steps = (COUNTED_EPOCHS[1] - COUNTED_EPOCHS[0]) * self.workload.steps
        each = {name: (seen[1][name] - seen[0][name]) / steps for name in seen[0]}
        return {name: round(calls, 4) for name, calls in each.items() if name == "all" or calls >= 1e-3}

    def imports(self) -> None:
        """Wall and processor time that `import forebay` adds to an interpreter's start."""
        programs = {"nothing": "pass", "forebay": "import forebay"}
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(IMPORTS + 1):
            for name, program in programs.items():
                own, began = machine.own_s(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run([sys.executable, "-c", program], check=True)
                seen[name].append(
                    (time.perf_counter() - began, machine.own_s(resource.RUSAGE_CHILDREN) - own),
                )
        # The first of each has brought the files in.
        pairs = list(zip(seen["forebay"][1:], seen["nothing"][1:], strict=True))
        added = {
            "added_ms": statistics.median(wall for (wall, _), _ in pairs) - statistics.median(w for _, (w, _) in pairs),
            "added_cpu_ms": statistics.median(cpu - bare for (_, cpu), (_, bare) in pairs),
            "interpreter_ms": statistics.median(wall for _, (wall, _) in pairs),
        }
        self.put("import", runs=IMPORTS, **{name: value * 1e3 for name, value in added.items()})


def say(text: str) -> None:
    """Tells whoever waits."""
    print(text, file=sys.stderr, flush=True)


def json_of(command: Sequence[str]) -> dict[str, Any]:
    """Runs a program whose last line of output is a JSON object."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_MOST_S)
    if done.returncode:
        raise RuntimeError(f"a measurement failed: status={done.returncode} command={command}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _can_count_calls() -> bool:
    try:
        tried = subprocess.run(["perf", "stat", "-e", "raw_syscalls:sys_enter", "true"], capture_output=True)
    except OSError:
        return False
    return tried.returncode == 0
