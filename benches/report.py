"""Tables out of the benchmark's JSON lines: on a terminal, or into RESULTS.md.

    report.py RESULTS.jsonl [RESULTS.jsonl ...]          prints
    report.py RESULTS.jsonl [...] --write RESULTS.md     replaces what stands there between the marks
    report.py RESULTS.jsonl [...] --quiet 0.1            leaves out runs during which others used more of a core

Rates are medians over the rounds, with least and most; ratios are made within each round and then summed up alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, REFERENCE, RING, Loop

Row = dict[str, Any]

BEGIN, END = "<!-- figures: made by report.py -->", "<!-- end of figures -->"
_MIB, _GIGA, _KIB = 2**20, 1e9, 1024


def gigabytes_per_s(run: Row) -> float:
    """Bytes delivered per second over whole epochs, first batches included."""
    return float(run["epoch_bytes"] * len(run["epoch_s"]) / sum(run["epoch_s"]) / _GIGA)


def others(row: Row) -> float:
    """Cores that others used during a run; 0 for what is no run."""
    return float(row.get("others", 0))


def tables(rows: Sequence[Row]) -> str:
    """All of one workload, as Markdown."""
    parts = [_machine(rows), _rates(rows), _batches(rows), _calls(rows), _targets(rows)]
    return "\n\n".join(part for part in parts if part)


class Runs:
    """The runs of the rounds, by contestant and round."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.by_name: dict[str, dict[int, Row]] = {}
        for row in rows:
            if row["kind"] == "run":
                self.by_name.setdefault(row["contestant"], {})[row["round"]] = row

    def of(self, name: str, value: Callable[[Row], float]) -> list[float]:
        """A value of each run of a contestant."""
        return [value(run) for run in self.by_name.get(name, {}).values()]

    def per_batch(self, name: str, what: str) -> str:
        """The median of a count of each batch."""
        return _median(
            [float(run["per_batch"][what]) for run in self.by_name[name].values() if what in run["per_batch"]]
        )

    def ratios(self, name: str, to: str) -> list[float]:
        """The rate of one to that of another, round by round."""
        others = self.by_name.get(to, {})
        pairs = ((run, others[number]) for number, run in self.by_name.get(name, {}).items() if number in others)
        return [gigabytes_per_s(run) / gigabytes_per_s(other) for run, other in pairs]


def _spread(values: Sequence[float], digits: int = 2) -> str:
    if not values:
        return "-"
    text = f"{statistics.median(values):.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f}–{max(values):.{digits}f})"  # noqa: RUF001 (a range)
    return text


def _median(values: Sequence[float], digits: int = 2, scale: float = 1.0, unit: str = "") -> str:
    return f"{statistics.median(values) * scale:.{digits}f}{unit}" if values else "-"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _one(rows: Sequence[Row], kind: str, **wanted: Any) -> Row:
    found = [row for row in rows if row["kind"] == kind and all(row.get(key) == wanted[key] for key in wanted)]
    return found[-1] if found else {}


def _machine(rows: Sequence[Row]) -> str:
    m, data = _one(rows, "machine"), _one(rows, "data")
    loads = [row["load"] for row in rows if row["kind"] == "run"]
    rounds = 1 + max((row["round"] for row in rows if row["kind"] == "run"), default=-1)
    shape = "x".join(map(str, data["shape"]))
    return (
        f"**Workload {data['name']}**: {data['samples']:,} samples of {data['dtype']}[{shape}] and an int64 id, "
        f"{data['epoch_bytes'] / 1e6:,.0f} MB, batches of {data['batch']}. {rounds} rounds on {m['date']}, commit "
        f"{m['commit']}{' with changes' if m['changed'] else ''}, load average {_spread(loads, 1)}.\n\n"
        f"Machine: {m['cores']} cores of {m['cpu']} (family/model {m['cpu_family_model']}, L2 {m['l2']}, L3 {m['l3']}; "
        f"hypervisor {m['hypervisor']}), {m['memory_gib']} GiB, Linux {m['kernel']}, {m['filesystem']}, page cache "
        f"warm; Python {m['python']}, torch {m['torch']}, NumPy {m['numpy']}, Forebay {m['forebay']}."
    )


def _rates(rows: Sequence[Row]) -> str:
    runs = Runs(rows)
    body = []
    for name in (name for name in CONTESTANTS if name in runs.by_name):
        contestant = CONTESTANTS[name]
        limit = contestant.limit if isinstance(contestant, Loop) else ""
        start = runs.of(name, lambda run: run.get("open_ms", 0) + run.get("start_ms", 0))
        first = runs.of(name, lambda run: run.get("first_batch_ms", 0))
        is_loop = isinstance(contestant, Loop)
        body.append(
            [
                f"`{name}`",
                contestant.about,
                _spread(runs.of(name, gigabytes_per_s), 1),
                _spread(runs.ratios(name, REFERENCE)),
                _spread(runs.ratios(name, RING)),
                f"{_spread(runs.ratios(name, limit))} of `{limit}`" if runs.ratios(name, limit) else "",
                _median(runs.of(name, _cpu_per_gigabyte), 3),
                f"{_median(start, 1)} + {_median(first, 1)}" if is_loop else "",
                _median(runs.of(name, others), 0, 100, "%"),
            ]
        )
    head = [
        "contestant",
        "what",
        "GB/s",
        f"of `{REFERENCE}`",
        f"of `{RING}`",
        "of its own limit",
        "CPU s/GB",
        "open + first batch ms",
        "others",
    ]
    return "### Rates\n\n" + _table(head, body)


