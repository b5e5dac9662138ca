"""What is loaded: the workloads, their data on disk, and the check that what comes out is what went in.

Every sample is random bytes from one seed, except its first four bytes: its id, little endian. Beside the samples goes
a column of ids. So a batch shows by itself whether content and id belong together, and a whole epoch whether each
sample came once. The raw file holds the samples only, one after the other: what the hand-written contestants read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20260101
"""Of the samples' bytes."""
TOPIC = "samples"
"""Name of the topic in its root."""
ID_BYTES = 8
"""Of one id in the column of ids."""
_STRIPE = 2000
"""Samples made at a time."""


@dataclass(frozen=True)
class Workload:
    """Samples of one shape and dtype, and the batch in which they are loaded."""

    name: str
    samples: int
    shape: tuple[int, ...]
    dtype: str
    batch: int

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one sample without its id."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch's samples without their ids."""
        return self.batch * self.row_bytes

    @property
    def epoch_bytes(self) -> int:
        """Bytes that a contestant delivers in one epoch, ids included."""
        return self.samples * (self.row_bytes + ID_BYTES)

    @property
    def steps(self) -> int:
        """Batches of one epoch, the short last one included."""
        return -(-self.samples // self.batch)


WORKLOADS = {
    w.name: w
    for w in (
        Workload("A", samples=200_000, shape=(2048,), dtype="uint16", batch=256),
        Workload("B", samples=20_000, shape=(3, 224, 224), dtype="uint8", batch=64),
        Workload("tiny", samples=5_000, shape=(512,), dtype="uint16", batch=64),
    )
}
"""By name: A, tokens of 4 KiB; B, images of 150 KB; tiny, to try the benchmark itself."""


@dataclass(frozen=True)
class Data:
    """Where a workload's data are."""

    raw: Path
    root: Path

    @property
    def segments(self) -> list[Path]:
        """The files of the topic that hold samples."""
        files = (*self.root.rglob("*.arrow"), *self.root.rglob("*.open"))
        return sorted(file for file in files if file.stat().st_size)


def raw_data(workload: Workload, raw: Path) -> np.memmap[Any, np.dtype[Any]]:
    """The raw file, mapped."""
    return np.memmap(raw, dtype=workload.dtype, mode="r", shape=(workload.samples, *workload.shape))


def prepare(workload: Workload, folder: Path, forebay: Path, version: str) -> tuple[Data, dict[str, Any]]:
    """Makes what is missing of the raw file and the topic; says how long ingest took.

    `version` names the build of `forebay`: another one ingests again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = Data(raw=folder / "samples.bin", root=folder / "root")
    about: dict[str, Any] = {"kind": "data", **asdict(workload), "seed": SEED, "epoch_bytes": workload.epoch_bytes}
    if not _stamped(folder / "raw.json", about):
        _write_raw(workload, data.raw)
        _stamp(folder / "raw.json", about)
    topic = about | {"version": version}
    if not _stamped(folder / "topic.json", topic):
        shutil.rmtree(data.root, ignore_errors=True)
        source = folder / "samples.npz"
        _write_npz(workload, data.raw, source)
        where: list[str | Path] = ["--topic", TOPIC, "--root", data.root]
        done = subprocess.run(
            [forebay, "ingest", source, *where, "--json", "--quiet"], check=True, capture_output=True, text=True
        )
        source.unlink()
        (folder / "ingest.json").write_text(done.stdout)
        _stamp(folder / "topic.json", topic)
    told = json.loads((folder / "ingest.json").read_text())
    about["ingest"] = {name: told[name] for name in ("rows", "bytes", "seconds")}
    return data, about


def _stamped(file: Path, about: dict[str, Any]) -> bool:
    return file.exists() and json.loads(file.read_text()) == json.loads(json.dumps(about))


def _stamp(file: Path, about: dict[str, Any]) -> None:
    file.write_text(json.dumps(about))


def _stripes(samples: int) -> Iterator[tuple[int, int]]:
    for start in range(0, samples, _STRIPE):
        yield start, min(_STRIPE, samples - start)


def _write_raw(workload: Workload, raw: Path) -> None:
    random = np.random.Generator(np.random.PCG64(SEED))
    with raw.open("wb") as file:
        for start, count in _stripes(workload.samples):
            rows = np.frombuffer(random.bytes(count * workload.row_bytes), np.uint8)
            rows = rows.reshape(count, workload.row_bytes).copy()
            rows[:, :4] = np.arange(start, start + count, dtype="<u4").view(np.uint8).reshape(count, 4)
            file.write(rows.data)
        os.fsync(file.fileno())


def _write_npz(workload: Workload, raw: Path, into: Path) -> None:
    """Writes ids and samples as an uncompressed npz, a stripe at a time."""
    samples = raw_data(workload, raw)
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("id.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.arange(workload.samples, dtype="<i8"))
        with archive.open("x.npy", "w", force_zip64=True) as member:
            header = {"descr": samples.dtype.str, "fortran_order": False, "shape": samples.shape}
            np.lib.format.write_array_header_1_0(member, header)
            for start, count in _stripes(workload.samples):
                member.write(samples[start : start + count].tobytes())


class Checker:
    """Compares the batches of one epoch with the raw file, byte by byte, and counts every sample."""

    def __init__(self, workload: Workload, raw: Path) -> None:
        self._workload = workload
        self._raw = raw_data(workload, raw)
        self._seen: np.ndarray[Any, Any] = np.zeros(workload.samples, np.int64)
        self._mixes: list[int] = []
        self._next = 0
        self._in_order = True
        self.wrong = 0
        """Samples whose content is not that of their id."""

    def batch(self, ids: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> None:
        """Takes one batch."""
        known = np.clip(ids, 0, self._workload.samples - 1)
        first = rows.reshape(len(rows), -1).view(np.uint8)[:, :4].copy().view("<u4")[:, 0]
        same = (rows.reshape(len(rows), -1) == self._raw[known].reshape(len(rows), -1)).all(axis=1)
        self.wrong += int((~same | (first != ids) | (known != ids)).sum())
        np.add.at(self._seen, known, 1)
        # A hundredth of the data each: how many of them one batch touches says how well it is mixed.
        self._mixes.append(len(np.unique(known // max(1, self._workload.samples // 100))))
        self._in_order &= bool((ids == np.arange(self._next, self._next + len(ids))).all())
        self._next += len(ids)

    def result(self) -> dict[str, Any]:
        """What was found."""
        return {
            "wrong": self.wrong,
            "missing": int((self._seen == 0).sum()),
            "repeated": int((self._seen > 1).sum()),
            "in_order": self._in_order,
            "mix": round(float(np.mean(self._mixes)), 1),
            "batches": len(self._mixes),
        }
