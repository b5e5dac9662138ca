"""Other loaders on the same samples, each in the ways that its own documentation names, and in the best that was found.

- Peers `over` "rows" read the raw file through a memory map, as users without a format of their own do.
- The others read a format of their own, uncompressed, made from the raw file by `write_*`.

They run in environments of their own (`ENVIRONMENTS`; benches/run makes these), so that none of their requirements is
one of Forebay's. `resumes` and `elastic` say what came of stopping in the middle of an epoch and going on from the
loader's own state: exactly the rest of the samples, none lost, none twice, with as many workers and ranks or with
others. They were found by trying with the versions in peers.txt and peers-mosaic.txt and are not tried again here.
"""

from __future__ import annotations

import os
import shutil
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from contestants import SEED, Batch, Loop, Opened, Order, Part
from workloads import Data, Field, Workload, raw_data

ENVIRONMENTS = {"peers": ".venv-peers", "peers-mosaic": ".venv-peers-mosaic"}
"""Names and folders in the repository; requirements are in NAME.txt."""
SHARD_BYTES = 64 << 20
"""Of the formats that have shards of a size."""
SHARDS = 20
"""Of those that have a number of shards."""
BUFFER_BYTES = 20 << 20
"""Of a shuffle through a buffer, at least a thousand samples."""

os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")


@dataclass(frozen=True)
class Peer(Loop):
    """Another loader."""

    package: str = ""
    """What is installed."""
    module: str = ""
    """What is imported before any clock runs."""
    environment: str = "peers"
    over: str = "rows"
    """The format that it reads."""
    workers: tuple[int, ...] = (0,)
    """Numbers of workers that are tried; the fastest is measured."""
    resumes: str = "no"
    """Whether it goes on exactly from a state."""
    elastic: str = "no"
    """Whether it does so on another number of ranks."""
    tidies_up: bool = False
    """Whether it leaves named memory behind unless its process ends in good order."""

    def suits(self, workload: Workload) -> bool:
        """Whether it is measured on that workload: formats of their own are made for samples of one field."""
        return workload.only is not None or (self.over == "rows" and "batches" in self.name)


ABSENT = {
    "ray_data": "needs 3 to 4.5 GB of memory and 5 to 9 s to its first batch: not a loader of one process",
    "dali": "its packages need CUDA",
}
"""Loaders that are left out, with the reason."""


