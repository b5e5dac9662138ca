"""Hugging Face Accelerate, with accumulated gradients: register the loader, and iterate over it as it is."""

from pathlib import Path

import forebay
import torch
from accelerate import Accelerator

from trainers import tiny


class Progress:
    """Optimizer steps so far, for names of checkpoints."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        """As Accelerate wants it."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Takes what `state_dict` gave."""
        self.step = state["step"]


def train(loader: forebay.DataLoader, folder: Path, epochs: int, after_step: tiny.AfterStep) -> torch.nn.Module:
    """Trains until `epochs` are done."""
    accelerator = Accelerator(gradient_accumulation_steps=tiny.ACCUMULATE, cpu=True)
    model, progress = tiny.model(), Progress()
    model, optimizer = accelerator.prepare(model, tiny.optimizer(model.parameters()))
    accelerator.register_for_checkpointing(loader, progress)
    if last := newest(loader, folder):
        accelerator.load_state(last)
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            batch = {name: column.to(accelerator.device, non_blocking=True) for name, column in batch.items()}
            with accelerator.accumulate(model):
                accelerator.backward(tiny.loss(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            after_step(batch)
            if accelerator.sync_gradients:
                progress.step += 1
                if progress.step % tiny.SAVE_EVERY == 0:
                    save(accelerator, loader, folder, progress.step)
    module: torch.nn.Module = accelerator.unwrap_model(model)
    return module


def newest(loader: forebay.DataLoader, folder: Path) -> str | None:
    """The checkpoint to go on from: with a loader made with `job=` the one that it goes on from."""
    if loader.job is not None:
        return loader.resumed.path if loader.resumed else None
    whole = sorted(folder.glob("step-*"), key=lambda path: int(path.name[5:]))
    return str(whole[-1]) if whole else None


def save(accelerator: Accelerator, loader: forebay.DataLoader, folder: Path, step: int) -> None:
    """A folder that has its name when everything is in it, and is committed then."""
    accelerator.save_state(str(folder / f"new-{step}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / f"new-{step}").rename(folder / f"step-{step}")
        if loader.job is not None:
            loader.commit(step, folder / f"step-{step}")
