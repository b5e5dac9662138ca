"""`torch.distributed.checkpoint`: the loader is `Stateful` as it is; written at once or while training goes on."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import forebay
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from trainers import tiny


class Training:
    """Model, optimizer and step, as `torch.distributed.checkpoint` wants them."""

    def __init__(self) -> None:
        self.model = tiny.model()
        if torch.distributed.is_initialized():
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = tiny.optimizer(self.model.parameters())
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """With an optimizer's state even before its first step."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def train_in_job(loader: forebay.DataLoader, folder: Path, epochs: int, after_step: tiny.AfterStep) -> torch.nn.Module:
    """With a loader made with `job=`: written while training goes on, and committed once it is written."""
    training = Training()
    if loader.resumed and loader.resumed.path:
        dcp.load({"training": training}, checkpoint_id=loader.resumed.path)
    saving: list[tuple[Future[Any], int, Path, forebay.State]] = []
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            training.optimizer.zero_grad()
            tiny.loss(training.model, batch).backward()
            training.optimizer.step()
            training.step += 1
            after_step(batch)
            if training.step % tiny.SAVE_EVERY == 0:
                commit(loader, saving)
                path = folder / f"step-{training.step}"
                future = dcp.async_save({"training": training}, checkpoint_id=path)
                saving.append((future, training.step, path, loader.state_dict()))
    commit(loader, saving)
    return training.model


def commit(loader: forebay.DataLoader, saving: list[tuple[Future[Any], int, Path, forebay.State]]) -> None:
    """Waits for the checkpoint on its way, if there is one, and commits it with the state of its step."""
    while saving:
        future, step, path, state = saving.pop()
        future.result()
        loader.commit(step, path, state=state)


def train(
    loader: forebay.DataLoader, folder: Path, epochs: int, after_step: tiny.AfterStep, asynchronous: bool = False
) -> torch.nn.Module:
    """Trains until `epochs` are done."""
    training = Training()
    checkpoint = {"training": training, "data": loader}
    # DCP writes this file last: without it a checkpoint is none.
    whole = [path.parent for path in folder.glob("step-*/.metadata")]
    if whole:
        dcp.load(checkpoint, checkpoint_id=max(whole, key=lambda path: int(path.name[5:])))
    saving: Future[Any] | None = None
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            training.optimizer.zero_grad()
            tiny.loss(training.model, batch).backward()
            training.optimizer.step()
            training.step += 1
            after_step(batch)
            if training.step % tiny.SAVE_EVERY == 0:
                path = folder / f"step-{training.step}"
                if saving is not None:
                    saving.result()
                if asynchronous:
                    saving = dcp.async_save(checkpoint, checkpoint_id=path)  # The states are those of this step.
                else:
                    dcp.save(checkpoint, checkpoint_id=path)
    if saving is not None:
        saving.result()
    return training.model
