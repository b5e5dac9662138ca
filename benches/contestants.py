"""Who is measured: limits of the machine, hand-written loops, Forebay. A new one is a class and a line in `OURS`.

- A `Limit` is a program in C that reads a file into memory: what no loader can beat. It delivers nothing.
- A `Loop` yields dicts of torch tensors, every field and "id", batch by batch. `open` makes it, outside of the epochs'
  clock; what a batch costs to make and to let go of is inside.
- A `Peer` (in peers.py) is a `Loop` with another loader inside, which runs in an environment of its own.

`ideal_pread` is the bar: the shortest loop that somebody could write by hand for these very data, without an order of
their own, without checksums, states, ranks, or more than one column. It reads into eight buffers in turn, so that what
it delivers stays in the last cache, and is overwritten eight batches later: no loader that hands out memory to keep can
do that. `ideal_blocks` permutes whole batches, `ideal_rows` reads every row by itself as a real shuffle by hand would.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from workloads import ROWS, TOPIC, Data, Workload

if TYPE_CHECKING:
    import forebay

SEED = 7
"""Of every shuffle."""
RING_BUFFERS = 8
"""Buffers of batches that `ideal_*` and `limit_ring*` use in turn."""
DISK_READ_BYTES = 1 << 20
DISK_DEPTH = 8
DISK_CHUNK_BYTES = 256 << 10
DISK_CHUNK_DEPTH = 16
"""How a disk is read: reads of that size, so many at once."""

Batch = dict[str, Any]
Order = Literal["sequential", "shuffled"]


@dataclass(frozen=True)
class Part:
    """Which part of the work a process does, and with what help."""

    rank: int = 0
    world: int = 1
    workers: int = 0
    """Worker processes or threads, where a loader has them."""


class Opened(Protocol):
    """A contestant at work."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch. Epochs are asked for in turn, from 0 on."""

    def stats(self) -> dict[str, int]:
        """Running counts, if it has any."""

    def close(self) -> None:
        """Ends it."""


@dataclass(frozen=True)
class Limit:
    """Reads of one batch's bytes, in order, into a ring of eight buffers, or as much as the slab of `slab_of`."""

    name: str
    about: str
    threads: int
    slab_of: str | None = None
    topic: bool = False
    usual: bool = True
    way: Literal["cached", "direct", "scattered"] = "cached"
    """Through the page cache or past it, `threads` reads at once; in order or at places far from each other."""
    order: Order = "sequential"
    kind: Literal["limit"] = "limit"

    def read_bytes(self, workload: Workload) -> int:
        """Bytes of a read."""
        return {"cached": workload.batch_bytes, "direct": DISK_READ_BYTES, "scattered": DISK_CHUNK_BYTES}[self.way]

    def memory_bytes(self, workload: Workload, slabs: dict[str, int]) -> int:
        """Bytes to read into, over all threads. `slabs` are those seen, by contestant."""
        if self.way != "cached":
            return self.read_bytes(workload) * self.threads
        if self.slab_of is None:
            return workload.batch_bytes * RING_BUFFERS * self.threads
        return max(slabs[self.slab_of], workload.batch_bytes * self.threads)


@dataclass(frozen=True)
class Loop:
    """A loader, or what stands for one."""

    name: str
    about: str
    order: Order
    open: Callable[[Workload, Data, Part], Opened]
    kind: Literal["ideal", "forebay", "peer"]
    limit: str
    """The limit that its memory and its threads set it."""
    usual: bool = True


class Ideal:
    """Reads by hand from the raw file; see the module."""

    def __init__(self, workload: Workload, data: Data, what: Literal["order", "blocks", "rows"]) -> None:
        import numpy as np
        import torch

        self._np, self._torch, self._workload, self._what = np, torch, workload, what
        self._fd = os.open(data.raw, os.O_RDONLY | os.O_CLOEXEC)
        field = workload.only
        self._name = field.name if field else ROWS
        shape = (workload.batch, *(field.shape if field else (workload.row_bytes,)))
        dtype = getattr(torch, field.dtype if field else "uint8")
        # Written once, so that the kernel need not find pages for them within the epochs.
        self._buffers = [torch.zeros(shape, dtype=dtype) for _ in range(RING_BUFFERS)]
        self._views = [memoryview(buffer.numpy()).cast("B") for buffer in self._buffers]

    def epoch(self, number: int) -> Iterator[Batch]:
        """See `Opened`."""
        return self._rows(number) if self._what == "rows" else self._blocks(number)

    def _blocks(self, number: int) -> Iterator[Batch]:
        samples, batch, size, name = self._workload.samples, self._workload.batch, self._workload.row_bytes, self._name
        arange, from_numpy = self._np.arange, self._torch.from_numpy
        starts = list(range(0, samples, batch))
        if self._what == "blocks":
            starts = self._np.random.default_rng([SEED, number]).permutation(starts).tolist()
        ring, fd = list(zip(self._buffers, self._views, strict=True)), self._fd
        for step, start in enumerate(starts):
            count = min(batch, samples - start)
            buffer, view = ring[step % RING_BUFFERS]
            os.preadv(fd, [view[: count * size]], start * size)
            yield {name: buffer[:count], "id": from_numpy(arange(start, start + count))}

    def _rows(self, number: int) -> Iterator[Batch]:
        samples, batch, size, name = self._workload.samples, self._workload.batch, self._workload.row_bytes, self._name
        order = self._np.random.default_rng([SEED, number]).permutation(samples)
        ring, fd = list(zip(self._buffers, self._views, strict=True)), self._fd
        for step, start in enumerate(range(0, samples, batch)):
            ids = order[start : start + batch]
            buffer, view = ring[step % RING_BUFFERS]
            for row, index in enumerate(ids.tolist()):
                os.preadv(fd, [view[row * size : (row + 1) * size]], index * size)
            yield {name: buffer[: len(ids)], "id": self._torch.from_numpy(ids)}

    def stats(self) -> dict[str, int]:
        """See `Opened`."""
        return {}

    def close(self) -> None:
        """See `Opened`."""
        os.close(self._fd)


