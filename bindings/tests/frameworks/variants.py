"""Trainings as people also write them, where a library's habits could lead away from the order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import pytorch_lightning as pl
import torch
from accelerate import Accelerator
from forebay.lightning import Checkpointing
from pytorch_lightning.callbacks import ModelCheckpoint
from trainers import lightning, tiny
from trainers.accelerated import Progress

QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}


class NoLength:
    """A loader that does not say how long an epoch is, as one of live data."""

    def __init__(self, loader: forebay.DataLoader) -> None:
        self.loader = loader
        self.state_dict = loader.state_dict
        self.load_state_dict = loader.load_state_dict
        self.batch_sampler = loader.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def fit(
    loader: forebay.DataLoader,
    folder: Path,
    epochs: int,
    after_step: tiny.AfterStep,
    saving: dict[str, Any] | None = None,
    length: bool = True,
    validate: bool = False,
    ours: bool = False,
    **settings: Any,
) -> Any:
    """Lightning without a datamodule, with its checkpoints written as `saving` says."""
    checkpoint = ModelCheckpoint(dirpath=folder, save_last=True, **(saving or {"every_n_train_steps": 2}))
    callbacks = [checkpoint, *([Checkpointing(loader)] if ours else [])]
    trainer = pl.Trainer(max_epochs=epochs, callbacks=callbacks, **{**QUIET, **settings})
    last = folder / "last.ckpt"
    model = Validated(after_step) if validate else lightning.Model(after_step)
    with forebay.DataLoader("small", 40) as other:
        trainer.fit(
            model,
            loader if length else NoLength(loader),
            other if validate else None,
            ckpt_path=last if last.exists() else None,
        )
        if validate:
            whole = [ids for ids in model.validated if len(ids) != 80]  # Lightning looks at two batches first.
            assert all(sorted(ids) == list(range(317)) for ids in whole), "validation sees every sample once"
    return model.layer


class Validated(lightning.Model):
    """The model, with validation."""

    def __init__(self, after_step: tiny.AfterStep) -> None:
        super().__init__(after_step)
        self.validated: list[list[int]] = []

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: tiny.Batch, index: int) -> None:
        self.validated[-1] += batch["id"].tolist()


def prepared(
    loader: forebay.DataLoader,
    folder: Path,
    epochs: int,
    after_step: tiny.AfterStep,
    stateful: bool = False,
    names_epochs: bool = True,
) -> Any:
    """Accelerate with a torch `DataLoader` around ours, of which it holds a batch back."""
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful))
    model, progress = tiny.model(), Progress()
    wrapped = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=0)
    model, optimizer, wrapped = accelerator.prepare(model, tiny.optimizer(model.parameters()), wrapped)
    accelerator.register_for_checkpointing(*([progress] if stateful else [progress, loader]))
    whole = list(folder.glob("step-*"))
    if whole:
        accelerator.load_state(str(max(whole, key=lambda path: int(path.name[5:]))))
    steps = len(loader)
    for epoch in range(progress.step // steps, epochs):
        if names_epochs:
            wrapped.set_epoch(epoch)
        for batch in wrapped:
            accelerator.backward(tiny.loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            after_step(batch)
            if progress.step % tiny.SAVE_EVERY == 0:
                new = folder / f"new-{progress.step}"
                accelerator.save_state(str(new))
                os.rename(new, folder / f"step-{progress.step}")
    return accelerator.unwrap_model(model)
