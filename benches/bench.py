"""Forebay beside hand-written loops and the machine's limits, in one run: data, checks, rounds, counts. See README.md.

Every figure is of a process of its own. Within a round the contestants follow each other, each round beginning with
another one, and ratios are made within rounds: what slows the machine for minutes slows all of them. Every line of the
output file is one JSON object whose `kind` says what it is; report.py makes tables of them.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib.util
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
from contestants import CONTESTANTS, Limit, Loop
from workloads import WORKLOADS, Data, Workload, prepare

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
LATENCY_OF = ("forebay_sequential", "forebay_shuffled")
"""Contestants whose calls are timed one by one."""
LATENCY_CALLS = 1000
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
    """One invocation: the workload, the data, where results go."""

    def __init__(self, workload: Workload, data: Data, tools: Path, out: TextIO, options: argparse.Namespace) -> None:
        self.workload, self.data, self.tools, self.out, self.options = workload, data, tools, out, options
        self.files = [data.raw, *data.segments]
        self.slabs: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []

    def put(self, kind: str, **values: Any) -> None:
        """Takes down one result."""
        row = {"kind": kind, "workload": self.workload.name, "load": round(os.getloadavg()[0], 2), **values}
        self.rows.append(row)
        self.out.write(json.dumps(row) + "\n")
        self.out.flush()

    def child(self, what: str, name: str, wrap: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        """Runs measure.py."""
        job = {"what": what, "contestant": name, "workload": self.workload.name, **more}
        job |= {"raw": str(self.data.raw), "root": str(self.data.root)}
        return _json_of([*wrap, sys.executable, str(HERE / "measure.py"), json.dumps(job)])

    def settle(self) -> None:
        """The same ground for every run: files in the page cache, others quiet if they will be."""
        if machine.resident_part(self.files) < RESIDENT_LEAST:
            machine.warm(self.files)
        machine.wait_idle(self.options.patience)

    def check(self, loops: Iterable[Loop]) -> None:
        """One epoch of each, compared; raises if one is wrong."""
        for loop in loops:
            found = self.child("check", loop.name)
            self.slabs[loop.name] = found["slab_bytes"]
            self.put("check", contestant=loop.name, **found)
            good = not (found["wrong"] or found["missing"] or found["repeated"])
            if not good or found["in_order"] != (loop.order == "sequential"):
                raise RuntimeError(f"a contestant delivers other data than it should: contestant={loop.name} {found}")
            say(f"checked {loop.name}: every sample once, content and id together, mix={found['mix']}")

    def rounds(self, chosen: Sequence[Limit | Loop]) -> None:
        """The interleaved rounds."""
        for number in range(self.options.rounds):
            machine.warm(self.files)
            first = number % max(len(chosen), 1)
            for contestant in (*chosen[first:], *chosen[:first]):
                result = self.quietest(contestant)
                self.put("run", round=number, contestant=contestant.name, order=contestant.order, **result)
                rate = report.gigabytes_per_s(self.rows[-1])
                others = f"others {result['others']:4.0%} of a core"
                say(f"round {number + 1} {contestant.name:30} {rate:6.2f} GB/s  {others}")
            for name in LATENCY_OF:
                if any(contestant.name == name for contestant in chosen):
                    self.settle()
                    self.put(
                        "latency", round=number, contestant=name, **self.child("latency", name, least=LATENCY_CALLS)
                    )

    def quietest(self, contestant: Limit | Loop) -> dict[str, Any]:
        """One run, again if others were busy meanwhile; of all the one that was disturbed least, whatever its rate."""
        runs: list[dict[str, Any]] = []
        while len(runs) <= self.options.retries:
            self.settle()
            result = self.limit(contestant) if isinstance(contestant, Limit) else self.loop(contestant)
            runs.append({**result, "others": result["others_s"] / result["whole_s"]})
            if runs[-1]["others"] <= QUIET:
                break
        return {**min(runs, key=lambda run: float(run["others"])), "tries": len(runs)}

    def limit(self, limit: Limit) -> dict[str, Any]:
        """One run of the program in C."""
        memory = limit.memory_bytes(self.workload, self.slabs)
        file = max(self.data.segments, key=lambda segment: segment.stat().st_size) if limit.topic else self.data.raw
        leasts = (self.options.seconds, LEAST_EPOCHS)
        numbers = map(str, (self.workload.batch_bytes, memory, limit.threads, *leasts))
        busy, own = machine.busy_s(), machine.own_s(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        result = _json_of([str(self.tools / "limits"), str(file), *numbers])
        whole_s = time.perf_counter() - began
        others_s = machine.busy_s() - busy - (machine.own_s(resource.RUSAGE_CHILDREN) - own)
        return {**result, "whole_s": whole_s, "others_s": others_s, "memory_bytes": memory}

    def loop(self, loop: Loop) -> dict[str, Any]:
        """One run of a loop."""
        return self.child("epochs", loop.name, least_s=self.options.seconds, least=LEAST_EPOCHS)

    def counts(self, loops: Iterable[Loop]) -> None:
        """What a batch costs in heap allocations and system calls: no clock, so once is enough."""
        preload = ("env", f"LD_PRELOAD={self.tools / 'allocations.so'}")
        for loop in loops:
            found = self.child("allocations", loop.name, wrap=preload, least=2)
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
                self.child("epochs", loop.name, wrap=wrap, least_s=0, least=epochs, most=epochs)
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


def _json_of(command: Sequence[str]) -> dict[str, Any]:
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


def _build() -> str:
    """What tells this build of the package from others."""
    spec = importlib.util.find_spec("forebay._forebay")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package forebay is not installed, use benches/run")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:16]


def _choose(patterns: str | None) -> list[Limit | Loop]:
    if patterns is None:
        return [contestant for contestant in CONTESTANTS.values() if contestant.usual]
    wanted = patterns.split(",")
    chosen = [c for c in CONTESTANTS.values() if any(fnmatch.fnmatch(c.name, pattern) for pattern in wanted)]
    if not chosen:
        raise SystemExit(f"error: no such contestant: {patterns}\n  try: {', '.join(CONTESTANTS)}")
    return chosen


def _options() -> argparse.Namespace:
    target = REPOSITORY / "target" / "benches"
    parser = argparse.ArgumentParser(prog="benches/run", description=__doc__.split("\n")[0])
    parser.add_argument("--workload", choices=WORKLOADS, default="A")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="each run takes whole epochs of at least so long")
    parser.add_argument("--contestants", help="names or patterns, separated by commas; the usual ones by default")
    parser.add_argument("--patience", type=float, default=5.0, help="most seconds to wait for a quiet machine per run")
    parser.add_argument("--retries", type=int, default=2, help="most repetitions of a run that others disturbed")
    parser.add_argument("--no-counts", action="store_true", help="leave out allocations and system calls")
    parser.add_argument("--data", type=Path, default=target, help="folder for data and results")
    parser.add_argument("--out", type=Path, help="JSON lines; results-WORKLOAD.jsonl in that folder by default")
    parser.add_argument("--tools", type=Path, default=target, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """The whole run."""
    options = _options()
    workload, chosen = WORKLOADS[options.workload], _choose(options.contestants)
    say(f"data of workload {workload.name}: {workload.epoch_bytes / 1e6:.0f} MB in {options.data}")
    forebay = Path(sys.executable).with_name("forebay")
    data, about = prepare(workload, options.data / workload.name, forebay, _build())
    out = options.out or options.data / f"results-{workload.name}.jsonl"
    with out.open("w") as file:
        bench = Bench(workload, data, options.tools, file, options)
        bench.put(**machine.describe(data.raw, REPOSITORY))
        bench.put(**about)
        loops = [contestant for contestant in chosen if isinstance(contestant, Loop)]
        sizes = {contestant.slab_of for contestant in chosen if isinstance(contestant, Limit)}
        asked = [CONTESTANTS[name] for name in sizes if name and name not in {loop.name for loop in loops}]
        machine.warm(bench.files)
        bench.check([*loops, *(loop for loop in asked if isinstance(loop, Loop))])
        bench.rounds(chosen)
        if not options.no_counts:
            machine.warm(bench.files)
            bench.counts(loops)
        bench.imports()
    print(report.tables(bench.rows))
    say(f"results: {out}")


if __name__ == "__main__":
    main()
