"""What several tests share: topics made by `forebay ingest`, the order written down place by place, jobs of processes.

A sample says who it is: `id` is its index in the topic's order, every other column a function of it. So any row of any
batch can be checked by itself.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import forebay
from forebay import _forebay

TESTS = Path(__file__).parent


def cli(*arguments: str | os.PathLike[str]) -> None:
    """Runs a command that must succeed, in this process."""
    code = _forebay.run_cli([os.fspath(argument) for argument in arguments])
    assert code == 0, f"forebay {' '.join(map(str, arguments))}: exit code {code}"


def python(code: str, *arguments: str | os.PathLike[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a small program of its own to its end."""
    command = [sys.executable, "-X", "dev", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, **options)


def x_of(ids: Any, width: int) -> Any:
    """Column `x` of these samples."""
    import numpy as np

    return ((np.asarray(ids, "i8")[:, None] * 31 + np.arange(width)) % 65521).astype("u2")


def ingest(root: Path, name: str, parts: Sequence[int], width: int = 4, first: int = 0) -> None:
    """Adds samples to a topic, a file for each of `parts`; files go to its partitions in turn."""
    import numpy as np

    folder = root.parent / f"{root.name}-files"
    folder.mkdir(exist_ok=True)
    files = []
    for count in parts:
        ids: Any = np.arange(first, first + count, dtype="i8")
        file = folder / f"{name}-{first:08}.npz"
        np.savez(file, id=ids, x=x_of(ids, width))
        files.append(file)
        first += count
    cli("ingest", *files, "--topic", name, "--root", root, "--fsync", "never", "-q")


def make_topic(root: Path, name: str, parts: Sequence[int], width: int = 4, partitions: int = 1, **sizes: str) -> None:
    """A topic of as many segments as there are parts, if these are larger than a segment.

    With one partition its samples have the ids 0, 1, 2, ... in its own order.
    """
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    schema = f"id:int64, x:uint16[{width}]"
    cli("topic", "create", name, "--root", root, "--schema", schema, f"--partitions={partitions}", *options)
    for number, part in enumerate(parts):
        ingest(root, name, [part], width, sum(parts[:number]))


def ids_of(batch: dict[str, Any]) -> list[int]:
    """The samples of a NumPy or torch batch, repeats under a mask left out, after a look at every value."""
    import numpy as np

    ids, x = np.asarray(batch["id"]), np.asarray(batch["x"])
    assert (x == x_of(ids, x.shape[1])).all(), "a row is not the sample that it says"
    if "mask" in batch:
        ids = ids[np.asarray(batch["mask"])]
    found: list[int] = ids.tolist()
    return found


@dataclass
class Order:
    """The order of a topic's samples in some epochs, place by place, as a loader with batches of one tells it."""

    lanes: int
    epochs: list[list[int]]

    @classmethod
    def of(cls, root: Path, name: str, epochs: int, **settings: Any) -> Order:
        """Reads it out. Every epoch must hold every sample once."""
        with forebay.DataLoader(name, 1, root=root, output="numpy", **settings) as loader:
            lines = [[int(batch["id"][0]) for batch in loader] for _ in range(epochs)]
            lanes = loader.plan()["lanes"] if loader.plan()["shuffle"] else 1
        assert all(sorted(line) == list(range(len(line))) for line in lines)
        return cls(lanes, lines)

    def step(self, epoch: int, place: int, batch: int) -> list[int]:
        """A global batch: its places by lane and place, which is what the ranks' parts are cut from."""
        line = self.epochs[epoch]
        places = range(place, min(place + batch, len(line)))
        return [line[at] for at in sorted(places, key=lambda at: (at % self.lanes, at))]


@dataclass
class Step:
    """One global batch as the ranks' ledgers have it."""

    epoch: int
    place: int
    to: int
    ids: list[int]


