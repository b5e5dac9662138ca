"""The two models in PyTorch: a small convolutional network for digits, causal convolutions for bytes.

Both take the loader's batches as they are: tensors by column name, which view the memory that the data were read into.
"""

# mypy: disable-error-code="misc, no-any-return, untyped-decorator"
# torch counts as untyped, so that the answer is the same whether it is installed or not.

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, Tensor]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Models as small as these lose time with more threads, most of all on a busy machine.
torch.set_num_threads(1)


class Trained:
    """What both models share: a network, its optimizer, and how the two are saved and loaded."""

    framework = f"torch {torch.__version__.split('+')[0]} on the {'GPU' if DEVICE.type == 'cuda' else 'CPU'}"
    suffix = ".pt"

    def __init__(self, network: nn.Module, rate: float) -> None:
        self.network = network.to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=rate)

    def losses(self, batch: Batch) -> Tensor:
        """The loss of every prediction that the batch asks for."""
        raise NotImplementedError

    def train(self, batch: Batch) -> float:
        """Learns from a batch and returns its loss."""
        loss = self.losses(batch).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self, path: Path) -> None:
        """Writes all that training goes on from."""
        torch.save({"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}, path)

    def load(self, path: Path) -> None:
        """Takes what `save` wrote."""
        saved = torch.load(path, map_location=DEVICE)
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])


class Digits(Trained):
    """Two convolutions and a linear layer; its score is the share of digits named right."""

    name = "a small convolutional network"

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
        super().__init__(network, rate=2e-3)

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Ten numbers for each image, and what it really shows."""
        image = batch["image"].to(DEVICE, non_blocking=True)
        label = batch["label"].to(DEVICE, non_blocking=True)
        return self.network(image[:, None].float() / 16), label

    def losses(self, batch: Batch) -> Tensor:
        """Cross entropy for each image."""
        outputs, label = self.outputs(batch)
        return functional.cross_entropy(outputs, label, reduction="none")

    @torch.no_grad()
    def score(self, batch: Batch) -> tuple[float, int]:
        """How many are named right, of how many."""
        outputs, label = self.outputs(batch)
        return int((outputs.argmax(1) == label).sum()), len(label)


class ByteNetwork(nn.Module):
    """Convolutions that look only backwards, each twice as far as the one before: 256 numbers for every next byte."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**layer) for layer in range(layers))
        self.last = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        """From bytes to predictions of the bytes that follow them."""
        x = self.bytes(text).transpose(1, 2)
        for layer, convolution in enumerate(self.layers):
            x = x + functional.gelu(convolution(functional.pad(x, (2**layer, 0))))
        return self.last(x.transpose(1, 2))


class Text(Trained):
    """A byte-level language model; its score is the number of bits that it needs for a byte."""

    name = "a byte-level language model of causal convolutions"

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__(ByteNetwork(), rate=4e-3)

    def losses(self, batch: Batch) -> Tensor:
        """Cross entropy for each byte but the first of each block, from those before it."""
        text = batch["text"].to(DEVICE, non_blocking=True).long()
        outputs = self.network(text[:, :-1])
        return functional.cross_entropy(outputs.flatten(0, 1), text[:, 1:].flatten(), reduction="none")

    @torch.no_grad()
    def score(self, batch: Batch) -> tuple[float, int]:
        """Bits needed, for how many bytes."""
        losses = self.losses(batch)
        return losses.sum().item() / math.log(2), len(losses)
