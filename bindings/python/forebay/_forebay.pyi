"""The compiled half of the package."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from typing_extensions import CapsuleType

__all__ = [
    "LIMITS",
    "BatchIterator",
    "Dataset",
    "Job",
    "Loader",
    "Tensor",
    "__version__",
    "_testing_give",
    "_testing_kinds",
    "_testing_live",
    "_testing_raise",
    "_testing_tensor",
    "job_latest",
    "run_cli",
]

__version__: Final[str]

LIMITS: Final[dict[str, int]]

@final
class Tensor:
    """A tensor in host memory, handed on by DLPack without a copy."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Dataset:
    """The records that a job trains on: those of a dataset version, or all that a topic holds when this is made."""

    def __new__(cls, root: str | os.PathLike[str], name: str) -> Dataset: ...
    def __len__(self) -> int: ...
    @property
    def schema(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def version(self) -> str | None: ...
    def sample(self, index: int, columns: Sequence[str] | None = None, output: str | None = None) -> dict[str, Any]: ...

@final
class Loader:
    """The loader of one rank; see `forebay.DataLoader`."""

    def __new__(
        cls,
        dataset: Dataset,
        *,
        global_batch: int,
        rank: int,
        world: int,
        local_world: int | None,
        columns: Sequence[str] | None,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        tail: str | None,
        checksum: str,
        on_bad_record: str,
        bad_records_max: int,
        lanes: int | None,
        chunk: int | None,
        pool: int | None,
        reader: str,
        direct: str,
        reader_threads: int | None,
        depth: int,
        read_ahead_steps: int | None,
        memory_limit_bytes: int | None,
        overflow_bytes: int,
        timeout_s: float | None,
        output: str | None,
    ) -> Loader: ...
    def begin(self, replace: bool = False) -> BatchIterator: ...
    def steps(self) -> int: ...
    def samples(self) -> int: ...
    def cursor(self) -> tuple[int, int]: ...
    def ended(self) -> bool: ...
    def handed_out(self) -> int: ...
    def untouched(self) -> bool: ...
    def state(self, consumed: int | None = None) -> str: ...
    def load(self, state: str) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def plan(self) -> dict[str, Any]: ...
    def take_notices(self) -> list[str]: ...
    def bad_records(self) -> list[tuple[int, str]]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

@final
class BatchIterator:
    """Yields the batches of one iteration as dicts of tensors."""

    def __iter__(self) -> Iterator[dict[str, Any]]: ...
    def __next__(self) -> dict[str, Any]: ...
    def next_with_place(self) -> tuple[dict[str, Any], int, int] | None: ...
    def ready(self) -> bool: ...
    @property
    def handed_out(self) -> int: ...
    def close(self, consumed: int | None = None) -> None: ...

@final
class Job:
    """One process's part in a job; see `forebay.DataLoader`."""

    def __new__(
        cls,
        root: str | os.PathLike[str],
        job: str,
        *,
        attempt: str | None,
        resume: str,
        revision: str | None,
        keep_last: int | None,
        keep_every: int | None,
    ) -> Job: ...
    def lead(self, loader: Loader, explicit: bool) -> None: ...
    def follow(self, loader: Loader, explicit: bool, rank: int, timeout_s: float) -> None: ...
    def commit(
        self,
        step: int,
        path: str | None,
        tag: str | None,
        state: str,
        keep_last: int | None,
        keep_every: int | None,
    ) -> int: ...
    def check(self) -> None: ...
    @property
    def generation(self) -> int: ...
    @property
    def started_at(self) -> tuple[int, str | None, str] | None: ...
    @property
    def start_state(self) -> str | None: ...
    def take_notices(self) -> list[str]: ...

def job_latest(
    root: str | os.PathLike[str], job: str
) -> tuple[tuple[int, str | None, str] | None, list[tuple[int, str]]]: ...
def run_cli(argv: Sequence[str]) -> int: ...
def _testing_tensor(data: bytes, dtype: str, shape: Sequence[int]) -> Tensor: ...
def _testing_live() -> int: ...
def _testing_give(tensor: Tensor, framework: str | None = None) -> Any: ...
def _testing_kinds() -> list[str]: ...
def _testing_raise(kind: str, message: str, hint: str | None = None) -> None: ...
