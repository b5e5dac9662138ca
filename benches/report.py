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

from contestants import DISK, OURS, REFERENCE, RING, Loop
from peers import PEERS, Peer

Row = dict[str, Any]

DISTURBED = 0.1
"""Cores that others used in a run that is called disturbed."""
BEGIN, END = "<!-- figures: made by report.py -->", "<!-- end of figures -->"
_TINY = "A tiny workload shows that the benchmark works here. Its figures say nothing else."
_MIB, _GIGA, _KIB = 2**20, 1e9, 1024


def gigabytes_per_s(run: Row) -> float:
    """Bytes delivered per second, first batches included."""
    return float(run["bytes"] / sum(run["epoch_s"]) / _GIGA)


def one_epoch(run: Row) -> float:
    """The same of the first epoch alone."""
    return float(run["epoch_bytes"] / run["epoch_s"][0] / _GIGA)


def others(row: Row) -> float:
    """Cores that others used during a run; 0 for what is no run."""
    return float(row.get("others", 0))


def tables(rows: Sequence[Row]) -> str:
    """All of one workload, as Markdown."""
    parts = [_machine(rows), _rates(rows), _peers(rows), _skipped(rows), _ranks(rows), _batches(rows)]
    is_tiny = str(_one(rows, "data").get("name", "")).startswith("tiny")
    parts += [_calls(rows), _starts(rows), _TINY if is_tiny else _targets(rows)]
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


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _one(rows: Sequence[Row], kind: str, **wanted: Any) -> Row:
    found = [row for row in rows if row["kind"] == kind and all(row.get(key) == wanted[key] for key in wanted)]
    return found[-1] if found else {}


def _machine(rows: Sequence[Row]) -> str:
    m, data = _one(rows, "machine"), _one(rows, "data")
    timed = [row for row in rows if row["kind"] in ("run", "ranks")]
    loads = [row["load"] for row in timed]
    count = 1 + max((row["round"] for row in timed), default=-1)
    rounds = "1 round" if count == 1 else f"{count} rounds"
    disturbed = sum(others(row) > DISTURBED for row in timed)
    note = f", **{disturbed} of {len(timed)} runs disturbed by other programs**" if disturbed else ""
    cache = "dropped before each run, one epoch each" if data.get("cold") else "warm"
    return (
        f"**Workload {data['name']}**: {data['samples']:,} samples of {data['shape']} and an int64 id, "
        f"{data['epoch_bytes'] / 1e6:,.0f} MB, batches of {data['batch']}. {rounds} on {m['date']}, commit "
        f"{m['commit']}{' with changes' if m['changed'] else ''}, load average {_spread(loads, 1)}{note}.\n\n"
        f"Machine: {m['cores']} cores of {m['cpu']} (family/model {m['cpu_family_model']}, L2 {m['l2']}, L3 {m['l3']}; "
        f"hypervisor {m['hypervisor']}), {m['memory_gib']} GiB, Linux {m['kernel']}, {m['filesystem']}, page cache "
        f"{cache}; Python {m['python']}, torch {m['torch']}, NumPy {m['numpy']}, Forebay {m['forebay']}."
    )


def _rates(rows: Sequence[Row]) -> str:
    runs, cold = Runs(rows), _one(rows, "data").get("cold")
    bars = [DISK] if cold else [REFERENCE, RING]
    body = []
    for name in (name for name in OURS if name in runs.by_name):
        contestant = OURS[name]
        is_loop = isinstance(contestant, Loop)
        limit = contestant.limit if isinstance(contestant, Loop) else ""
        start = runs.of(name, lambda run: run.get("open_ms", 0) + run.get("start_ms", 0))
        first = runs.of(name, lambda run: run.get("first_batch_ms", 0))
        line = [f"`{name}`", contestant.about, _spread(runs.of(name, gigabytes_per_s), 1)]
        if not cold:
            line.append(_median(runs.of(name, one_epoch), 1) if is_loop else "")
        line += [_spread(runs.ratios(name, bar)) for bar in bars]
        if not cold:
            line.append(f"{_spread(runs.ratios(name, limit))} of `{limit}`" if runs.ratios(name, limit) else "")
        line += [_median(runs.of(name, _cpu_per_gigabyte), 3)]
        line += [f"{_median(start, 1)} + {_median(first, 1)}" if is_loop else ""]
        body.append([*line, _median(runs.of(name, others), 0, 100, "%")])
    head = ["contestant", "what", "GB/s", *([] if cold else ["first epoch"]), *(f"of `{bar}`" for bar in bars)]
    head += [*([] if cold else ["of its own limit"]), "CPU s/GB", "open + first batch ms", "others"]
    return "### Rates\n\n" + table(head, body) if body else ""


def _ours(peer: Peer) -> str:
    """Whom a peer is compared with."""
    return f"forebay_{peer.order}"