@dataclass
class Job:
    """A training of several processes that is killed and started again, and what it has been given so far."""

    folder: Path
    root: Path
    topic: str
    epochs: int = 3
    save_every: int = 1
    names_epochs: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    job: str | None = None
    steps: list[Step] = field(default_factory=list)
    attempts: int = 0
    last_batch: int = 0

    @property
    def state(self) -> Path:
        """Where rank 0 saves."""
        return self.folder / "state.json"

    def run(
        self,
        world: int,
        batch: int,
        *,
        kill_after: int | None = None,
        die: tuple[int, str] | None = None,
        meanwhile: Callable[[int], None] | None = None,
    ) -> bool:
        """One attempt: all ranks start from what was saved last. True if the training came to its end.

        Killed after so many messages of its ranks, or by rank 0 itself. `meanwhile` is called with every message.
        """
        self.attempts += 1
        ranks = [self._start(rank, world, batch, die if rank == 0 else None) for rank in range(world)]
        try:
            done = self._lead(ranks, kill_after, meanwhile)
        finally:
            for rank in ranks:
                rank.kill()
            errors = [rank.communicate()[1] for rank in ranks]
        assert not any(errors), errors
        self._collect(world)
        self.last_batch = batch
        return done

    def _start(self, rank: int, world: int, batch: int, die: tuple[int, str] | None) -> subprocess.Popen[str]:
        orders = {
            "root": str(self.root),
            "topic": self.topic,
            "rank": rank,
            "world": world,
            "batch": batch,
            "epochs": self.epochs,
            "save_every": self.save_every,
            "names_epochs": self.names_epochs,
            "settings": self.settings,
            "state": str(self.state),
            "job": self.job,
            "attempt": f"attempt-{self.attempts}",
            "ledger": str(self._ledger(rank)),
            "die": list(die) if die else None,
        }
        command = [sys.executable, str(TESTS / "trainer.py"), json.dumps(orders)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)

    def _ledger(self, rank: int) -> Path:
        return self.folder / f"ledger-{self.attempts}-{rank}"

    @staticmethod
    def _lead(
        ranks: list[subprocess.Popen[str]], kill_after: int | None, meanwhile: Callable[[int], None] | None
    ) -> bool:
        """Lets all ranks go on once all have done a step. True at the end, false when one dies or is to be killed."""
        messages = 0
        while True:
            words = []
            for rank in ranks:
                assert rank.stdin is not None
                assert rank.stdout is not None
                if messages == kill_after:
                    return False
                words.append(rank.stdout.readline().strip())
                if not words[-1]:
                    return False
                messages += 1
                if meanwhile is not None:
                    meanwhile(messages)
            assert len(set(words)) == 1, f"ranks do not end together: {words}"
            if words[0] == "end":
                return True
            for rank in ranks:
                if messages == kill_after:
                    return False
                assert rank.stdin is not None
                rank.stdin.write("\n")

    def _collect(self, world: int) -> None:
        """Adds what this attempt's ranks noted to the whole, from where they started."""
        ledgers = []
        for rank in range(world):
            text = self._ledger(rank).read_text() if self._ledger(rank).exists() else ""
            lines = [json.loads(line) for line in text.splitlines()]
            if lines:
                ledgers.append(lines)
        if not ledgers:
            return  # Killed before they knew where to start.
        starts = {tuple(lines[0]["resumed"]) for lines in ledgers}
        assert len(starts) == 1, f"ranks start in different places: {starts}"
        (start,) = starts
        self.steps = [step for step in self.steps if (step.epoch, step.place) < start]
        if len(ledgers) < world:
            return
        places = {start[0]: start[1]}
        for parts in zip(*(lines[1:] for lines in ledgers), strict=False):  # A rank may be killed before its line.
            epoch, to = parts[0]["epoch"], parts[0]["to"]
            assert all((part["epoch"], part["to"]) == (epoch, to) for part in parts)
            place = places.get(epoch, 0)
            self.steps.append(Step(epoch, place, to, [one for part in parts for one in part["ids"]]))
            places[epoch] = to

    def check(self, order: Order) -> None:
        """All epochs from the first place to the last, every global batch as in one straight run."""
        total = len(order.epochs[0])
        for epoch in range(self.epochs):
            steps = [step for step in self.steps if step.epoch == epoch]
            assert steps, f"epoch {epoch} was never trained"
            assert steps[0].place == 0
            assert all(one.to == other.place for one, other in pairwise(steps)), f"epoch {epoch} has a gap"
            for step in steps:
                assert step.ids == order.step(epoch, step.place, step.to - step.place), (epoch, step.place)
            left = total - steps[-1].to
            assert left < self.last_batch if self.settings.get("drop_last") else left == 0
        assert {step.epoch for step in self.steps} == set(range(self.epochs))


def batches_of(loader: forebay.DataLoader) -> list[list[int]]:
    """One iteration to its end."""
    return [ids_of(batch) for batch in loader]


def take(loader: forebay.DataLoader, count: int) -> list[list[int]]:
    """So many batches of a new iteration, which is then broken off."""
    iterator = iter(loader)
    return [ids_of(next(iterator)) for _ in range(count)]


def in_threads(count: int, body: Callable[[int], None]) -> None:
    """Runs `body` in threads that start together, and raises what any of them raised."""
    gate, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        gate.wait()
        try:
            body(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def forked(body: Callable[[], object]) -> int:
    """Exit code of a forked child: 0 if `body` returned, 1 if it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sealed_segments(root: Path, topic: str) -> list[Path]:
    """Files of a topic's sealed segments in order."""
    return sorted((root / "topics" / "public" / "default" / topic).glob("p*/*.arrow"))


@contextmanager
def stuck(segment: Path) -> Iterator[Callable[[], None]]:
    """A disk that does not answer: opening the segment's file waits, until the function given is called.

    What it called for then fails; whoever asks anew gets the file as it was.
    """
    aside, fifo = segment.with_suffix(".aside"), segment.with_suffix(".fifo")
    segment.rename(aside)
    os.mkfifo(segment)
    os.link(segment, fifo)

    def answer() -> None:
        if aside.exists():
            aside.replace(segment)
            # Whoever opened the pipe to read waits for a writer, and then for its end.
            os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
            fifo.unlink()

    try:
        yield answer
    finally:
        answer()


def seeded(*parts: object) -> random.Random:
    """Randomness that is the same at every run."""
    return random.Random("/".join(map(str, parts)))


def flat(batches: Iterable[list[int]]) -> list[int]:
    """All samples of some batches."""
    return [one for batch in batches for one in batch]


def damage(segment: Path, near: bytes) -> None:
    """Flips a bit of a segment's file in the middle of what is found there."""
    data = bytearray(segment.read_bytes())
    at = data.index(near) + len(near) // 2
    data[at] ^= 0x10
    segment.write_bytes(data)