class Forebay:
    """A `forebay.DataLoader` as its users have it, with `settings` on top."""

    def __init__(self, workload: Workload, data: Data, part: Part, **settings: Any) -> None:
        import forebay

        ranks: dict[str, Any] = {"global_batch_size": workload.batch, "rank": part.rank, "world_size": part.world}
        self.loader: forebay.DataLoader = forebay.DataLoader(TOPIC, root=data.root, seed=SEED, **ranks, **settings)

    def epoch(self, number: int) -> Iterator[Batch]:
        """See `Opened`."""
        return iter(self.loader)

    def stats(self) -> dict[str, int]:
        """See `Opened`."""
        return self.loader.stats()

    def close(self) -> None:
        """See `Opened`."""
        self.loader.close()


def _ideal(name: str, order: Order, what: Literal["order", "blocks", "rows"], about: str) -> Loop:
    def make(workload: Workload, data: Data, part: Part) -> Opened:
        if part.world != 1:
            raise ValueError(f"a loop by hand has no ranks: world={part.world}")
        return Ideal(workload, data, what)

    return Loop(name, about, order, make, "ideal", "limit_ring")


def _forebay(name: str, order: Order, about: str, usual: bool = True, **settings: Any) -> Loop:
    settings["shuffle"] = order == "shuffled"
    threads = settings.get("reader_threads", min(2, os.cpu_count() or 1))
    limit = ("limit_slab" if order == "shuffled" else "limit_small_slab") + ("_2" if threads == 2 else "")

    def make(workload: Workload, data: Data, part: Part) -> Opened:
        return Forebay(workload, data, part, **settings)

    return Loop(name, about, order, make, "forebay", limit, usual)


OURS: dict[str, Limit | Loop] = {
    contestant.name: contestant
    for contestant in (
        Limit("limit_ring", "C, pread into 8 buffers, 1 thread", threads=1),
        Limit("limit_ring_2", "the same, 2 threads with 8 buffers each", threads=2),
        Limit("limit_ring_topic", "as limit_ring, of the topic's own file", threads=1, topic=True, usual=False),
        Limit("limit_small_slab", "C, pread into the sequential slab's size", 1, slab_of="forebay_sequential"),
        Limit("limit_small_slab_2", "the same, 2 threads", 2, slab_of="forebay_sequential"),
        Limit("limit_slab", "C, pread into the shuffled slab's size, 1 thread", 1, slab_of="forebay_shuffled"),
        Limit("limit_slab_2", "the same, 2 threads", 2, slab_of="forebay_shuffled"),
        Limit("limit_disk", "C, O_DIRECT reads of 1 MiB in order, 8 at once", DISK_DEPTH, usual=False, way="direct"),
        Limit(
            "limit_disk_chunks",
            "C, O_DIRECT reads of 256 KiB at far places, 16 at once",
            DISK_CHUNK_DEPTH,
            usual=False,
            way="scattered",
        ),
        _ideal("ideal_pread", "sequential", "order", "Python, pread of a batch into 8 buffers"),
        _ideal("ideal_blocks", "shuffled", "blocks", "the same, whole batches in random order"),
        _ideal("ideal_rows", "shuffled", "rows", "the same, one pread per row in random order"),
        _forebay("forebay_sequential", "sequential", "defaults"),
        _forebay("forebay_sequential_1", "sequential", "1 reader thread", reader_threads=1),
        _forebay("forebay_sequential_preadv", "sequential", "without io_uring", usual=False, reader="preadv"),
        _forebay("forebay_sequential_unchecked", "sequential", "checksum='off'", usual=False, checksum="off"),
        _forebay("forebay_shuffled", "shuffled", "shuffle=True, defaults"),
        _forebay("forebay_shuffled_1", "shuffled", "shuffle=True, 1 reader thread", reader_threads=1),
        _forebay("forebay_shuffled_2", "shuffled", "shuffle=True, 2 reader threads", reader_threads=2),
        _forebay("forebay_shuffled_16", "shuffled", "shuffle=True, lanes=16", usual=False, lanes=16),
        _forebay("forebay_shuffled_preadv", "shuffled", "without io_uring", usual=False, reader="preadv"),
        _forebay("forebay_shuffled_unchecked", "shuffled", "checksum='off'", usual=False, checksum="off"),
    )
}
"""By name, in the order of a round. Those not `usual` run only if named."""

COLD = (
    "limit_disk",
    "limit_disk_chunks",
    "ideal_pread",
    "forebay_sequential",
    "forebay_sequential_1",
    "forebay_shuffled",
    "forebay_shuffled_1",
)
"""Those usual where the page cache is empty."""
RANKED = ("forebay_sequential", "forebay_shuffled")
"""Those usual where several processes share the data."""
REFERENCE = "ideal_pread"
"""The contestant that ratios are to."""
RING = "limit_ring"
"""The same without Python: what one thread can read at most."""
DISK = "limit_disk"
"""What a disk delivers at most."""
