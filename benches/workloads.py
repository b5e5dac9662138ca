"""What is loaded: the workloads, their data on disk, and the check that what comes out is what went in.

Every sample is random bytes from one seed, except its first four bytes: its id, little endian. Beside the samples goes
a column of ids. So a batch shows by itself whether content and id belong together, and a whole epoch whether each
sample came once. The raw file holds the samples only, one after the other, each with its fields one after the other:
what the hand-written contestants read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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
ROWS = "rows"
"""Name under which a loop by hand delivers samples of several fields: whole, as bytes."""
_STRIPE_BYTES = 256 << 20
"""Samples are made and ingested in stripes of at most so many bytes, so that they need room once more only for one."""


@dataclass(frozen=True)
class Field:
    """A column beside the ids."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Samples, the batch in which they are loaded, and how: warm by one process, unless it says otherwise."""

    name: str
    samples: int
    fields: tuple[Field, ...]
    batch: int
    """Samples of a step, over all ranks."""
    data: str = ""
    """The workload whose data are meant; its own by default."""
    cold: bool = False
    """Whether files are dropped from the page cache before each run, which then is one epoch."""
    ranks: tuple[int, ...] = ()
    """Numbers of processes that share the data in turn."""

    @cached_property
    def row(self) -> np.dtype[Any]:
        """One sample in the raw file."""
        return np.dtype([(field.name, field.dtype, field.shape) for field in self.fields])

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample without its id."""
        return self.row.itemsize

    @property
    def only(self) -> Field | None:
        """The field, if there is one only."""
        return self.fields[0] if len(self.fields) == 1 else None

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch's samples without their ids."""
        return self.batch * self.row_bytes

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample as it is delivered, its id included."""
        return self.row_bytes + ID_BYTES

    @property
    def epoch_bytes(self) -> int:
        """Bytes that a contestant delivers in one epoch, ids included."""
        return self.samples * self.sample_bytes

    @property
    def steps(self) -> int:
        """Batches of one epoch, the short last one included."""
        return -(-self.samples // self.batch)

    def shape_text(self) -> str:
        """The fields in a few words."""
        if only := self.only:
            return f"{only.dtype}[{'x'.join(map(str, only.shape))}]"
        kinds = [field.dtype + str(list(field.shape) or "") for field in self.fields]
        return ", ".join(f"{kinds.count(kind)} of {kind}" for kind in dict.fromkeys(kinds))


_X = "x"
_MANY = (*(Field(f"f{at:02}", "float32") for at in range(64)), *(Field(f"i{at}", "int64") for at in range(7)))
_WIDE = (Field("f", "float32", (64,)), Field("i", "int64", (7,)))
_A = Workload("A", 200_000, (Field(_X, "uint16", (2048,)),), batch=256)
_TINY = Workload("tiny", 5_000, (Field(_X, "uint16", (512,)),), batch=64)

WORKLOADS = {
    w.name: w
    for w in (
        _A,
        Workload("B", 20_000, (Field(_X, "uint8", (3, 224, 224)),), batch=64),
        replace(_A, name="D", data="A", cold=True),
        Workload("E", 2_000_000, _MANY, batch=4096),
        Workload("E2", 2_000_000, _WIDE, batch=4096),
        replace(_A, name="F", data="A", ranks=(1, 2, 4)),
        _TINY,
        replace(_TINY, name="tinyD", data="tiny", cold=True),
        Workload("tinyE", 4_000, _MANY[:3], batch=256),
        replace(_TINY, name="tinyF", data="tiny", ranks=(1, 2)),
    )
}
"""By name; README.md says what they stand for. Those that begin with `tiny` are for trying the benchmark itself."""

LATER = {"C": "documents of different lengths need columns of variable length, which Forebay does not have yet"}
"""Workloads that cannot be run, and why."""


@dataclass(frozen=True)
class Data:
    """Where a workload's data are."""

    raw: Path
    root: Path
    peers: Path
    """Folder of the peers' own formats."""

    @staticmethod
    def under(folder: Path) -> Data:
        """Those in a folder of their own."""
        return Data(folder / "samples.bin", folder / "root", folder / "peers")

    @property
    def segments(self) -> list[Path]:
        """The files of the topic that hold samples."""
        files = (*self.root.rglob("*.arrow"), *self.root.rglob("*.open"))
        return sorted(file for file in files if file.stat().st_size)

    def of_format(self, name: str) -> list[Path]:
        """The files of a peer's own format."""
        return sorted(file for file in (self.peers / name).rglob("*") if file.is_file() and file.stat().st_size)


def raw_rows(workload: Workload, raw: Path) -> np.memmap[Any, np.dtype[Any]]:
    """The raw file, mapped: structured rows."""
    return np.memmap(raw, dtype=workload.row, mode="r", shape=(workload.samples,))


def raw_data(workload: Workload, raw: Path) -> np.memmap[Any, np.dtype[Any]]:
    """The raw file, mapped: its only field, else structured rows."""
    if field := workload.only:
        return np.memmap(raw, dtype=field.dtype, mode="r", shape=(workload.samples, *field.shape))
    return raw_rows(workload, raw)