def _peers(rows: Sequence[Row]) -> str:
    runs, body = Runs(rows), []
    found = [peer for name, peer in PEERS.items() if name in runs.by_name]
    found.sort(key=lambda peer: (peer.order, -statistics.median(runs.of(peer.name, gigabytes_per_s))))
    for peer in found:
        mine = runs.by_name[peer.name].values()
        about = _one(rows, "check", contestant=peer.name)
        notes = [f"mix {about['mix']}"] if about else []
        notes += [f"gives {about['widened']}"] if about.get("widened") else []
        notes += ["cut off"] if any(run["capped"] for run in mine) else []
        first = runs.of(peer.name, lambda run: run["open_ms"] + run["start_ms"] + run["first_batch_ms"])
        body.append(
            [
                f"`{peer.name}`",
                f"{peer.about} ({peer.package} {about.get('version', '?')})",
                "/".join(sorted({str(run["workers"]) for run in mine})),
                _spread(runs.of(peer.name, gigabytes_per_s)),
                _spread(runs.ratios(_ours(peer), peer.name), 1) + " x",
                _spread(runs.ratios(peer.name, RING), 3),
                _median(runs.of(peer.name, _cpu_per_gigabyte), 2),
                _median(first, 0),
                peer.resumes,
                peer.elastic,
                ", ".join(notes),
            ]
        )
    head = ["peer", "what", "workers", "GB/s", "Forebay to it", f"of `{RING}`", "CPU s/GB", "first batch ms", "resumes"]
    return "### Peers\n\n" + table([*head, "on other ranks", "notes"], body) if body else ""


def _skipped(rows: Sequence[Row]) -> str:
    lines = [f"- `{row['contestant']}`: {row['reason']}" for row in rows if row["kind"] == "skipped"]
    return "Left out:\n\n" + "\n".join(lines) if lines else ""


def _ranks(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row["kind"] == "ranks"]
    body = []
    for name, ranks in dict.fromkeys((row["contestant"], row["ranks"]) for row in found):
        mine = [row for row in found if (row["contestant"], row["ranks"]) == (name, ranks)]
        rates = [row["bytes"] / row["seconds"] / _GIGA for row in mine]
        limits = [row["limit_gb_per_s"] for row in mine]
        body.append(
            [
                *(f"`{name}`", str(ranks), _spread(rates, 1), _spread(limits, 1)),
                _spread([rate / limit for rate, limit in zip(rates, limits, strict=True)]),
                _median([row["cpu_s"] / row["bytes"] * _GIGA for row in mine], 3),
                _median([row["slab_bytes"] for row in mine], 0, 1 / _MIB),
                _median([row["first_batch_ms"] for row in mine], 1),
                _median([others(row) for row in mine], 0, 100, "%"),
            ]
        )
    head = [
        "contestant",
        "ranks",
        "GB/s, all ranks",
        "as many plain readers into as much memory",
        "of them",
        "CPU s/GB",
    ]
    return "### Ranks\n\n" + table([*head, "slabs MiB", "slowest first batch ms", "others"], body) if body else ""


def _cpu_per_gigabyte(run: Row) -> float:
    return float(run["cpu_s"] / run["bytes"] * _GIGA)


def _batches(rows: Sequence[Row]) -> str:
    runs = Runs(rows)
    body = []
    for name in (name for name, contestant in OURS.items() if isinstance(contestant, Loop)):
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
    return "### Per batch\n\n" + table(head, body) if body else ""


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
    return "### Calls, batch ready\n\n" + table(head, body) if body else ""


def _starts(rows: Sequence[Row]) -> str:
    body = []
    for name in dict.fromkeys(row["contestant"] for row in rows if row["kind"] in ("first", "paced")):
        near, far = ([row["first_batch_ms"] for row in _firsts(rows, name, far)] for far in (False, True))
        paced = [row for row in rows if row["kind"] == "paced" and row["contestant"] == name]
        waits = [_spread([row["next_us"][which] for row in paced], 1) for which in ("p50", "p99")]
        wanted, reached = (_median([row[which] for row in paced], 0) for which in ("pace_us", "reached_us"))
        paces = f"{wanted} ({reached})" if paced else ""
        body.append([f"`{name}`", _spread(near, 1), _spread(far, 1), paces, *waits])
    head = [
        "contestant",
        "first batch ms",
        "the same far in, by a state",
        "pace us, wanted (reached)",
        "next() p50 us",
        "p99",
    ]
    return "### Start, and a paced consumer\n\n" + table(head, body) if body else ""


def _firsts(rows: Sequence[Row], name: str, far: bool) -> list[Row]:
    return [row for row in rows if row["kind"] == "first" and row["contestant"] == name and row["far"] == far]


