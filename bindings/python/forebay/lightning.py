"""Lightning's checkpoints as checkpoints of a job.

The loader is handed to `Trainer.fit` as it is, and its state is in Lightning's own checkpoints without anything from
here. `Checkpointing` adds what Lightning does not do: it commits each checkpoint to the loader's job once its file is
durable, sees to it that data and model go on from the same step, and keeps `ModelCheckpoint` from writing one between
two optimizer steps after a resume, whose gradients would be lost.

Works with the packages `pytorch_lightning` and `lightning`, whichever is imported already.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from forebay.errors import InvalidError, StateMismatchError
from forebay.loader import DataLoader

__all__ = ["Checkpointing"]

_KEY = "forebay"


def _package() -> Any:
    """Lightning's main module."""
    name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return importlib.import_module("lightning.pytorch")


_main = _package()
_Callback: Any = _main.Callback
_CheckpointIO: Any = importlib.import_module(f"{_main.__name__}.plugins.io").CheckpointIO


class Checkpointing(_Callback):  # type: ignore[misc]
    """A callback for `Trainer(callbacks=[...])`, beside `ModelCheckpoint(save_top_k=-1, ...)`.

    Every file that `ModelCheckpoint` or `trainer.save_checkpoint` writes in whole is committed with the number of
    optimizer steps, on rank 0. A second file of the same step, such as `last.ckpt`, is not; `save_weights_only=True`
    holds no state and is not either. Resume with `ckpt_path=loader.resumed.path`. With a loader that has no job nothing
    is committed.

    Args:
        loader: The loader that is trained from.
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__()
        self._loader = loader
        self._committed: int | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Gets to hear of every file once it is written."""
        if stage != "fit":
            return
        if trainer.overfit_batches and self._loader._settings["shuffle"]:
            raise InvalidError(
                "overfit_batches means the same batches in every epoch, and a shuffled loader has others: "
                f"overfit_batches={trainer.overfit_batches} shuffle=True"
            )
        strategy = trainer.strategy
        written = strategy.checkpoint_io
        if hasattr(written, "_checkpoint_io") and written.checkpoint_io is not None:
            # What is around it may hand it over to a thread: the innermost one knows when a file is there.
            while getattr(written.checkpoint_io, "_checkpoint_io", None) is not None:
                written = written.checkpoint_io
            if not isinstance(written.checkpoint_io, _Committing):
                written._checkpoint_io = _Committing(written.checkpoint_io, self)
        elif not isinstance(written, _Committing):
            strategy.checkpoint_io = _Committing(written, self)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Model and data start together."""
        resumed = self._loader.resumed
        if resumed is not None and trainer.ckpt_path is None:
            raise StateMismatchError.of(
                f"the job goes on from a checkpoint, and the trainer begins anew: step={resumed.step} "
                f"path={resumed.path}",
                'Trainer.fit(ckpt_path=loader.resumed.path), or DataLoader(resume="never")',
            )
        self._committed = None if resumed is None else resumed.step
        for callback in trainer.checkpoint_callbacks:
            # It does not remember what it saved before it was resumed, and would save the same step again: with the
            # next batch, whose gradients only accumulate.
            if getattr(callback, "_last_global_step_saved", None) == 0:
                callback._last_global_step_saved = trainer.global_step

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Takes the state with the model's."""
        checkpoint[_KEY] = {"step": trainer.global_step, "data": self._loader.state_dict()}

    def _written(self, checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
        """A file is written: it is made durable, and then committed."""
        taken = checkpoint.get(_KEY)
        if taken is None or self._loader.job is None or taken["step"] == self._committed:
            return
        _sync(path)
        self._loader.commit(taken["step"], path, state=taken["data"])
        self._committed = taken["step"]


class _Committing(_CheckpointIO):  # type: ignore[misc]
    """Writes as another one does, and says so."""

    def __init__(self, inner: Any, callback: Checkpointing) -> None:
        self._inner, self._callback = inner, callback

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        self._inner.save_checkpoint(checkpoint, path, storage_options)
        self._callback._written(checkpoint, path)

    def load_checkpoint(self, *arguments: Any, **options: Any) -> Any:
        return self._inner.load_checkpoint(*arguments, **options)

    def remove_checkpoint(self, path: Any) -> None:
        self._inner.remove_checkpoint(path)

    def teardown(self) -> None:
        self._inner.teardown()


def _sync(path: str | os.PathLike[str]) -> None:
    """Makes a local file, or all that is in a folder, durable together with its name."""
    if "://" in os.fspath(path):
        return
    names = [os.fspath(path), os.path.dirname(os.path.abspath(path))]
    for folder, _, files in os.walk(path):
        names += [folder, *(os.path.join(folder, name) for name in files)]
    for name in names:
        file = os.open(name, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
