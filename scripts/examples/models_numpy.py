"""The two models in NumPy, gradients by hand: a perceptron for digits, a neural n-gram for bytes.

Both take the loader's batches as they are: arrays by column name, which view the memory that the data were read into.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Array = Any
"""An array of NumPy's."""
Batch = dict[str, Array]


class Trained:
    """What both models share: weights by name, their optimizer (Adam), and how the two are saved and loaded."""

    framework = f"NumPy {np.__version__}"
    suffix = ".npz"

    def __init__(self, weights: dict[str, Array], rate: float) -> None:
        self.weights = {name: weight.astype(np.float32) for name, weight in weights.items()}
        self.means = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.squares = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.steps = 0
        self.rate = rate

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """The batch's mean loss, and how it changes with each weight."""
        raise NotImplementedError

    def train(self, batch: Batch) -> float:
        """Learns from a batch and returns its loss."""
        loss, gradients = self.gradients(batch)
        self.steps += 1
        rate = self.rate * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for name, gradient in gradients.items():
            self.means[name] += 0.1 * (gradient - self.means[name])
            self.squares[name] += 0.001 * (gradient * gradient - self.squares[name])
            self.weights[name] -= np.float32(rate) * self.means[name] / (np.sqrt(self.squares[name]) + 1e-8)
        return loss

    def save(self, path: Path) -> None:
        """Writes all that training goes on from."""
        groups = {"weights": self.weights, "means": self.means, "squares": self.squares}
        arrays = {f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()}
        np.savez(path, steps=self.steps, **arrays)

    def load(self, path: Path) -> None:
        """Takes what `save` wrote."""
        with np.load(path) as saved:
            self.steps = int(saved["steps"])
            for group in ("weights", "means", "squares"):
                setattr(self, group, {name: saved[f"{group}/{name}"] for name in self.weights})


class Digits(Trained):
    """A perceptron with one hidden layer; its score is the share of digits named right."""

    name = "a small perceptron"

    def __init__(self, seed: int, hidden: int = 96) -> None:
        random = np.random.default_rng(seed)
        weights = {
            "hidden": random.normal(0, 0.15, (64, hidden)),
            "hidden_bias": np.zeros(hidden),
            "output": random.normal(0, 0.1, (hidden, 10)),
            "output_bias": np.zeros(10),
        }
        super().__init__(weights, rate=3e-3)

    def outputs(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Pixels, the hidden layer, and ten numbers for each image."""
        pixels = batch["image"].reshape(-1, 64).astype(np.float32) / 16
        hidden = np.maximum(pixels @ self.weights["hidden"] + self.weights["hidden_bias"], 0)
        return pixels, hidden, hidden @ self.weights["output"] + self.weights["output_bias"]

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Those of the cross entropy."""
        pixels, hidden, outputs = self.outputs(batch)
        losses, wrong = cross_entropy(outputs, batch["label"])
        back = (wrong @ self.weights["output"].T) * (hidden > 0)
        gradients = {
            "hidden": pixels.T @ back,
            "hidden_bias": back.sum(0),
            "output": hidden.T @ wrong,
            "output_bias": wrong.sum(0),
        }
        return float(losses.mean()), gradients

    def score(self, batch: Batch) -> tuple[float, int]:
        """How many are named right, of how many."""
        right = self.outputs(batch)[2].argmax(1) == batch["label"]
        return int(right.sum()), len(right)


class Text(Trained):
    """A hidden layer that tells a byte from the few before it; its score is the number of bits it needs for one."""

    name = "a byte-level language model, a neural n-gram"

    def __init__(self, seed: int, reach: int = 6, width: int = 16, hidden: int = 128) -> None:
        random = np.random.default_rng(seed)
        self.reach, self.width = reach, width
        weights = {
            "bytes": random.normal(0, 1, (256, width)),
            "hidden": random.normal(0, (reach * width) ** -0.5, (reach * width, hidden)),
            "hidden_bias": np.zeros(hidden),
            "output": random.normal(0, 0.1, (hidden, 256)),
            "output_bias": np.zeros(256),
        }
        super().__init__(weights, rate=4e-3)

    def outputs(self, batch: Batch) -> tuple[Array, ...]:
        """The bytes seen, the two layers, and for each byte seen 256 numbers that say which comes next."""
        text = batch["text"]
        seen = np.lib.stride_tricks.sliding_window_view(text[:, :-1], self.reach, axis=1).reshape(-1, self.reach)
        known = self.weights["bytes"][seen].reshape(len(seen), -1)
        hidden = np.maximum(known @ self.weights["hidden"] + self.weights["hidden_bias"], 0)
        return seen, known, hidden, hidden @ self.weights["output"] + self.weights["output_bias"]

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Those of the cross entropy."""
        seen, known, hidden, outputs = self.outputs(batch)
        losses, wrong = cross_entropy(outputs, self.following(batch))
        back = (wrong @ self.weights["output"].T) * (hidden > 0)
        known_back = (back @ self.weights["hidden"].T).reshape(len(seen), self.reach, self.width)
        # A product with ones and zeros adds up the rows of each byte, many times faster than np.add.at.
        which: Array = np.eye(256, dtype=np.float32)
        gradients = {
            "bytes": sum(which[seen[:, at]].T @ known_back[:, at] for at in range(self.reach)),
            "hidden": known.T @ back,
            "hidden_bias": back.sum(0),
            "output": hidden.T @ wrong,
            "output_bias": wrong.sum(0),
        }
        return float(losses.mean()), gradients

    def following(self, batch: Batch) -> Array:
        """The byte that comes after each run of bytes seen."""
        return batch["text"][:, self.reach :].ravel()

    def score(self, batch: Batch) -> tuple[float, int]:
        """Bits needed, for how many bytes."""
        losses, _ = cross_entropy(self.outputs(batch)[-1], self.following(batch))
        return float(losses.sum() / np.log(2)), len(losses)


def cross_entropy(outputs: Array, label: Array) -> tuple[Array, Array]:
    """The loss of each row, and how the mean of all changes with the outputs."""
    shifted = outputs - outputs.max(1, keepdims=True)
    powers = np.exp(shifted)
    sums = powers.sum(1, keepdims=True)
    rows = np.arange(len(label))
    losses = np.log(sums[:, 0]) - shifted[rows, label]
    wrong = powers / sums
    wrong[rows, label] -= 1
    return losses, wrong / len(label)
