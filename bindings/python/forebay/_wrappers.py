"""What training libraries do around a loader, where that would go wrong without a word.

Some fetch a batch before the one at hand is trained on, to know which is the last. What they hold then is handed out
but not consumed, and a state that counts it loses a batch at every resume: `Wrapper.ahead` says how many there are.
Others split batches that are this rank's own once more; `around` refuses them.

Libraries are recognised by the modules of the callers' frames, and looked at only if they are imported already. Of
their objects only attributes are read; where one is missing, nothing is known and nothing is refused.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from forebay.errors import InvalidError

_ACCELERATE = "accelerate.data_loader"
_TORCH = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader")
_LIGHTNING = ("pytorch_lightning", "lightning.pytorch")


class Wrapper:
    """The library's object that draws from an iteration, if it is one that fetches ahead."""

    def __init__(self, shard: Any = None) -> None:
        self._shard = None if shard is None else weakref.ref(shard)

    def ahead(self) -> int:
        """Batches that were handed out and that the trainer has not got, or is not done with."""
        return self._accelerate() + _lightning()

    def _accelerate(self) -> int:
        """It holds one batch while another is trained on, until it knows the end."""
        shard = None if self._shard is None else self._shard()
        if shard is None or any(_owners("accelerate", _ACCELERATE)):
            return 0  # It asks itself, before it fetches the next one.
        running = getattr(getattr(shard, "gradient_state", None), "active_dataloader", None) is shard
        return int(running and not getattr(shard, "end_of_dataloader", True))


def _lightning() -> int:
    """Lightning's loop holds batches that it fetched ahead, if what it fetches from has no length."""
    for package in _LIGHTNING:
        for _, owner in _owners(package, f"{package}.loops.fit_loop"):
            batches = getattr(getattr(owner, "_data_fetcher", None), "batches", None)
            if isinstance(batches, list):
                return len(batches)
    return 0


def warn_of_lost_gradients() -> None:
    """Says so if Lightning writes a checkpoint between two optimizer steps.

    `ModelCheckpoint` does at the first batch after a resume, whose step it does not know to be saved already.
    """
    for package in _LIGHTNING:
        loop, saving = None, False
        for module, owner in _owners(package, f"{package}.loops.fit_loop", f"{package}.trainer.connectors.checkpoint"):
            if module.endswith("fit_loop"):
                loop = owner
            else:
                saving = True
        pending = getattr(loop, "_should_accumulate", None)
        if saving and callable(pending) and pending():
            warnings.warn(
                "Lightning writes a checkpoint while gradients accumulate: at a resume from it they are lost, although "
                "their batches count as consumed; try: Trainer(callbacks=[forebay.lightning.Checkpointing(loader)])",
                stacklevel=3,
            )


def left_by_lightning(loader: Any) -> Any:
    """The loader's state in the checkpoint that Lightning resumes from, if Lightning has kept it to itself.

    It hands states over only if it takes the checkpoint for one inside an epoch. So they stay where an epoch had ended,
    and also where its count of epochs is one short: once a run went on from a checkpoint of an epoch's last batch, the
    next such checkpoint passes for the end of the epoch before. That epoch would be trained on twice.
    """
    for package in _LIGHTNING:
        for module, owner in _owners(package, f"{package}.loops.fit_loop", f"{package}.loops.evaluation_loop"):
            if module.endswith("evaluation_loop"):
                return None  # This is about a loader of another kind.
            states = getattr(owner, "_combined_loader_states_to_load", None)
            loaders = getattr(getattr(owner, "_combined_loader", None), "flattened", None)
            if states and isinstance(states, list) and isinstance(loaders, list):
                stateful = [one for one in loaders if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")]
                own = [state for one, state in zip(stateful, states, strict=False) if one is loader]
                # Something of the user's may be around the loader, if there is only one.
                return own[0] if own else states[0] if len(states) == 1 and _is_state(states[0]) else None
    return None


def keeps_iterators() -> bool:
    """Whether the iteration that begins replaces one that Lightning has not let go: it drops the old iterator later."""
    return any(any(_owners(package, f"{package}.utilities.combined_loader")) for package in _LIGHTNING)


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and {"cursor", "fingerprint", "topic"} <= state.keys()


def around(rank: int, world_size: int, holds_state: bool) -> Wrapper:
    """What draws from the iteration that begins now. Raises if it is something that cuts or joins batches once more."""
    for module, owner in _owners("torch.utils.data", *_TORCH, _ACCELERATE):
        if module.startswith(_TORCH) and getattr(owner, "_auto_collation", False) is True:
            raise InvalidError.of(
                "a torch DataLoader would stack these whole batches into larger ones", "batch_size=None, num_workers=0"
            )
        if module != _ACCELERATE:
            continue
        name = type(owner).__name__
        if name == "DataLoaderDispatcher" and getattr(getattr(owner, "state", None), "num_processes", 1) > 1:
            raise _split("Accelerate would read on its main process only and deal these batches out", rank, world_size)
        if name == "IterableDatasetShard":
            raise _split("Accelerate would give each process some of these batches only", rank, world_size)
        skipped = getattr(owner, "skip_batches", 0)
        if holds_state and skipped:
            raise InvalidError.of(
                f"the state says where to go on, and Accelerate would skip {skipped} batches more",
                "leave skip_first_batches away",
            )
        if name in ("DataLoaderDispatcher", "DataLoaderShard"):
            return Wrapper(owner)
    return Wrapper()


def epoch_of_accelerate() -> int | None:
    """The epoch that Accelerate believes to be in, if it is what takes a state now."""
    for _, owner in _owners("accelerate", _ACCELERATE):
        epoch = getattr(owner, "iteration", None)
        if isinstance(epoch, int):
            return epoch
    return None


def _split(what: str, rank: int, world_size: int) -> InvalidError:
    return InvalidError.of(
        f"{what}, but they are this rank's own part of each step already: rank={rank} world_size={world_size}",
        "leave the torch DataLoader away: accelerator.prepare passes a forebay.DataLoader through as it is",
    )


def _owners(imported: str, *modules: str) -> Iterator[tuple[str, Any]]:
    """Objects whose methods are being called, innermost first, with the modules that the methods are from.

    Nothing if `imported` is not; else those from modules whose names begin like one of `modules`.
    """
    if imported not in sys.modules:
        return
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        # Only these frames' variables are looked at: a look keeps them alive until the frame ends.
        if module.startswith(modules) and "self" in frame.f_code.co_varnames:
            yield module, frame.f_locals.get("self")
        frame = frame.f_back
