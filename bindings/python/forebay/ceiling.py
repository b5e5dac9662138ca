"""How fast training would be with free data: a few real batches of a loader, replayed for ever."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

from forebay import _arguments
from forebay.errors import InvalidError
from forebay.loader import DataLoader

Kept = TypeVar("Kept")


def ceiling(loader: Iterable[Kept], batches: int = 8) -> Iterator[Kept]:
    """Takes the first `batches` batches of `loader` and yields them again and again, without end and without a copy.

    Train from it instead of from the loader and compare the time of a step: the difference is what data cost. If there
    is none, training is bound by the trainer, and no loader makes it faster.

        for step, batch in zip(range(200), forebay.ceiling(loader)):
            train(batch)

    Shapes and values are those of real batches; a loader with fewer gives all it has. A `DataLoader` goes on afterwards
    where it was: its cursor does not count these. The kept batches hold their memory until the iterator is gone. A
    trainer that changes its batches in place gets them changed when they come again. `loader` may be any iterable of
    batches, such as a torch `DataLoader`; one without a state has given its first batches away then.

    Raises:
        forebay.InvalidError: `batches` is not at least 1, or the loader yields none.
    """
    most = _arguments.number("batches", batches)
    state = loader.state_dict() if isinstance(loader, DataLoader) else None
    kept = list(itertools.islice(iter(loader), most))
    if state is not None and isinstance(loader, DataLoader):
        loader.load_state_dict(state)
    if not kept:
        raise InvalidError("the loader has no batches to replay")
    return itertools.cycle(kept)
