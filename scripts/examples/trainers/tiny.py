"""The model that the examples train: one layer on column `x`, with the samples' ids as targets."""

from collections.abc import Callable
from typing import Any

import torch

SAVE_EVERY = 2
"""Optimizer steps between checkpoints."""
ACCUMULATE = 2
"""Batches of one optimizer step, where gradients are accumulated."""

Batch = dict[str, torch.Tensor]
AfterStep = Callable[[Batch], None]
"""Called when a batch was trained on; the examples' stand-in for logging."""


def model() -> Any:
    """The same weights every time."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def optimizer(parameters: Any) -> Any:
    """One with a state of its own."""
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def loss(model: Any, batch: Batch) -> Any:
    """Repeated rows, which fill up a short step of several ranks, do not count."""
    wrong = (model(batch["x"].float() / 65536).squeeze(1) - batch["id"] / 100) ** 2
    return (wrong * batch["mask"]).mean() if "mask" in batch else wrong.mean()
