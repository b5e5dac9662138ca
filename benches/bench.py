"""Forebay beside hand-written loops, peers and the machine's limits, in one run: data, checks, rounds. See README.md.

Every figure is of a process of its own. Every line of the output file is one JSON object whose `kind` says what it is;
report.py makes tables of them.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib.util
import sys
from pathlib import Path

import machine
import report
import together
from contestants import COLD, OURS, RANKED, Limit, Loop
from peers import PEERS, Peer
from rounds import Bench, say
from workloads import LATER, WORKLOADS, Workload, prepare

REPOSITORY = Path(__file__).resolve().parent.parent


def _build() -> str:
    """What tells this build of the package from others."""
    spec = importlib.util.find_spec("forebay._forebay")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package forebay is not installed, use benches/run")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:16]


def _usual(workload: Workload) -> list[Limit | Loop]:
    if workload.cold:
        return [OURS[name] for name in COLD]
    if workload.ranks:
        return [OURS[name] for name in RANKED]
    return [contestant for contestant in OURS.values() if contestant.usual]


def choose(workload: Workload, patterns: str | None, peers: bool) -> list[Limit | Loop]:
    """The contestants: the usual ones, or those that are named."""
    if patterns is None:
        return [*_usual(workload), *(PEERS.values() if peers else ())]
    wanted = patterns.split(",")
    everybody = {**OURS, **(PEERS if peers else {})}
    chosen = [c for c in everybody.values() if any(fnmatch.fnmatch(c.name, pattern) for pattern in wanted)]
    if not chosen:
        raise SystemExit(f"error: no such contestant: {patterns}\n  try: {', '.join(everybody)}")
    return chosen


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"at least 1: {number}")
    return number


def _options() -> argparse.Namespace:
    target = REPOSITORY / "target" / "benches"
    about = (
        f"{__doc__.split(chr(10))[0]} Workloads: {', '.join(WORKLOADS)}; those that begin with tiny only try it out."
    )
    parser = argparse.ArgumentParser(
        prog="benches/run", description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--workload", choices=[*WORKLOADS, *LATER], default="A", metavar="NAME", help="what is read, see the README"
    )
    parser.add_argument("--peers", action="store_true", help="measure other loaders as well")
    parser.add_argument("--rounds", type=_count, default=5, help="times that every contestant is run")
    parser.add_argument("--seconds", type=float, default=1.0, help="each run takes whole epochs of at least so long")
    parser.add_argument("--contestants", metavar="NAMES", help="names or patterns, by commas; else the usual ones")
    parser.add_argument("--patience", type=float, default=5.0, help="most seconds to wait for a quiet machine per run")
    parser.add_argument("--retries", type=int, default=2, help="most repetitions of a run that others disturbed")
    parser.add_argument("--cap", type=float, default=6.0, help="seconds after which a peer's run is cut off")
    parser.add_argument(
        "--peer-bytes",
        type=float,
        default=1e9,
        help="peers get the samples that fit into so many bytes: each of their formats takes that much disk",
    )
    parser.add_argument("--peer-workers", type=int, metavar="N", help="workers of all peers; else what is fastest")
    parser.add_argument("--no-counts", action="store_true", help="leave out allocations and system calls")
    parser.add_argument("--data", type=Path, default=target, help="folder for data and results")
    parser.add_argument("--out", type=Path, help="JSON lines; else results-WORKLOAD.jsonl in that folder")
    parser.add_argument("--tools", type=Path, default=target, help=argparse.SUPPRESS)
    parser.add_argument("--only-check", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.workload in LATER:
        raise SystemExit(f"error: workload {options.workload} cannot be run yet: {LATER[options.workload]}")
    workload = WORKLOADS[options.workload]
    if options.peers and (workload.cold or workload.ranks):
        raise SystemExit("error: peers are measured warm and by one process\n  try: --workload A, B or E")
    return options


def measure(bench: Bench, chosen: list[Limit | Loop]) -> None:
    """Checks, then rounds, then counts."""
    peers = [contestant for contestant in chosen if isinstance(contestant, Peer)]
    ours = [contestant for contestant in chosen if not isinstance(contestant, Peer)]
    loops = [contestant for contestant in ours if isinstance(contestant, Loop)]
    sizes = {contestant.slab_of for contestant in ours if isinstance(contestant, Limit)}
    asked = [OURS[name] for name in sizes if name and name not in {loop.name for loop in loops}]
    machine.warm([bench.data.raw, *bench.data.segments])
    bench.check([*loops, *(loop for loop in asked if isinstance(loop, Loop))])
    if bench.workload.ranks:
        together.rounds(bench, [loop for loop in loops if loop.kind == "forebay"])
        return
    right = bench.check(bench.rivals.ready(peers, bench.options.peer_bytes)) if peers else []
    bench.rounds([*ours, *right])
    if not (bench.options.no_counts or bench.workload.cold):
        machine.warm([bench.data.raw, *bench.data.segments])
        bench.counts(loops)
        bench.imports()


def main() -> None:
    """The whole run."""
    options = _options()
    workload = WORKLOADS[options.workload]
    chosen = choose(workload, options.contestants, options.peers)
    if options.only_check:
        return
    say(f"data of workload {workload.name}: {workload.epoch_bytes / 1e6:.0f} MB in {options.data}")
    forebay = Path(sys.executable).with_name("forebay")
    data, about = prepare(workload, options.data / (workload.data or workload.name), forebay, _build())
    out = options.out or options.data / f"results-{workload.name}.jsonl"
    with out.open("w") as file:
        bench = Bench(workload, data, file, options)
        bench.put(**machine.describe(data.raw, REPOSITORY))
        bench.put(**about)
        measure(bench, chosen)
    print(report.tables(bench.rows))
    say(f"results: {out}")


if __name__ == "__main__":
    main()
