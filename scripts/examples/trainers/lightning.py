"""PyTorch Lightning: the loader is handed to the trainer as it is, and its state is in Lightning's own checkpoints."""

from pathlib import Path
from typing import Any

import forebay
import pytorch_lightning as pl
import torch
from forebay.lightning import Checkpointing
from pytorch_lightning.callbacks import ModelCheckpoint

from trainers import tiny


class Model(pl.LightningModule):  # type: ignore[misc]
    """The model."""

    def __init__(self, after_step: tiny.AfterStep) -> None:
        super().__init__()
        self.layer = tiny.model()
        self.after_step = after_step

    def training_step(self, batch: tiny.Batch, index: int) -> Any:
        """The loss."""
        return tiny.loss(self.layer, batch)

    def on_train_batch_end(self, outputs: Any, batch: tiny.Batch, index: int) -> None:
        """A batch was trained on."""
        self.after_step(batch)

    def configure_optimizers(self) -> Any:
        """The optimizer."""
        return tiny.optimizer(self.parameters())


class Data(pl.LightningDataModule):  # type: ignore[misc]
    """The data."""

    def __init__(self, loader: forebay.DataLoader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> forebay.DataLoader:
        """No torch DataLoader around it."""
        return self.loader


def train(
    loader: forebay.DataLoader, folder: Path, epochs: int, after_step: tiny.AfterStep, **settings: Any
) -> torch.nn.Module:
    """Trains until `epochs` are done."""
    saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=tiny.SAVE_EVERY, save_last=True)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, callbacks=[saving, Checkpointing(loader)], **settings
    )
    last = folder / "last.ckpt"
    model = Model(after_step)
    trainer.fit(model, datamodule=Data(loader), ckpt_path=last if last.exists() else None)
    layer: torch.nn.Module = model.layer
    return layer


def train_in_job(
    loader: forebay.DataLoader, folder: Path, epochs: int, after_step: tiny.AfterStep, **settings: Any
) -> torch.nn.Module:
    """The same with a loader made with `job=`, which says what to go on from."""
    saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=tiny.SAVE_EVERY, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, callbacks=[saving, Checkpointing(loader)], **settings
    )
    model = Model(after_step)
    trainer.fit(model, datamodule=Data(loader), ckpt_path=loader.resumed.path if loader.resumed else None)
    layer: torch.nn.Module = model.layer
    return layer
