"""A ledger: what a training run did, one line of JSON for each step, written as soon as the step is done.

It is what exactness is judged by. A line is handed to the system in one call, so that a killed run leaves whole lines,
but for the last one, which may be cut and then does not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True)
class Entry:
    """One step: its number (the first is 1), the ids of its samples in their order, and its loss."""

    step: int
    ids: list[int]
    loss: float | None = None


class Ledger:
    """The ledger that a run writes."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, step: int, ids: list[int], loss: float | None = None) -> None:
        """Adds a step."""
        os.write(self._file, (json.dumps({"step": step, "loss": loss, "ids": ids}) + "\n").encode())

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def read(file: Path) -> list[Entry]:
    """The whole lines of a ledger."""
    lines = file.read_bytes().split(b"\n")[:-1]
    return [Entry(**json.loads(line)) for line in lines]


def joined(ranks: Sequence[Sequence[Entry]]) -> list[Entry]:
    """The steps that all ranks made: of each the ids of rank 0, then those of rank 1, and so on."""
    by_step = [{entry.step: entry.ids for entry in entries} for entries in ranks]
    steps = [step for step in by_step[0] if all(step in known for known in by_step)]
    return [Entry(step, [number for known in by_step for number in known[step]]) for step in steps]


def difference(straight: Sequence[Entry], other: Sequence[Entry], first: int, last: int) -> str | None:
    """Where `other`, which should be steps `first` to `last`, is not what the straight run did; None if nowhere."""
    steps = [entry.step for entry in other]
    if steps != list(range(first, last + 1)):
        return f"steps {first} to {last} were expected, found {_span(steps)}"
    known = {entry.step: entry.ids for entry in straight}
    for entry in other:
        if entry.ids != known.get(entry.step):
            return f"step {entry.step} has other samples: ids={entry.ids} straight={known.get(entry.step)}"
    return None


def uneven(entries: Sequence[Entry], samples: int) -> str | None:
    """Where an epoch of `samples` samples has one twice, or does not end with a step; None if nowhere."""
    seen: set[int] = set()
    for entry in entries:
        for number in entry.ids:
            if number in seen:
                return f"sample {number} came twice in one epoch: step={entry.step}"
            seen.add(number)
        if len(seen) == samples:
            seen.clear()
        elif len(seen) > samples:
            return f"an epoch does not end where the topic does: step={entry.step} samples={samples}"
    return None


def _span(steps: Sequence[int]) -> str:
    return f"{len(steps)} steps, {steps[0]} to {steps[-1]}" if steps else "none"