def _targets(rows: Sequence[Row]) -> str:
    runs, imported = Runs(rows), _one(rows, "import")
    data = _one(rows, "data")

    def values(kind: str, what: str, which: str, name: str = "") -> list[float]:
        found = [row for row in rows if row["kind"] == kind and name in ("", row["contestant"])]
        return [row[what][which] for row in found if which in row[what]]

    wanted: list[tuple[str, str, list[float], int, str]] = []
    for peers, factor, what in (
        ([peer for peer in PEERS.values() if peer.resumes != "no"], 4, "the fastest peer that resumes"),
        ([peer for peer in PEERS.values() if peer.name.startswith("litdata")], 30, "LitData"),
    ):
        # Of large samples all that is done is to copy them, whoever does it.
        for order in ("sequential", "shuffled") if data.get("name") == "A" else ():
            there = [peer for peer in peers if peer.order == order and peer.name in runs.by_name]
            best = max(there, key=lambda peer: statistics.median(runs.of(peer.name, gigabytes_per_s)), default=None)
            if best:
                wanted.append(
                    (
                        f"{order}, to {what} (`{best.name}`)",
                        f"≥ {factor} x",
                        runs.ratios(_ours(best), best.name),
                        1,
                        " x",
                    )
                )
    if data.get("cold"):
        for name, least in (("forebay_sequential", 0.88), ("forebay_shuffled", 0.85)):
            wanted.append((f"`{name}`, of `{DISK}`", f"≥ {least}", runs.ratios(name, DISK), 2, ""))
            wanted.append((f"`{name}`, CPU s/GB", "≤ 0.1", runs.of(name, _cpu_per_gigabyte), 3, ""))
    elif str(data.get("name", "")).startswith("E"):
        for name in ("forebay_sequential", "forebay_shuffled"):
            wanted.append((f"`{name}`", "≥ 8 GB/s", runs.of(name, gigabytes_per_s), 1, " GB/s"))
    else:
        for name, bar, least in (
            *(("forebay_sequential", RING, 0.85), ("forebay_sequential", "limit_slab", 1.0)),
            *(("forebay_shuffled_1", "limit_slab", 0.85), ("forebay_shuffled_2", RING, 0.65)),
            ("forebay_shuffled_16", RING, 0.85),
            *(("forebay_sequential", REFERENCE, 0.85), ("forebay_shuffled", REFERENCE, 0.70)),
        ):
            wanted.append((f"`{name}`, of `{bar}`", f"≥ {least}", runs.ratios(name, bar), 2, ""))
        for name, most in (("forebay_sequential_1", 0.08), ("forebay_shuffled_1", 0.08), ("forebay_shuffled_2", 0.11)):
            wanted.append((f"`{name}`, CPU s/GB", f"≤ {most}", runs.of(name, _cpu_per_gigabyte), 3, ""))
    ranked = [row for row in rows if row["kind"] == "ranks"]
    ratios = [row["bytes"] / row["seconds"] / _GIGA / row["limit_gb_per_s"] for row in ranked]
    wanted.append(("all ranks, of as many plain readers", "≥ 0.9", ratios, 2, ""))
    for name, most in (("forebay_sequential", 30), ("forebay_shuffled", 120)):
        for far in (False, True):
            found = [row["first_batch_ms"] for row in _firsts(rows, name, far)]
            wanted.append((f"`{name}`, first batch{' far in' if far else ''}", f"≤ {most} ms", found, 1, " ms"))
        beyond = runs.of(name, lambda run: run["memory_beyond_slab_bytes"] / _MIB)
        wanted.append((f"`{name}`, memory beyond the slab", "≤ 64 MiB", beyond, 0, " MiB"))
    wanted.append(("next() with a ready batch, p50", "≤ 5 us", values("latency", "next_us", "p50"), 1, " us"))
    for name in ("forebay_sequential_1", "forebay_shuffled_1"):
        for which, most in (("p50", 5), ("p99", 20)):
            found = values("paced", "next_us", which, name)
            wanted.append((f"`{name}`, next() at 90% of the rate, {which}", f"≤ {most} us", found, 1, " us"))
    wanted.append(("state_dict(), p50", "≤ 20 us", values("latency", "state_dict_us", "p50"), 1, " us"))
    lines = [[what, bar, _spread(found, digits) + unit] for what, bar, found, digits, unit in wanted if found]
    if imported:
        text = f"{imported['added_ms']:.0f} ms (processor {imported['added_cpu_ms']:.0f} ms)"
        lines.append(["`import forebay`", "≤ 100 ms", text])
    return "### Targets\n\n" + table(["what", "target", "measured"], lines) if lines else ""


def put_between(file: Path, begin: str, end: str, text: str) -> None:
    """Replaces what stands in a page between its marks."""
    page = file.read_text()
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise SystemExit(f"error: the page has no marks to write between: {begin} and {end}")
    file.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


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
    put_between(options.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