def prepare(workload: Workload, folder: Path, forebay: Path, version: str) -> tuple[Data, dict[str, Any]]:
    """Makes what is missing of the raw file and the topic; says how long ingest took.

    `version` names the build of `forebay`: another one ingests again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = Data.under(folder)
    made = {"samples": workload.samples, "fields": [asdict(field) for field in workload.fields], "seed": SEED}
    if not stamped(folder / "raw.json", made):
        _write_raw(workload, data.raw)
        stamp(folder / "raw.json", made)
    topic = made | {"version": version}
    if not stamped(folder / "topic.json", topic):
        shutil.rmtree(data.root, ignore_errors=True)
        (folder / "ingest.json").write_text(json.dumps(_ingest(workload, data, folder / "samples.npz", forebay)))
        stamp(folder / "topic.json", topic)
    about = {"kind": "data", "name": workload.name, "samples": workload.samples, "shape": workload.shape_text()}
    about |= {"batch": workload.batch, "cold": workload.cold, "ranks": workload.ranks, "seed": SEED}
    about |= {"epoch_bytes": workload.epoch_bytes, "ingest": json.loads((folder / "ingest.json").read_text())}
    return data, about


def _ingest(workload: Workload, data: Data, source: Path, forebay: Path) -> dict[str, float]:
    """Fills the topic, a stripe at a time; returns rows, bytes and seconds."""
    summed = dict.fromkeys(("rows", "bytes", "seconds"), 0.0)
    for start, count in _stripes(workload):
        _write_npz(workload, data.raw, source, start, count)
        where: list[str | Path] = ["--topic", TOPIC, "--root", data.root]
        done = subprocess.run(
            [forebay, "ingest", source, *where, "--json", "--quiet"], check=True, capture_output=True, text=True
        )
        source.unlink()
        told = json.loads(done.stdout)
        summed = {name: value + told[name] for name, value in summed.items()}
    return summed


def stamped(file: Path, about: Mapping[str, Any]) -> bool:
    """Whether what `file` speaks of was made from `about`."""
    return file.exists() and json.loads(file.read_text()) == json.loads(json.dumps(about))


def stamp(file: Path, about: Mapping[str, Any]) -> None:
    """Says what was made."""
    file.write_text(json.dumps(about))


def _stripes(workload: Workload) -> Iterator[tuple[int, int]]:
    # A power of two, as a block's rows are: no block is cut short.
    most = 1 << (max(1, _STRIPE_BYTES // workload.row_bytes).bit_length() - 1)
    for start in range(0, workload.samples, most):
        yield start, min(most, workload.samples - start)


def _write_raw(workload: Workload, raw: Path) -> None:
    random = np.random.Generator(np.random.PCG64(SEED))
    with raw.open("wb") as file:
        for start, count in _stripes(workload):
            rows = np.frombuffer(random.bytes(count * workload.row_bytes), np.uint8)
            rows = rows.reshape(count, workload.row_bytes).copy()
            rows[:, :4] = np.arange(start, start + count, dtype="<u4").view(np.uint8).reshape(count, 4)
            file.write(rows.data)
        os.fsync(file.fileno())


def _write_npz(workload: Workload, raw: Path, into: Path, start: int, count: int) -> None:
    """Writes ids and samples as an uncompressed npz."""
    rows = raw_rows(workload, raw)[start : start + count]
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("id.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.arange(start, start + count, dtype="<i8"))
        for field in workload.fields:
            with archive.open(f"{field.name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(rows[field.name]))


class Checker:
    """Compares the batches of one epoch with the raw file, byte by byte, and counts every sample."""

    def __init__(self, workload: Workload, raw: Path) -> None:
        self._workload = workload
        self._raw = raw_rows(workload, raw)
        self._seen: np.ndarray[Any, Any] = np.zeros(workload.samples, np.int64)
        self._mixes: list[int] = []
        self._next = 0
        self._in_order = True
        self.wrong = 0
        """Samples whose content is not that of their id."""

    def batch(self, ids: np.ndarray[Any, Any], columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Takes one batch: every field, or `ROWS`."""
        known = np.clip(ids, 0, self._workload.samples - 1)
        wanted = self._raw[known]
        good = known == ids
        if ROWS in columns:
            good &= (_bytes(columns[ROWS]) == _bytes(wanted)).all(axis=1)
        else:
            for field in self._workload.fields:
                values: np.ndarray[Any, Any] = columns[field.name].astype(field.dtype, copy=False)
                good &= (_bytes(values) == _bytes(wanted[field.name])).all(axis=1)
        self.wrong += int((~good).sum())
        np.add.at(self._seen, known, 1)
        # A hundredth of the data each: how many of them one batch touches says how well it is mixed.
        self._mixes.append(len(np.unique(known // max(1, self._workload.samples // 100))))
        self._in_order &= bool((ids == np.arange(self._next, self._next + len(ids))).all())
        self._next += len(ids)

    @property
    def samples(self) -> int:
        """Samples seen so far."""
        return self._next

    def result(self) -> dict[str, Any]:
        """What was found."""
        return {
            "wrong": self.wrong,
            "missing": int((self._seen == 0).sum()),
            "repeated": int((self._seen > 1).sum()),
            "in_order": self._in_order,
            "mix": round(float(np.mean(self._mixes)), 1) if self._mixes else 0.0,
            "batches": len(self._mixes),
        }


def _bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of bytes."""
    rows: np.ndarray[Any, Any] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    return rows