def _cpu_per_gigabyte(run: Row) -> float:
    return float(run["cpu_s"] / (run["epoch_bytes"] * len(run["epoch_s"]) / _GIGA))


def _batches(rows: Sequence[Row]) -> str:
    runs = Runs(rows)
    body = []
    for name in (name for name, contestant in CONTESTANTS.items() if isinstance(contestant, Loop)):
        if name not in runs.by_name:
            continue
        counts = _one(rows, "counts", contestant=name)
        calls: dict[str, float] = counts.get("calls_per_batch", {})
        named = ", ".join(f"{call} {number:.2f}" for call, number in calls.items() if call != "all" and number >= 5e-3)

        read = [run["read_per_delivered"] for run in runs.by_name[name].values() if run["read_per_delivered"]]
        body.append(
            [
                f"`{name}`",
                runs.per_batch(name, "units"),
                runs.per_batch(name, "reads"),
                runs.per_batch(name, "syscalls"),
                _median(read, 3),
                f"{calls['all']:.2f}: {named}" if calls else "-",
                runs.per_batch(name, "switches"),
                f"{counts['allocations_per_batch']:.1f}, {counts['allocated_bytes_per_batch'] / _KIB:.1f} KiB"
                if counts
                else "-",
                _median(runs.of(name, lambda run: run["slab_bytes"]), 0, 1 / _MIB),
                _median(runs.of(name, lambda run: run["memory_beyond_slab_bytes"]), 1, 1 / _MIB),
            ]
        )
    head = ["per batch", "units", "reads", "readers' calls", "read / delivered", "system calls", "switches"]
    head += ["allocations", "slab MiB", "peak memory beyond slab MiB"]
    return "### Per batch\n\n" + _table(head, body) if body else ""


def _calls(rows: Sequence[Row]) -> str:
    timed = [row for row in rows if row["kind"] == "latency"]
    body = []
    for name in dict.fromkeys(row["contestant"] for row in timed):
        mine = [row for row in timed if row["contestant"] == name]

        def of(what: str, which: str, mine: list[Row] = mine) -> str:
            return _spread([row[what][which] for row in mine if which in row[what]], 1)

        late = sum(row["late"] for row in mine) / sum(row["late"] + row["next_us"]["count"] for row in mine)
        calls = [of("next_us", "p50"), of("next_us", "p99"), of("release_us", "p50"), of("state_dict_us", "p50")]
        body.append([f"`{name}`", *calls, of("state_dict_us", "p99"), f"{late:.1%}"])
    head = [
        "µs",
        "next() p50",
        "next() p99",
        "letting go p50",
        "state_dict() p50",
        "state_dict() p99",
        "not ready, left out",
    ]
    return "### Calls, batch ready\n\n" + _table(head, body) if body else ""


def _targets(rows: Sequence[Row]) -> str:
    runs, imported = Runs(rows), _one(rows, "import")
    timed = [row for row in rows if row["kind"] == "latency"]

    def p50(what: str) -> list[float]:
        return [row[what]["p50"] for row in timed if "p50" in row[what]]

    wanted = [
        ("sequential, of `ideal_pread`", "≥ 0.85", _spread(runs.ratios("forebay_sequential", REFERENCE))),
        ("shuffled, of `ideal_pread`", "≥ 0.70", _spread(runs.ratios("forebay_shuffled", REFERENCE))),
        ("next() with a ready batch, p50", "≤ 10 µs", _spread(p50("next_us"), 1) + " µs"),
        ("state_dict(), p50", "≤ 20 µs", _spread(p50("state_dict_us"), 1) + " µs"),
    ]
    if imported:
        text = f"{imported['added_ms']:.0f} ms (processor {imported['added_cpu_ms']:.0f} ms)"
        wanted.append(("`import forebay`", "≤ 100 ms", text))
    return "### Targets\n\n" + _table(["what", "target", "measured"], [list(line) for line in wanted])


def main() -> None:
    """Prints or writes the tables of each file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--write", type=Path, metavar="RESULTS.md")
    parser.add_argument("--quiet", type=float, default=float("inf"), metavar="PART")
    options = parser.parse_args()
    files = ([json.loads(line) for line in file.open()] for file in options.results)
    text = "\n\n".join(tables([row for row in rows if others(row) <= options.quiet]) for rows in files)
    if not options.write:
        print(text)
        return
    page = options.write.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"error: the page has no marks to write between: {BEGIN} and {END}")
    options.write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
