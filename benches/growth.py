"""What a step costs as data grow: samples, blocks, windows and lanes, each alone. Prints a table, or writes it.

Each case is a run of feeder/benches/growth.rs. The plan's instructions are counted by callgrind, where that is there:
what more steps take beyond what fewer do, the same on every machine and every day. Times are of the processor.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import report

REPOSITORY = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- growth: made by growth.py -->", "<!-- end of growth -->"
PLAN_STEPS, ENGINE_STEPS = 4000, 4096
COUNTED_STEPS = (200, 600)
BLOCK_ROWS = 65536
KIB = 1024
BUSY_LOAD = 0.5
"""Load average from which on it is said that others were at work."""


@dataclass(frozen=True)
class Case:
    """One line of the table: what grows, and all that does not."""

    series: str
    value: int
    samples: int
    block_rows: int = BLOCK_ROWS
    windows: int = 1
    lanes: int = 64
    chunk: int = 16

    @property
    def topic(self) -> tuple[int, int]:
        """What its topic is made of."""
        return self.samples, self.block_rows

    @property
    def plan(self) -> tuple[str, str, str]:
        """As the program wants it."""
        return str(self.windows), str(self.lanes), str(self.chunk)


def cases(small: bool) -> list[Case]:
    """All of them, or those that take no time."""
    most = 5 if small else 8
    found = [Case("samples", 10**power, 10**power) for power in range(4, most + 1)]
    found += [
        Case("blocks", 10**power, 10**power * 4096, block_rows=4096, lanes=4, chunk=64) for power in range(most - 2)
    ]
    found += [Case("windows", number, 1_000_000, windows=number) for number in (1, 10, 100, 1000)]
    lanes = (64, 128) if small else (64, 256, 1024, 8192)
    return [*found, *(Case("lanes", number, 1 << (20 if small else 24), lanes=number) for number in lanes)]


def build() -> Path:
    """The program, in release."""
    command = ["cargo", "build", "--locked", "--release", "-p", "forebay-feeder", "--bench", "growth"]
    done = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    for line in map(json.loads, done.stdout.splitlines()):
        if line.get("executable") and line["target"]["name"] == "growth":
            return Path(line["executable"])
    raise RuntimeError("cargo built no program: bench=growth")


def run(program: Path, *words: str | Path) -> dict[str, Any]:
    """One case of the program."""
    found: dict[str, Any] = json.loads(subprocess.run([program, *words], check=True, capture_output=True).stdout)
    return found


def instructions(program: Path, case: Case) -> float | None:
    """Instructions of the plan for one step."""
    if shutil.which("valgrind") is None:
        return None
    counted = []
    for steps in COUNTED_STEPS:
        wrap = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        words = ["plan", str(case.samples), *case.plan, str(steps)]
        done = subprocess.run([*wrap, str(program), *words], capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if "Collected" in line]
        if done.returncode or not lines:
            return None
        counted.append(int(lines[0].rpartition(":")[2]))
    return (counted[1] - counted[0]) / (COUNTED_STEPS[1] - COUNTED_STEPS[0])


def measure(program: Path, folder: Path, chosen: Iterable[Case], rounds: int) -> Iterator[dict[str, Any]]:
    """The rows of the table, medians over the rounds. One topic is on disk at a time."""
    there: tuple[int, int] | None = None
    for case in chosen:
        if there != case.topic:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            made = run(program, "make", folder / "root", *map(str, case.topic))
            there = case.topic
        found = [
            {
                "plan": run(program, "plan", str(case.samples), *case.plan, str(PLAN_STEPS)),
                "engine": run(program, "engine", folder / "root", *case.plan, str(ENGINE_STEPS)),
            }
            for _ in range(rounds)
        ]
        row: dict[str, Any] = {"kind": "growth", "series": case.series, "value": case.value, "blocks": made["blocks"]}
        row |= {"samples": case.samples, "windows": case.windows, "lanes": case.lanes}
        row["plan_instructions"] = instructions(program, case)
        for part in ("plan", "engine"):
            for name in found[0][part]:
                row[f"{part}_{name}"] = statistics.median(one[part][name] for one in found)
        print(f"{case.series} {case.value:,}: {row['engine_cpu_ns_per_step'] / 1e3:.1f} us a step", file=sys.stderr)
        yield row
    shutil.rmtree(folder, ignore_errors=True)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As Markdown."""
    head = ["what grows", "to", "samples", "blocks", "plan: instructions a step", "us a step", "memory KiB"]
    head += [
        "batch: CPU us a step",
        "memory beyond slab KiB",
        "slab KiB",
        "first batch ms, middle",
        "end",
        "state bytes",
    ]
    body = []
    for row in rows:
        count = row["plan_instructions"]
        body.append(
            [
                *(row["series"], f"{row['value']:,}", f"{row['samples']:,}", f"{row['blocks']:,}"),
                "-" if count is None else f"{count:,.0f}",
                f"{row['plan_cpu_ns_per_step'] / 1e3:.1f}",
                f"{row['plan_memory_bytes'] / KIB:,.0f}",
                f"{row['engine_cpu_ns_per_step'] / 1e3:.1f}",
                *(f"{row[f'engine_{name}_bytes'] / KIB:,.0f}" for name in ("memory", "slab")),
                *(f"{row[f'engine_first_batch_{where}_ms']:.1f}" for where in ("middle", "end")),
                f"{row['engine_state_bytes']:,.0f}",
            ]
        )
    return report.table(head, body)


def text(rows: Sequence[dict[str, Any]], about: dict[str, Any], rounds: int) -> str:
    """The table with what it is of."""
    said = f"commit {about['commit']}{' with changes' if about['changed'] else ''}, load average {about['load']:.1f}"
    said += " (**disturbed by other programs**)" if about["load"] > BUSY_LOAD else ""
    return (
        f"{about['date']}, {said}; {about['cores']} cores of {about['cpu']}. One byte a sample, shuffled, steps of "
        f"1,024 from the middle of an epoch on, pools of 4 chunks; medians of {rounds} rounds.\n\n{table(rows)}"
    )


def main() -> None:
    """All cases."""
    target = REPOSITORY / "target" / "benches"
    parser = argparse.ArgumentParser(prog="benches/growth", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="only cases that take seconds: does it work here?")
    parser.add_argument("--out", type=Path, default=target / "growth.jsonl", help="JSON lines")
    parser.add_argument(
        "--write", type=Path, metavar="RESULTS.md", help="page to put the table into, between its marks"
    )
    options = parser.parse_args()
    target.mkdir(parents=True, exist_ok=True)
    program, about = build(), machine.describe(target, REPOSITORY)
    rows = []
    with options.out.open("w") as file:
        file.write(json.dumps(about) + "\n")
        for row in measure(program, target / "growth", cases(options.small), options.rounds):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
    said = text(rows, about, options.rounds)
    if options.write:
        report.put_between(options.write, BEGIN, END, said)
    else:
        print(said)


if __name__ == "__main__":
    main()
