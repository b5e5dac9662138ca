"""Which epoch comes next, where trainers count epochs too.

A state says in which epoch training goes on. Whoever then names another one is mistaken: a loop over epochs that begins
at 0 again, a trainer that was not given the checkpoint of the same step. What is left of the state's epoch would be
lost, or come twice. So a state that was just loaded is held to until a batch was trained on.
"""

from __future__ import annotations

from typing import Any, Protocol

from forebay import _wrappers
from forebay._forebay import Loader
from forebay.errors import StateMismatchError


class Held:
    """The state that was loaded last, until its epoch is named or a batch is trained on."""

    def __init__(self) -> None:
        self.text: str | None = None
        self._left: Any = None

    def holds(self, loader: Loader) -> bool:
        """Whether a state was loaded of which no batch was handed out yet."""
        return self.text is not None and loader.untouched()

    def leave(self, loader: Loader, epoch: int, ahead: int) -> None:
        """Lets go of the state since `epoch` is named; raises if that is another one than the state's.

        Of the batches handed out, `ahead` are in the hands of a trainer that is not done with the one before.
        """
        if self.text is not None and loader.handed_out() <= ahead:
            if self.holds(loader):
                loader.load(self.text)  # An iterator that nobody drew from may have gone on to the next epoch.
            at, place = loader.cursor()
            if epoch not in ((at, at + 1) if loader.ended() else (at,)):
                raise StateMismatchError.of(
                    f"the state that was loaded is of another epoch: epoch={epoch} loaded_epoch={at} place={place}",
                    "begin the loop over epochs at loader.epoch, and give a trainer the checkpoint of the same step",
                )
        self.text = None

    def left_by_trainer(self, loader: Any) -> Any:
        """The state that a trainer has for the loader and does not hand over, once; None if there is none."""
        left = _wrappers.left_by_lightning(loader)
        if left is None or left is self._left:
            return None
        self._left = left
        return left


def check_count_of_accelerate(loader: Loader) -> None:
    """Raises if Accelerate, which is taking a state now, believes to be in another epoch than the state."""
    epoch = _wrappers.epoch_of_accelerate()
    coming = loader.cursor()[0] + (1 if loader.ended() else 0)
    if epoch is not None and epoch != coming:
        raise StateMismatchError.of(
            "Accelerate counts epochs from 0 in each process, and would repeat some: "
            f"epoch={epoch} loaded_epoch={coming}",
            "set_epoch of what accelerator.prepare returned, before iterating; or leave the torch DataLoader away",
        )


class _Loader(Protocol):
    def set_epoch(self, epoch: int) -> None: ...


class Epochs:
    """What a trainer that looks for a sampler finds: somebody to tell the epoch to. There is no sampler."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    @property
    def sampler(self) -> Epochs:
        """This."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """As `DataLoader.set_epoch`."""
        self._loader.set_epoch(epoch)
