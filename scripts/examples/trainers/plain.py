"""A training loop of one's own, with `torch.save`."""

import os
from pathlib import Path

import forebay
import torch

from trainers import tiny


def train(loader: forebay.DataLoader, folder: Path, epochs: int, after_step: tiny.AfterStep) -> torch.nn.Module:
    """Trains until `epochs` are done."""
    model = tiny.model()
    optimizer = tiny.optimizer(model.parameters())
    step, path = 0, folder / "checkpoint.pt"
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            tiny.loss(model, batch).backward()
            optimizer.step()
            step += 1
            after_step(batch)
            if step % tiny.SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                save({**state, "data": loader.state_dict()}, path)
    return model


def train_in_job(loader: forebay.DataLoader, folder: Path, epochs: int, after_step: tiny.AfterStep) -> torch.nn.Module:
    """The same with a loader made with `job=`: Forebay remembers which file belongs to which data."""
    model = tiny.model()
    optimizer = tiny.optimizer(model.parameters())
    step = 0
    if loader.resumed and loader.resumed.path:
        saved = torch.load(loader.resumed.path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = loader.resumed.step
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            tiny.loss(model, batch).backward()
            optimizer.step()
            step += 1
            after_step(batch)
            if step % tiny.SAVE_EVERY == 0:
                path = folder / f"step-{step}.pt"
                save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
                loader.commit(step, path)
    return model


def save(state: dict[str, object], path: Path) -> None:
    """The whole file or the one before, whenever the power fails."""
    with open(path.with_suffix(".new"), "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".new"), path)
