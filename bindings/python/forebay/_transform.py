"""Running the user's `transform` ahead of the training, in threads, without giving up the order or the cursor.

A few batches are taken from the loader ahead and transformed side by side; they are yielded in order. The generator
that a transform gets is keyed by (seed, epoch, place), so the same batch gets the same random numbers at every run, on
whatever thread, and after every restart. An error of a transform is raised at its batch's turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from forebay._forebay import BatchIterator
from forebay.errors import ClosedError


def generator(seed: int, epoch: int, place: int) -> Any:
    """The random generator of the batch at `place`: a `numpy.random.Generator`, or `random.Random` without NumPy."""
    try:
        import numpy as np
    except ImportError:
        import random

        return random.Random(f"forebay/{seed}/{epoch}/{place}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, place])))


class TransformIterator:
    """Yields the transformed batches of one iteration."""

    def __init__(
        self, batches: BatchIterator, transform: Callable[[dict[str, Any], Any], Any], threads: int, seed: int
    ) -> None:
        self._batches = batches
        self._transform = transform
        self._seed = seed
        self._ahead = threads + 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="forebay-transform")
        self._pending: deque[Future[Any]] = deque()
        self._exhausted = False
        self._failed: BaseException | None = None
        self.yielded = 0
        """Batches that the trainer got."""
        self.over = False
        """Whether nothing more comes."""

    def __iter__(self) -> TransformIterator:
        return self

    def __next__(self) -> Any:
        if self.over:
            if self._failed is not None:
                raise ClosedError("this iteration ended with an error, call iter() on the loader") from self._failed
            raise StopIteration
        try:
            self._fill()
            if not self._pending:
                self.close()
                raise StopIteration
            value = self._pending[0].result()
        except StopIteration:
            raise
        except BaseException as error:
            self._failed = error
            self.close()
            raise
        self._pending.popleft()
        self.yielded += 1
        return value

    def _fill(self) -> None:
        while not self._exhausted and len(self._pending) < self._ahead:
            taken = self._batches.next_with_place()
            if taken is None:
                self._exhausted = True
                return
            batch, epoch, place = taken
            self._pending.append(self._pool.submit(self._run, batch, epoch, place))

    def _run(self, batch: dict[str, Any], epoch: int, place: int) -> Any:
        return self._transform(batch, generator(self._seed, epoch, place))

    def close(self) -> None:
        """Ends the iteration: batches taken ahead are let go, and the loader's cursor is where the trainer is."""
        if self.over:
            return
        self.over = True
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._batches.close(self.yielded)

    def __del__(self) -> None:
        self.close()