class _Opened:
    """An iterable, or a maker of one for each epoch."""

    def __init__(self, make: Callable[[int], Iterable[Batch]]) -> None:
        self._make = make

    def epoch(self, number: int) -> Iterator[Batch]:
        return iter(self._make(number))

    def stats(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """There is nothing to end: workers end with their iterators."""


def _only(workload: Workload) -> Field:
    if workload.only is None:
        raise ValueError(f"samples of several fields: workload={workload.name}")
    return workload.only


def _workers(part: Part) -> dict[str, Any]:
    return {"num_workers": part.workers, **({"prefetch_factor": 2} if part.workers else {})}


def _generator(epoch: int = 0) -> Any:
    import torch

    return torch.Generator().manual_seed(SEED + epoch)


def _sampler(length: int, order: Order, epoch: int) -> Any:
    from torch.utils.data import RandomSampler, SequentialSampler

    # A sampler asks for the length only.
    samples = range(length)
    return RandomSampler(samples, generator=_generator(epoch)) if order == "shuffled" else SequentialSampler(samples)


# Over the raw file


class _Rows:
    """Samples by index, or by a list of indices, through a memory map."""

    def __init__(self, workload: Workload, raw: Path) -> None:
        self.workload, self.raw = workload, raw
        self.rows = raw_data(workload, raw)

    def __len__(self) -> int:
        return self.workload.samples

    def __getitem__(self, index: int) -> Batch:
        import torch

        return {_only(self.workload).name: torch.from_numpy(np.array(self.rows[index])), "id": index}


class _Batches(_Rows):
    """A whole batch for each index."""

    def __getitem__(self, index: Any) -> Batch:
        import torch

        rows = self.rows[index]
        ids = torch.as_tensor(index)
        if field := self.workload.only:
            return {field.name: torch.from_numpy(rows), "id": ids}
        columns = {f.name: torch.from_numpy(np.ascontiguousarray(rows[f.name])) for f in self.workload.fields}
        return {**columns, "id": ids}


def torch_samples(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """The documented way: a sample for each `__getitem__`, default collate."""
    from torch.utils.data import DataLoader

    rows: Any = _Rows(workload, data.raw)
    shuffle = order == "shuffled"
    loader = DataLoader(
        rows, batch_size=workload.batch, shuffle=shuffle, generator=_generator(), drop_last=False, **_workers(part)
    )
    return _Opened(lambda epoch: loader)


def torch_batches(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """A list of indices for each `__getitem__`: one gather a batch, no collate."""
    from torch.utils.data import BatchSampler, DataLoader

    rows: Any = _Batches(workload, data.raw)

    def make(epoch: int) -> Iterable[Batch]:
        sampler = BatchSampler(_sampler(workload.samples, order, epoch), workload.batch, drop_last=False)
        loader: Iterable[Batch] = DataLoader(rows, sampler=sampler, batch_size=None, **_workers(part))
        return loader

    return _Opened(make)


def stateful(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """As `torch_samples`, with a state."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows: Any = _Rows(workload, data.raw)
    loader: Iterable[Batch] = StatefulDataLoader(
        rows, batch_size=workload.batch, shuffle=order == "shuffled", generator=_generator(), **_workers(part)
    )
    return _Opened(lambda epoch: loader)


def nodes(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """torchdata.nodes with the gather of `torch_batches` in threads."""
    import torchdata.nodes as tn

    rows = _Batches(workload, data.raw)

    def make(epoch: int) -> Iterable[Batch]:
        node: Any = tn.SamplerWrapper(_sampler(workload.samples, order, epoch))
        node = tn.Batcher(node, batch_size=workload.batch, drop_last=False)
        node = tn.ParallelMapper(
            node, map_fn=rows.__getitem__, num_workers=part.workers, in_order=True, method="thread"
        )
        loader: Iterable[Batch] = tn.Loader(tn.Prefetcher(node, prefetch_factor=2))
        return loader

    return _Opened(make)


def spdl(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """A pipeline of threads, a batch for each task."""
    from spdl.pipeline import PipelineBuilder

    rows = _Batches(workload, data.raw)

    def batches(epoch: int) -> Iterator[list[int]]:
        current: list[int] = []
        for index in _sampler(workload.samples, order, epoch):
            current.append(index)
            if len(current) == workload.batch:
                yield current
                current = []
        if current:
            yield current

    def make(epoch: int) -> Iterator[Batch]:
        builder = PipelineBuilder().add_source(batches(epoch))
        builder = builder.pipe(rows.__getitem__, concurrency=part.workers, output_order="input").add_sink(4)
        pipeline = builder.build(num_threads=part.workers)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    return _Opened(make)


# litdata


class _Litdata:
    """Gives a stripe of samples to its writer."""

    def __init__(self, workload: Workload, raw: Path) -> None:
        self.workload, self.raw = workload, raw

    def __call__(self, start: int) -> Iterator[dict[str, Any]]:
        rows, name = raw_data(self.workload, self.raw), _only(self.workload).name
        for index in range(start, min(start + 1000, self.workload.samples)):
            yield {name: np.array(rows[index]), "id": index}


def write_litdata(workload: Workload, data: Data, into: Path) -> None:
    """Chunks of `SHARD_BYTES`."""
    from litdata import optimize

    starts = list(range(0, workload.samples, 1000))
    fn = _Litdata(workload, data.raw)
    optimize(fn=fn, inputs=starts, output_dir=str(into), chunk_bytes=SHARD_BYTES, num_workers=1, reorder_files=False)


def litdata(workload: Workload, data: Data, part: Part, order: Order, **options: Any) -> Opened:
    """Its streaming data set, read from the local disk."""
    from litdata import StreamingDataLoader, StreamingDataset

    folder = str(data.peers / "litdata")
    samples = StreamingDataset(folder, shuffle=order == "shuffled", drop_last=False, seed=SEED, **options)
    loader: Iterable[Batch] = StreamingDataLoader(samples, batch_size=workload.batch, **_workers(part))
    return _Opened(lambda epoch: loader)


def litdata_decode1(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """The same without decoding samples around the one wanted, which costs more than it brings for large ones."""
    return litdata(workload, data, part, order, batch_decode=1)


# MosaicML streaming


def write_mosaic(workload: Workload, data: Data, into: Path) -> None:
    """Shards of `SHARD_BYTES`."""
    from streaming import MDSWriter

    field, rows = _only(workload), raw_data(workload, data.raw)
    columns = {field.name: f"ndarray:{field.dtype}:" + ",".join(map(str, field.shape)), "id": "int64"}
    with MDSWriter(out=str(into), columns=columns, compression=None, size_limit=SHARD_BYTES) as out:
        for index in range(workload.samples):
            out.write({field.name: np.asarray(rows[index]), "id": np.int64(index)})


def mosaic(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """Its streaming data set, read from the local disk."""
    from streaming import StreamingDataLoader, StreamingDataset

    folder = str(data.peers / "mosaic")
    samples = StreamingDataset(
        local=folder, remote=None, shuffle=order == "shuffled", shuffle_seed=SEED, batch_size=workload.batch
    )
    loader: Iterable[Batch] = StreamingDataLoader(samples, batch_size=workload.batch, **_workers(part))
    return _Opened(lambda epoch: loader)


# WebDataset


def write_webdataset(workload: Workload, data: Data, into: Path) -> None:
    """`SHARDS` archives."""
    import webdataset

    into.mkdir(parents=True)
    rows, most = raw_data(workload, data.raw), -(-workload.samples // SHARDS)
    with webdataset.ShardWriter(f"{into}/%06d.tar", maxcount=most, maxsize=int(1e12), verbose=0) as out:
        for index in range(workload.samples):
            out.write({"__key__": f"{index:09d}", "bin": rows[index].tobytes(), "id": struct.pack("<q", index)})


class _Untar:
    """An archive's member as a sample."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def __call__(self, sample: dict[str, bytes]) -> tuple[Any, int]:
        values = np.frombuffer(sample["bin"], self.field.dtype).reshape(self.field.shape)
        return values, int.from_bytes(sample["id"], "little")


def webdataset(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """Shards in random order, and a buffer of samples."""
    import webdataset as wds

    field, urls = _only(workload), [str(file) for file in data.of_format("webdataset") if file.suffix == ".tar"]
    shuffled = order == "shuffled"
    samples = wds.WebDataset(urls, shardshuffle=100 if shuffled else False, seed=SEED)
    if shuffled:
        samples = samples.shuffle(_buffer(workload))
    samples = samples.map(_Untar(field)).batched(workload.batch, partial=True)
    loader = wds.WebLoader(samples, batch_size=None, **_workers(part))
    return _Opened(lambda epoch: ({field.name: x, "id": ids} for x, ids in loader))


def _buffer(workload: Workload) -> int:
    return max(1000, BUFFER_BYTES // workload.row_bytes)


# Hugging Face datasets


def write_hugging_face(workload: Workload, data: Data, into: Path) -> None:
    """Arrow files of 256 MB."""
    import datasets as hf
    import pyarrow as pa

    field, rows = _only(workload), raw_data(workload, data.raw)
    values = int(np.prod(field.shape))
    features = hf.Features(
        {field.name: hf.Sequence(hf.Value(field.dtype), length=values), "id": hf.Value("int64")},
    )

    def tables() -> Iterator[pa.Table]:
        for start in range(0, workload.samples, 1000):
            stripe = np.array(rows[start : start + 1000]).reshape(-1)
            x = pa.FixedSizeListArray.from_arrays(pa.array(stripe), values)
            yield pa.table({field.name: x, "id": np.arange(start, start + len(x))})

    whole = hf.Dataset(pa.concat_tables(tables()), info=hf.DatasetInfo(features=features))
    whole.save_to_disk(str(into), max_shard_size="256MB")


def hugging_face(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """The documented way: `with_format("torch")` in torch's loader."""
    import datasets as hf
    from torch.utils.data import DataLoader

    field = _only(workload)
    samples: Any = hf.load_from_disk(str(data.peers / "hugging_face")).with_format("torch")
    shuffle = order == "shuffled"
    loader = DataLoader(samples, batch_size=workload.batch, shuffle=shuffle, generator=_generator(), **_workers(part))
    shape = (-1, *field.shape)
    return _Opened(lambda epoch: ({**batch, field.name: batch[field.name].reshape(shape)} for batch in loader))


class _Arrow:
    """A whole batch for each index, out of Arrow's own buffers."""

    def __init__(self, samples: Any, field: Field) -> None:
        self.samples, self.field = samples, field

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: list[int]) -> Batch:
        import torch

        in_order = index == list(range(index[0], index[0] + len(index)))
        table = self.samples[slice(index[0], index[-1] + 1) if in_order else index]
        x = table[self.field.name].combine_chunks()
        values = np.array(x.flatten().to_numpy()).reshape(len(index), *self.field.shape)
        return {self.field.name: torch.from_numpy(values), "id": torch.from_numpy(table["id"].to_numpy().copy())}


def hugging_face_batches(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """`with_format("arrow")`, a batch at a time, by hand."""
    import datasets as hf
    from torch.utils.data import BatchSampler, DataLoader

    samples = hf.load_from_disk(str(data.peers / "hugging_face")).with_format("arrow")
    rows: Any = _Arrow(samples, _only(workload))

    def make(epoch: int) -> Iterable[Batch]:
        sampler = BatchSampler(_sampler(len(rows), order, epoch), workload.batch, drop_last=False)
        loader: Iterable[Batch] = DataLoader(rows, sampler=sampler, batch_size=None, **_workers(part))
        return loader

    return _Opened(make)


# Grain


def write_grain(workload: Workload, data: Data, into: Path) -> None:
    """`SHARDS` ArrayRecord files, a record for each sample."""
    from array_record.python.array_record_module import ArrayRecordWriter

    into.mkdir(parents=True)
    rows, samples = raw_data(workload, data.raw), workload.samples
    for shard in range(SHARDS):
        out = ArrayRecordWriter(f"{into}/{shard:05d}-of-{SHARDS:05d}.array_record", "group_size:1,uncompressed")
        for index in range(shard * samples // SHARDS, (shard + 1) * samples // SHARDS):
            out.write(struct.pack("<q", index) + rows[index].tobytes())
        out.close()


class _Record:
    """A record as a sample."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def __call__(self, record: bytes) -> Batch:
        values = np.frombuffer(record, self.field.dtype, offset=8).reshape(self.field.shape)
        return {self.field.name: values, "id": np.frombuffer(record, "<i8", count=1)[0]}


def grain(workload: Workload, data: Data, part: Part, order: Order) -> Opened:
    """Two threads that read eight batches ahead: here faster than its defaults (16 and 500)."""
    import grain as gr
    import torch

    field, files = _only(workload), [str(file) for file in data.of_format("grain")]

    def make(epoch: int) -> Iterator[Batch]:
        samples = gr.MapDataset.source(gr.sources.ArrayRecordDataSource(files))
        if order == "shuffled":
            samples = samples.shuffle(seed=SEED + epoch)
        samples = samples.map(_Record(field)).batch(workload.batch)
        batches = samples.to_iter_dataset(gr.ReadOptions(num_threads=2, prefetch_buffer_size=8))
        if part.workers:
            batches = batches.mp_prefetch(gr.MultiprocessingOptions(num_workers=part.workers))
        for batch in batches:
            yield {name: torch.from_numpy(values) for name, values in batch.items()}

    return _Opened(make)


WRITERS: dict[str, Callable[[Workload, Data, Path], None]] = {
    "litdata": write_litdata,
    "mosaic": write_mosaic,
    "webdataset": write_webdataset,
    "hugging_face": write_hugging_face,
    "grain": write_grain,
}
"""What makes a format, by its name."""


def write(workload: Workload, data: Data, name: str) -> None:
    """Makes a format anew."""
    into = data.peers / name
    shutil.rmtree(into, ignore_errors=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[name](workload, data, into)


def quiet() -> None:
    """Peers warn about many things that are meant here."""
    warnings.simplefilter("ignore")


_Open = Callable[[Workload, Data, Part, Order], Opened]


def _both(name: str, about: str, open_: _Open, **facts: Any) -> list[Peer]:
    orders: tuple[Literal["sequential"], Literal["shuffled"]] = ("sequential", "shuffled")

    def make(order: Order) -> Callable[[Workload, Data, Part], Opened]:
        return lambda workload, data, part: open_(workload, data, part, order)

    return [Peer(f"{name}_{order}", about, order, make(order), "peer", "", **facts) for order in orders]


_TORCH: dict[str, Any] = {"package": "torch", "module": "torch.utils.data", "workers": (0, 2)}
_LITDATA: dict[str, Any] = {"package": "litdata", "module": "litdata", "over": "litdata", "workers": (0, 2)}
_HUGGING_FACE: dict[str, Any] = {"package": "datasets", "module": "datasets", "over": "hugging_face", "workers": (0, 2)}

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peers in (
        _both("torch", "torch DataLoader over a memory map, a sample at a time", torch_samples, **_TORCH),
        _both("torch_batches", "the same, a gather for each batch", torch_batches, **_TORCH),
        _both(
            "stateful",
            "torchdata StatefulDataLoader, a sample at a time",
            stateful,
            package="torchdata",
            module="torchdata.stateful_dataloader",
            workers=(0, 2),
            resumes="yes, with as many workers",
        ),
        _both(
            "nodes_batches",
            "torchdata.nodes over a memory map, a gather for each batch",
            nodes,
            package="torchdata",
            module="torchdata.nodes",
            workers=(0, 1, 2),
            resumes="yes",
        ),
        _both(
            "spdl_batches",
            "SPDL pipeline over a memory map, a gather for each batch",
            spdl,
            package="spdl",
            module="spdl.pipeline",
            workers=(1, 2),
        ),
        _both("litdata", "LitData", litdata, resumes="yes", elastic="yes", **_LITDATA),
        _both("litdata_decode1", "the same, batch_decode=1", litdata_decode1, resumes="yes", elastic="yes", **_LITDATA),
        _both(
            "mosaic",
            "MosaicML streaming",
            mosaic,
            package="mosaicml-streaming",
            module="streaming",
            environment="peers-mosaic",
            over="mosaic",
            tidies_up=True,
            workers=(0, 2),
            resumes="yes",
            elastic="yes",
        ),
        _both(
            "webdataset",
            "WebDataset, shuffled through a buffer",
            webdataset,
            package="webdataset",
            module="webdataset",
            over="webdataset",
            workers=(0, 2),
        ),
        _both("hugging_face", "Hugging Face datasets, with_format('torch')", hugging_face, **_HUGGING_FACE),
        _both("hugging_face_batches", "the same, Arrow buffers batch by batch", hugging_face_batches, **_HUGGING_FACE),
        _both(
            "grain",
            "Grain over ArrayRecord",
            grain,
            package="grain",
            module="grain",
            over="grain",
            workers=(0, 2),
            resumes="yes, with as many workers",
            elastic="loses the last short batch",
        ),
    )
    for peer in peers
}
"""By name."""
