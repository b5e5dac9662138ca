"""With each library: killed in the middle of epochs and at their edges, and resumed, it is one straight run.

The ids of every step are compared with the order, and the weights at the end with those of a run that nobody killed.
"""

from pathlib import Path
from typing import Any

import forebay
import pytest
from harness import Order
from training import Training

for library in ("torch", "accelerate", "pytorch_lightning", "torchdata"):
    pytest.importorskip(library)

SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 11}
STEPS = 14
"""Batches of 24 in an epoch of `small`."""
KILLS = [5, 11, 1, 14, 1, 13]
"""Batches after which each attempt dies. Checkpoints are at even steps: the second is found at an epoch's very end."""
KILLS_WITHIN = [5, 11, 1, 9, 13]
"""The same with no two checkpoints in a row at ends of epochs, where Lightning loses count."""

QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
EVERY_EPOCH = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch-save": ("trainers.plain", {}),
    "dcp": ("trainers.dcp", {}),
    "dcp-async": ("trainers.dcp", {"asynchronous": True}),
    "accelerate": ("trainers.accelerated", {}),
    "accelerate-prepared": ("variants:prepared", {}),
    "accelerate-stateful": ("variants:prepared", {"stateful": True}),
    "lightning": ("trainers.lightning", QUIET),
    "lightning-epoch-ends": ("variants:fit", {"saving": EVERY_EPOCH}),
    "lightning-no-length": ("variants:fit", {"length": False}),
    "lightning-accumulated": ("variants:fit", {"accumulate_grad_batches": 2, "ours": True}),
    "lightning-validated": ("variants:fit", {"validate": True, "val_check_interval": 5}),
}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch-save": ("trainers.plain:train_in_job", {}),
    "dcp-async": ("trainers.dcp:train_in_job", {}),
    "accelerate": ("trainers.accelerated", {}),
    "lightning": ("trainers.lightning:train_in_job", {**QUIET, "accumulate_grad_batches": 2}),
}
"""With checkpoints committed to a job, and resumed from what it has."""


@pytest.fixture(scope="module")
def order(root: Path) -> Order:
    return Order.of(root, "small", 3, **SHUFFLED)


def made(folder: Path, root: Path, way: tuple[str, dict[str, Any]], **settings: Any) -> Training:
    folder.mkdir()
    module, options = way
    return Training(folder, root, "small", settings={**SHUFFLED, **settings}, module=module, options=options)


@pytest.mark.parametrize("way", WAYS)
def test_killed_and_resumed_it_is_one_straight_run(way: str, root: Path, order: Order, tmp_path: Path) -> None:
    straight, killed = (made(tmp_path / name, root, WAYS[way]) for name in ("straight", "killed"))
    assert straight.attempt()
    straight.check(order)
    for die_after in KILLS_WITHIN if way == "lightning-no-length" else KILLS:
        assert not killed.attempt(die_after=die_after)
    assert killed.attempt()
    killed.check(order)
    assert len(killed.steps) == 3 * STEPS
    assert killed.weights == straight.weights


@pytest.mark.parametrize("way", JOBS)
def test_a_job_resumes_from_what_it_committed(way: str, root: Path, order: Order, tmp_path: Path) -> None:
    straight, killed = (made(tmp_path / name, root, JOBS[way], job=f"{way}-{name}") for name in ("straight", "killed"))
    assert straight.attempt()
    for die_after in KILLS:
        assert not killed.attempt(die_after=die_after)
    assert killed.attempt()
    killed.check(order)
    assert killed.weights == straight.weights
    last = forebay.latest(f"{way}-killed", root=root)
    assert last is not None
    assert last.path is not None
    assert Path(last.path).exists()
