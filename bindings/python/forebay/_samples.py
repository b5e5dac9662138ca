"""Looking at samples one by one: `forebay.open`.

Every sample is read by itself and compared with its checksums; training goes through `DataLoader`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from forebay._forebay import Dataset
from forebay._job import folder_of
from forebay.errors import InvalidError

Batch = dict[str, Any]
"""Tensors by column name."""


def open(  # noqa: A001 (forebay.open is what it is called)
    dataset: str,
    *,
    root: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | None = None,
    output: str = "auto",
) -> Samples:
    """The samples of a topic or of a dataset version by index, for looking at them: `forebay.open("clean@v1")[3]`."""
    return Samples(dataset_of(dataset, root), columns, output)


class Samples(Sequence[Batch]):
    """The samples of a dataset version, or those that a topic held when this was made, by index in their own order."""

    def __init__(self, dataset: Dataset, columns: Sequence[str] | None, output: str) -> None:
        self._dataset = dataset
        self._columns = None if columns is None else list(columns)
        self._output = output

    @property
    def schema(self) -> str:
        """The columns as text."""
        return self._dataset.schema

    @property
    def version(self) -> str | None:
        """The dataset version, as "clean@v1"; None for a bare topic."""
        return self._dataset.version

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        """One sample, or those of a slice."""
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index.__index__()
        if not -len(self) <= at < len(self):
            raise IndexError(f"no such sample: index={at} samples={len(self)}")
        return self._dataset.sample(at % len(self), self._columns, self._output)


def dataset_of(name: str, root: str | os.PathLike[str] | None) -> Dataset:
    """The records of a topic as they are now, or of a dataset version."""
    if not isinstance(name, str):
        raise InvalidError(f"dataset is the name of a topic or of a version of a dataset: dataset={name!r}")
    return Dataset(folder_of(root), name)
