"""`DataLoader`: batches of a topic or of a dataset version, in an exact order, for one rank.

Arguments and ranks are settled here; what happens at every step is in the compiled half (`_forebay.Loader`), whose
iterator is handed out as it is unless there is a `transform`. torch and NumPy are imported with the first batch.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from forebay import _arguments, _ranks, _state, _wrappers
from forebay._epochs import Epochs, Held, check_count_of_accelerate
from forebay._forebay import Dataset, Loader
from forebay._job import Checkpoint, Job, local_path
from forebay._samples import Batch, dataset_of
from forebay._state import State
from forebay._transform import TransformIterator
from forebay.errors import ClosedError, InvalidError

Transform = Callable[[Batch, Any], Any]
"""Gets a batch and a random generator that is the same at every run for this batch."""

_logger = logging.getLogger("forebay")
_open: weakref.WeakSet[DataLoader] = weakref.WeakSet()

LATER = {
    "endpoint": "the daemon is not in this version; use root= to read in this process",
    "subscription": "live topics are not in this version",
    "topics": "live topics are not in this version; name one topic as dataset",
    "order": "consumers without an order are not in this version",
}
"""Arguments of the design that this version does not have, with the reason."""


class DataLoader:
    """Yields the batches of one rank as dicts of tensors, in an order that a restart continues exactly.

    The records are those of a dataset version, fixed for ever, or those that the topic holds when the loader is made;
    then a state brings its own. Iterating again after a `break` starts the epoch again; after its end, the next epoch;
    after `load_state_dict`, or with the checkpoints of a `job`, goes on there.

    Args:
        dataset: A version of a dataset, as "clean@v1", "clean@latest" or "clean@prod" (what these mean when the loader
            is made), or the name of a topic.
        root: Folder of the topics. FOREBAY_ROOT, else ./forebay-data.
        batch_size: Samples of one batch of this rank.
        global_batch_size: Samples of one step over all ranks; instead of `batch_size`.
        rank: This process among `world_size`. Else from `mesh`, else from RANK and WORLD_SIZE when iteration begins.
        world_size: Number of processes that share each step; may change at any restart.
        mesh: A torch `DeviceMesh`; its data-parallel dimensions count.
        columns: Names of the columns to deliver; all by default.
        shuffle: Whether each epoch has an order of its own, a function of `seed` and the epoch.
        seed: Of the shuffle and of transforms.
        drop_last: Leave out the last step of an epoch if it is short.
        tail: What ranks get of a short step. "pad", the default with several ranks: equal shapes, and repeated rows are
            False in `batch["mask"]`; "short": what there is.
        transform: `f(batch, rng)`, run in threads ahead of the training; `rng` is a `numpy.random.Generator` keyed by
            (seed, epoch, place). What it returns is yielded instead of the batch.
        transform_threads: Threads, and batches ahead, for `transform`.
        job: Name of the training, whose checkpoints are then kept in the root: see `commit` and `forebay.latest`.
            Its run begins when the cursor is first needed. Only one run of a job goes on: a later one ends it, whose
            processes get `FencedError` at their next batch or commit.
        resume: Where the job's run starts, unless `load_state_dict` was called: "latest" (the newest checkpoint, the
            beginning if there is none), "never" (the beginning), a step, or a tag. What comes after that is abandoned:
            it stays in the store but is not the latest any more.
        attempt: Name of this start of all ranks, by which they find one another: the same on every rank, another one at
            every start. torchrun, srun and PMIx say it by themselves; one process alone needs none.
        revision: Of the training code, for `forebay checkpoint show`.
        keep_last: Checkpoints of the job that stay, the newest so many; all by default. Those with a tag always stay.
        keep_every: Besides, those whose step is a multiple of this.
        timeout: Seconds that `next` waits before it raises `TimeoutError`; 0 for no limit. Also how long other ranks
            wait for rank 0 to begin a job's run; 0 for ten minutes.
        output: "torch", "numpy", "dlpack" (plain `Tensor`s for any DLPack consumer), or "auto": the first of torch and
            NumPy that can be imported.
        device: Only "cpu" (or None): batches are host memory, copy them with `.to(device, non_blocking=True)`.
        checksum: "sampled" (of what is read, one block in 64), "always" or "off".
        on_bad_record: What to do with a record whose bytes are damaged: "raise", "mask", "substitute"; the latter two
            need `checksum="always"`. Damaged is what is read of it: other `columns` may have other bad records.
        bad_records_max: Damaged records tolerated.
        lanes, chunk, pool: The shuffle's numbers, see `forebay plan`; fixed by a state.
        reader: "auto", "io_uring" or "preadv".
        direct: Whether cold data is read past the page cache: "auto" (when, see the README), "on" or "off".
        reader_threads: Threads that read; two where each rank here (LOCAL_WORLD_SIZE, else all) has two processors.
        depth: Units in flight for each of these threads, of a read or a few each.
        read_ahead_steps: Steps read ahead beyond those that the shuffle keeps open.
        memory_limit_bytes: Most bytes of batches and of buffers to read cold data into (see README); half of what is
            available by default. With less, chunks are read more than once, in the same order, and a log line says so.
        overflow_bytes: Most bytes of batches kept by the program beyond the slab's.
    """

    def __init__(
        self,
        dataset: str,
        batch_size: int | None = None,
        shuffle: bool = False,
        *,
        global_batch_size: int | None = None,
        root: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: _ranks.Mesh | None = None,
        columns: Sequence[str] | None = None,
        seed: int = 0,
        drop_last: bool = False,
        tail: Literal["pad", "short"] | None = None,
        transform: Transform | None = None,
        transform_threads: int = 2,
        job: str | None = None,
        resume: str | int = "latest",
        attempt: str | None = None,
        revision: str | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        timeout: float = 0,
        output: Literal["auto", "torch", "numpy", "dlpack"] = "auto",
        device: str | None = None,
        checksum: Literal["sampled", "always", "off"] = "sampled",
        on_bad_record: Literal["raise", "mask", "substitute"] = "raise",
        bad_records_max: int = 100,
        lanes: int | None = None,
        chunk: int | None = None,
        pool: int | None = None,
        reader: Literal["auto", "io_uring", "preadv"] = "auto",
        direct: Literal["auto", "on", "off"] = "auto",
        reader_threads: int | None = None,
        depth: int = 8,
        read_ahead_steps: int | None = None,
        memory_limit_bytes: int | None = None,
        overflow_bytes: int = 1 << 30,
        **habits: Any,
    ) -> None:
        for name in habits.keys() & LATER.keys():
            if habits.pop(name) is not None:
                raise InvalidError(f"{LATER[name]}: argument={name}")
        _arguments.check(habits, _arguments.parameters(DataLoader))
        if str(device or "cpu") != "cpu":
            raise InvalidError.of(
                f"batches are delivered in host memory by this version: device={device!s}",
                "device=None and batch[column].to(device, non_blocking=True)",
            )
        if (batch_size is None) == (global_batch_size is None):
            raise InvalidError(
                "give one of batch_size (samples of this rank) and global_batch_size (samples of all ranks): "
                f"batch_size={batch_size} global_batch_size={global_batch_size}"
            )
        if columns is not None and isinstance(columns, str):
            raise InvalidError(f"columns is a list of names: columns={columns!r}")
        if transform is not None and (not callable(transform) or transform_threads < 1):
            raise InvalidError(f"transform is a function, run by at least one thread: threads={transform_threads}")
        if rank is not None or world_size is not None:
            _ranks.given(rank, world_size)
        self._rank, self._world_size, self._mesh = rank, world_size, mesh
        self._batch_size = _arguments.count("batch_size", batch_size)
        self._global_batch_size = _arguments.count("global_batch_size", global_batch_size)
        self._transform, self._transform_threads = transform, transform_threads
        self._settings: dict[str, Any] = {
            "columns": None if columns is None else list(columns),
            "shuffle": bool(shuffle),
            "seed": _arguments.number("seed", seed, least=0, most=2**64 - 1),
            "drop_last": bool(drop_last),
            "tail": tail,
            "checksum": checksum,
            "on_bad_record": on_bad_record,
            "bad_records_max": _arguments.number("bad_records_max", bad_records_max, least=0),
            "lanes": _arguments.count("lanes", lanes),
            "chunk": _arguments.count("chunk", chunk),
            "pool": _arguments.count("pool", pool),
            "reader": reader,
            "direct": direct,
            "reader_threads": _arguments.count("reader_threads", reader_threads),
            "depth": _arguments.number("depth", depth),
            "read_ahead_steps": _arguments.count("read_ahead_steps", read_ahead_steps, least=0),
            "memory_limit_bytes": _arguments.count("memory_limit_bytes", memory_limit_bytes, most=2**63),
            "overflow_bytes": _arguments.number("overflow_bytes", overflow_bytes, least=0, most=2**63),
            "timeout_s": _arguments.seconds("timeout", timeout),
            "output": output,
        }
        self._dataset: Dataset | None = dataset_of(dataset, root)
        self._schema, self._version = self._dataset.schema, self._dataset.version
        self._job: Job | None = None
        if job is not None:
            keep = _arguments.keep(keep_last, keep_every)
            self._job = Job(root, job, _arguments.step_or_text(resume), attempt, revision, keep)
        else:
            _arguments.refuse_without_job(
                resume=None if resume == "latest" else resume,
                attempt=attempt,
                revision=revision,
                keep_last=keep_last,
                keep_every=keep_every,
            )
        self._closed = False
        self._pid = os.getpid()
        self._making = threading.Lock()
        self._loader: Loader | None = None
        self._ranks: _ranks.Ranks | None = None
        self._iterator: weakref.ref[TransformIterator] | None = None
        self._wrapper = _wrappers.Wrapper()
        self._held = Held()
        if rank is not None or mesh is not None:
            self._native()
        else:
            # Which rank this is shows when iteration begins; what is wrong with the rest is to be said now.
            self._make(_ranks.Ranks(0, 1, "nobody yet"))
        _open.add(self)
        _pass_as_iterable_dataset()

    def _make(self, ranks: _ranks.Ranks) -> Loader:
        world = ranks.world_size
        whole = self._global_batch_size or (self._batch_size or 1) * world
        if self._dataset is None:
            raise ClosedError("the loader is closed")
        local = _ranks.local_world_size(os.environ)
        settings = {"local_world": local, **self._settings}
        return Loader(self._dataset, global_batch=whole, rank=ranks.rank, world=world, **settings)

    def _native(self) -> Loader:
        """The compiled loader for the rank that this process is now."""
        if self._closed:
            raise ClosedError("the loader is closed")
        ranks = _ranks.resolve(self._rank, self._world_size, self._mesh)
        if self._pid != os.getpid():
            if self._loader is not None:
                return self._loader  # It says what is wrong.
            # Another thread of the parent may hold it for ever.
            self._pid, self._making = os.getpid(), threading.Lock()
        with self._making:
            if self._loader is not None and self._ranks is not None and self._ranks[:2] == ranks[:2]:
                return self._loader
            loader = self._make(ranks)
            if self._loader is not None:
                loader.load(self._loader.state())
                self._loader.close()
            self._loader, self._ranks = loader, ranks
            return loader

    def _begun(self) -> Loader:
        """The same, once its job's run has begun: the cursor is where that starts."""
        loader = self._native()
        if self._job is not None and self._ranks is not None:
            began = self._job.begin(loader, self._ranks, self._settings["timeout_s"])
            if began and loader.cursor() != (0, 0):
                self._held.text = loader.state()
        return loader

    def _live(self) -> TransformIterator | None:
        """The iterator that transforms, if it is on its way: the compiled loader is ahead of the trainer then."""
        iterator = self._iterator() if self._iterator is not None else None
        return None if iterator is None or iterator.over else iterator

    def __iter__(self) -> Iterator[Any]:
        """Starts an iteration; see the class for where."""
        self._wrapper = _wrappers.around(self.rank, self.world_size, self._held.holds(self._native()))
        self._take_left()
        loader = self._begun()
        if self._job is not None:
            self._job.check()
        replace = _wrappers.keeps_iterators()
        if replace and (iterator := self._live()) is not None and iterator.started:
            iterator.close()
        batches = loader.begin(replace)
        for line in loader.take_notices():
            _logger.info("%s", line)
        if self._transform is None:
            return batches
        settings, world = self._settings, self.world_size
        first = self.rank * (self._batch_size or (self._global_batch_size or 0) // world)
        iterator = TransformIterator(
            batches, self._transform, self._transform_threads, settings["seed"], first, settings["timeout_s"] or None
        )
        self._iterator = weakref.ref(iterator)
        return iterator

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank and wherever the cursor stands.

        Of a job whose run has not begun, of the records there are now.
        """
        return self._native().steps()

    @property
    def version(self) -> str | None:
        """The dataset version trained on, as "clean@v1" whatever it was asked for by; None for a bare topic."""
        return self._version

    @property
    def samples(self) -> int:
        """Samples of a whole epoch, over all ranks."""
        return self._native().samples()

    @property
    def epoch(self) -> int:
        """Epoch of the cursor."""
        return self._begun().cursor()[0]

    @property
    def rank(self) -> int:
        """This process among `world_size`."""
        self._native()
        return self._ranks.rank if self._ranks else 0

    @property
    def world_size(self) -> int:
        """Processes that share each step."""
        self._native()
        return self._ranks.world_size if self._ranks else 1

    def state_dict(self, consumed: int | None = None) -> State:
        """The state after the last batch that was yielded, or after `consumed` batches of this iteration.

        Batches read ahead never count, nor do those that Lightning and Accelerate hold back to know which is the last.
        For other wrappers that fetch ahead, `consumed` is what training has really used.
        """
        consumed = _arguments.count("consumed", consumed, least=0, most=2**63)
        loader = self._begun()
        iterator = self._live()
        # The loader is ahead of the trainer by what is being transformed, and by what a wrapper holds.
        handed_out = loader.handed_out() if iterator is None else iterator.yielded
        if consumed is not None and consumed > handed_out:
            raise InvalidError(
                "consumed counts batches that this iteration has handed out: "
                f"consumed={consumed} handed_out={handed_out}"
            )
        ahead = self._wrapper.ahead() if consumed is None else 0
        _wrappers.warn_of_lost_gradients()
        if consumed is None and (iterator is not None or ahead):
            consumed = max(handed_out - ahead, 0)
        return _state.pack(loader.state(consumed))

    def commit(
        self,
        step: int,
        path: str | os.PathLike[str] | None = None,
        *,
        tag: str | None = None,
        state: Mapping[str, Any] | None = None,
        consumed: int | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
    ) -> Checkpoint:
        """Ties a checkpoint of the model to the data that comes next; durable when it returns. Needs `job=`.

        Call it on any rank, once the model's files are durable: rank 0 writes, elsewhere it returns at once. If it
        raises, earlier checkpoints are untouched, and unless the error is `FencedError` training may go on and commit
        again. The same commit once more is no change.

        Args:
            step: The training's own number, larger than that of the last commit and of the checkpoint resumed from.
            path: The model's file or folder, made absolute, or a URL. `forebay.latest` gives it back.
            tag: A name for this checkpoint, which then is always kept. It moves here if another one had it.
            state: What `state_dict()` gave when the model was taken, if training has gone on since.
            consumed: As of `state_dict`: the state after so many batches of this iteration.
            keep_last: Instead of the loader's.
            keep_every: Instead of the loader's.
        """
        if self._job is None:
            raise InvalidError.of("only a job has checkpoints", "DataLoader(..., job=NAME)")
        number = _arguments.number("step", step, least=0, most=2**64 - 1)
        if not (tag is None or isinstance(tag, str)):
            raise InvalidError(f"tag is a text: tag={tag!r}")
        keep = _arguments.keep(keep_last, keep_every)
        where = None if path is None else local_path(path)
        if state is None:
            taken = self.state_dict(consumed)
        elif consumed is not None:
            raise InvalidError(f"state and consumed both say what was consumed, give one: consumed={consumed}")
        else:
            self._begun()
            if not isinstance(state, Mapping):
                raise InvalidError(f"not a state of a forebay loader: type={type(state).__name__}")
            taken = dict(state)
        self._job.commit(number, where, tag, _state.unpack(taken), keep)
        return Checkpoint(number, where, taken)

    @property
    def job(self) -> str | None:
        """Name of the job whose checkpoints are kept."""
        return self._job.name if self._job is not None else None

    @property
    def resumed(self) -> Checkpoint | None:
        """The checkpoint that the job's run started from: load the model of that step. None at the beginning."""
        self._begun()
        return self._job.started_at if self._job is not None else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes a state: the next iteration goes on there. Raises, changing nothing, if that cannot be honoured."""
        loader, held = self._native(), _state.unpack(state)
        loader.load(held)
        if self._job is not None:
            self._job.loaded(loader)
        if (iterator := self._live()) is not None and iterator.started:
            iterator.close()
        self._held.text = held
        check_count_of_accelerate(loader)

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch of the next iteration. That of the current epoch keeps the cursor.

        Raises if a state was loaded since, of which no batch was trained on yet, and it is of another epoch.
        """
        number = _arguments.number("epoch", epoch, least=0, most=2**63)
        _wrappers.around(self.rank, self.world_size, self._held.holds(self._native()))
        self._take_left()
        loader = self._begun()
        self._held.leave(loader, number, self._wrapper.ahead())
        iterator = self._live()
        if iterator is not None and iterator.started:
            if number == loader.cursor()[0] and not iterator.drained:
                return  # The loader may have reached the epoch's end already, the trainer has not.
            iterator.close()
        loader.set_epoch(number)

    def _take_left(self) -> None:
        """Takes the state that a trainer's checkpoint has for this loader, if the trainer does not hand it over."""
        if (state := self._held.left_by_trainer(self)) is not None:
            self.load_state_dict(state)

    @property
    def batch_sampler(self) -> Epochs:
        """For trainers that announce each epoch to `loader.batch_sampler.sampler`, as Lightning does."""
        return Epochs(self)

    def stats(self) -> dict[str, int]:
        """Running counts: batches, bytes, stall_ns, reads, syscalls, slots and more."""
        return self._native().stats()

    def plan(self) -> dict[str, Any]:
        """The numbers that fix the order: shuffle, seed, lanes, chunk, pool."""
        return self._native().plan()

    def bad_records(self) -> list[tuple[int, str]]:
        """Records that were masked or replaced: index in the topic's order, and why."""
        return self._native().bad_records()

    @property
    def schema(self) -> str:
        """The topic's columns as text."""
        return self._schema

    def close(self) -> None:
        """Ends the threads, frees the slab, lets go of the topic. Batches stay valid. Safe to call again."""
        self._closed = True
        self._dataset = None
        if self._pid != os.getpid():
            return  # In a forked child there is nothing to end.
        if self._iterator is not None and (iterator := self._iterator()) is not None:
            iterator.close()
        if self._loader is not None:
            for line in self._loader.take_notices() if not self._loader.closed else ():
                _logger.info("%s", line)
            self._loader.close()

    def __getitem__(self, index: Any) -> Any:
        """There are no samples by index here; says so to a torch `DataLoader` that took this for a map of them."""
        if "torch.utils.data" in sys.modules:
            raise InvalidError.of(
                f"batches come in order, not by index, which torch knows of loaders made after it: index={index!r}",
                "import torch before the loader is made; forebay.open(name)[index] reads one sample",
            )
        raise InvalidError.of(
            f"batches come in order, not by index: index={index!r}", "forebay.open(name)[index] reads one sample"
        )

    def __reduce__(self) -> Any:
        raise InvalidError.of(
            "a loader cannot be pickled or sent to another process: it owns threads and memory",
            "make a loader in each process; a torch DataLoader around it takes num_workers=0",
        )

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    """Ends what is still open before the interpreter goes away."""
    for loader in list(_open):
        if loader._loader is not None:
            loader._loader.close()


def _pass_as_iterable_dataset() -> None:
    """Lets a torch `DataLoader` (batch_size=None, num_workers=0) wrap ours, if torch is there at all."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None:
        torch_data.IterableDataset.register(DataLoader)
