"""Running the user's `transform` ahead of the training, in threads, without giving up the order or the cursor.

A few batches are taken from the loader ahead and transformed side by side; they are yielded in order. The generator
that a transform gets is keyed by (seed, epoch, place), the place being that of the rank's first sample: the same batch
gets the same random numbers at every run, on whatever thread, and after every restart, and no two ranks get those of
one another. An error of a transform is raised at its batch's turn and ends the iteration;
one of the loader is raised at its turn too, and asking again asks the loader again. A batch is waited for only when no
earlier one is on its way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from forebay._forebay import BatchIterator
from forebay.errors import ClosedError
from forebay.errors import TimeoutError as LateError

REFILL_S = 0.005
"""While a transform is waited for: how often to look for further batches that it can be joined by."""

Function = Callable[[dict[str, Any], Any], Any]


def generator(seed: int, epoch: int, place: int) -> Any:
    """The random generator of the batch at `place`: a `numpy.random.Generator`, or `random.Random` without NumPy."""
    try:
        import numpy as np
    except ImportError:
        import random

        return random.Random(f"forebay/{seed}/{epoch}/{place}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, place])))


def _run(transform: Function, batch: dict[str, Any], seed: int, epoch: int, place: int) -> Any:
    # No method: a running transform must not keep its iterator alive after a `break`.
    return transform(batch, generator(seed, epoch, place))


class TransformIterator:
    """Yields the transformed batches of one iteration."""

    def __init__(
        self, batches: BatchIterator, transform: Function, threads: int, seed: int, first: int, timeout: float | None
    ) -> None:
        self._batches = batches
        self._transform = transform
        self._seed = seed
        self._first = first  # of a step's places, this rank's
        self._timeout = timeout
        self._ahead = threads + 1
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="forebay-transform")
        self._next = threading.Lock()
        self._pending: deque[Future[Any]] = deque()
        self._exhausted = False
        self._begun = False
        self._end: BaseException | None = None
        self.yielded = 0
        """Batches that the trainer got."""
        self.over = False
        """Whether nothing more comes."""

    @property
    def started(self) -> bool:
        """Whether anybody has drawn from it."""
        return self._begun

    @property
    def drained(self) -> bool:
        """Whether the epoch's last batch was yielded."""
        return self._exhausted and not self._pending

    @property
    def _wants_more(self) -> bool:
        return not self._exhausted and len(self._pending) < self._ahead

    def __iter__(self) -> TransformIterator:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise ClosedError.of(
                f"the iterator was made by another process: made_by={self._pid} here={os.getpid()}",
                "make a loader in the child process",
            )
        with self._next:
            if self.over:
                raise self._last_word()
            self._begun = True
            self._fill()
            if not self._pending:
                self._finish(StopIteration())
                raise StopIteration
            error = self._wait(self._pending[0])
            if error is not None:
                self._finish(error)
                if isinstance(error, StopIteration):
                    # As it is, it would pass for the epoch's end.
                    raise RuntimeError("transform raised StopIteration") from error
                raise error
            value = self._pending.popleft().result()
            self.yielded += 1
            if self.drained:
                self._finish(StopIteration())  # Over with its last batch, not with the `next` after it.
            return value

    def _wait(self, future: Future[Any]) -> BaseException | None:
        """The error of a transform once it is done. Batches that get ready meanwhile join it on the other threads."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while self._wants_more and not future.done() and (deadline is None or time.monotonic() < deadline):
            wait((future,), REFILL_S)
            self._fill()
        try:
            error = future.exception(None if deadline is None else max(deadline - time.monotonic(), 0))
        except CancelledError:
            raise self._last_word() from None
        except FutureTimeoutError:
            raise LateError.of(
                f"no batch in time, its transform is running: timeout={self._timeout}",
                "look at the transform, or raise timeout",
            ) from None
        if self.over:  # Closed by another thread meanwhile.
            raise self._last_word()
        return error

    def _fill(self) -> None:
        # Also asks whether this iteration still is the loader's.
        ready = self._batches.ready()
        if self._batches.handed_out != self.yielded + len(self._pending):
            self._finish(ClosedError("a batch taken ahead was lost to an interrupt"))
            raise self._last_word()
        while self._wants_more:
            if self._pending and not ready:
                return
            try:
                taken = self._batches.next_with_place()
            except Exception:
                if self._pending:
                    return  # It comes again when it is its turn.
                raise
            if taken is None:
                self._exhausted = True
                return
            batch, epoch, place = taken
            place += self._first
            self._pending.append(self._pool.submit(_run, self._transform, batch, self._seed, epoch, place))
            ready = self._batches.ready()

    def _last_word(self) -> BaseException:
        if isinstance(self._end, StopIteration):
            return StopIteration()
        error = ClosedError.of("this iteration is over", "call iter() on the loader again")
        error.__cause__ = self._end
        return error

    def _finish(self, end: BaseException | None) -> None:
        if self.over:
            return
        self.over, self._end = True, end
        for future in tuple(self._pending):
            future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._batches.close(self.yielded)

    def close(self) -> None:
        """Ends the iteration: batches taken ahead are let go, and the loader's cursor is where the trainer is."""
        if os.getpid() == self._pid:
            self._finish(None)

    def __del__(self) -> None:
        self.close()
