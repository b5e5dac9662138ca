"""Peers made ready for the rounds: which of them are there, their formats on disk, how many workers suit them here.

A peer that is not installed, or that fails, is taken down as skipped with the reason, and the others go on.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report
from peers import ABSENT, ENVIRONMENTS, Peer
from workloads import Data, Workload, stamp, stamped

if TYPE_CHECKING:
    from rounds import Bench

REPOSITORY = Path(__file__).resolve().parent.parent
TRIAL_CAP_S = 3.0
"""Trials of numbers of workers are cut off after so many seconds."""


class Rivals:
    """The peers of one invocation."""

    def __init__(self, bench: Bench, workload: Workload, data: Data) -> None:
        self._bench, self._data = bench, data
        self.workload = workload
        """As peers have it: perhaps with fewer samples."""
        self._workers: dict[str, int] = {}

    @staticmethod
    def python(peer: Peer) -> Path:
        """The interpreter of its environment."""
        return REPOSITORY / ENVIRONMENTS[peer.environment] / "bin" / "python"

    def workers(self, peer: Peer) -> int:
        """Those it was fastest with."""
        return self._workers.get(peer.name, peer.workers[0])

    def ready(self, peers: Iterable[Peer], most_bytes: float) -> list[Peer]:
        """Those that can be measured. Samples beyond `most_bytes` are left out for all of them."""
        for name, reason in ABSENT.items():
            self.skip(name, reason)
        whole = self.workload
        self.workload = replace(
            whole, samples=min(whole.samples, max(whole.batch, int(most_bytes // whole.sample_bytes)))
        )
        ready, unusable = [], dict[str, str]()
        for peer in peers:
            why = unusable.get(peer.environment + peer.over) or self._missing(peer)
            if why is None and (why := self._written(peer)):
                unusable[peer.environment + peer.over] = why
            why = why or self._tried(peer)
            if why is None:
                ready.append(peer)
            else:
                self.skip(peer.name, why)
        return ready

    def skip(self, name: str, why: str) -> None:
        """Says why one is left out."""
        self._bench.put("skipped", contestant=name, reason=why)
        print(f"skipped {name}: {why}", file=sys.stderr, flush=True)

    def _missing(self, peer: Peer) -> str | None:
        if not peer.suits(self.workload):
            return "is made for samples of one field"
        python = self.python(peer)
        if not python.exists():
            return f"no environment: {ENVIRONMENTS[peer.environment]} (benches/run --peers makes it)"
        tried = subprocess.run([python, "-c", f"import {peer.module}"], capture_output=True, text=True)
        return f"not installed: {_last(tried.stderr)}" if tried.returncode else None

    def _written(self, peer: Peer) -> str | None:
        """Makes its format, unless it is there; says why that failed."""
        if peer.over == "rows":
            return None
        file = self._data.peers / f"{peer.over}.json"
        about = {"samples": self.workload.samples, "shape": self.workload.shape_text()}
        if stamped(file, about):
            return None
        try:
            found = self._bench.child("write", peer, format=peer.over)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return f"its format could not be written: {_last(str(error))}"
        stamp(file, about)
        self._bench.put("written", contestant=peer.name, **found)
        return None

    def _tried(self, peer: Peer) -> str | None:
        """Finds the best number of workers; says why none works."""
        rates, why = dict[int, float](), ""
        options = self._bench.options
        numbers = peer.workers if options.peer_workers is None else (options.peer_workers,)
        for workers in numbers:
            asked: dict[str, Any] = {"workers": workers, "least_s": 0, "least": 1, "most": 1}
            try:
                self._bench.settle(peer)
                found = self._bench.child("epochs", peer, cap_s=min(TRIAL_CAP_S, options.cap), **asked)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                why = f"does not run: {_last(str(error))}"
                continue
            rates[workers] = report.gigabytes_per_s(found)
            self._bench.put("trial", contestant=peer.name, workers=workers, gb_per_s=rates[workers])
        if not rates:
            return why
        self._workers[peer.name] = max(rates, key=lambda workers: rates[workers])
        tried = ", ".join(f"{workers}: {rate:.2f} GB/s" for workers, rate in rates.items())
        print(f"tried {peer.name} by workers: {tried}", file=sys.stderr, flush=True)
        return None


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no reason given"
