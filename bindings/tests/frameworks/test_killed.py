"""With each library: killed in the middle of epochs and at their edges, and resumed, it is one straight run.

The ids of every step are compared with the order, and the weights at the end with those of a run that nobody killed.
"""

from pathlib import Path
from typing import Any

import pytest
from harness import Order
from training import Training

pytest.importorskip("torch")

SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 11}
STEPS = 14
"""Batches of 24 in an epoch of `small`."""
KILLS = [5, 11, 1, 14, 1, 13]
"""Batches after which each attempt dies. Checkpoints are at even steps: the second is found at an epoch's very end."""

LIBRARIES: list[tuple[str, str, dict[str, Any]]] = [
    ("torch-save", "trainers.plain", {}),
    ("dcp", "trainers.dcp", {}),
    ("dcp-async", "trainers.dcp", {"asynchronous": True}),
    ("accelerate", "trainers.accelerated", {}),
    ("lightning", "trainers.lightning", {"enable_progress_bar": False, "enable_model_summary": False}),
]


@pytest.fixture(scope="module")
def order(root: Path) -> Order:
    return Order.of(root, "small", 3, **SHUFFLED)


@pytest.mark.parametrize(("module", "options"), [one[1:] for one in LIBRARIES], ids=[one[0] for one in LIBRARIES])
def test_killed_and_resumed_it_is_one_straight_run(
    module: str, options: dict[str, Any], root: Path, order: Order, tmp_path: Path
) -> None:
    jobs = []
    for name in ("straight", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        jobs.append(Training(folder, root, "small", settings=SHUFFLED, module=module, options=options))
    straight, killed = jobs
    assert straight.attempt()
    straight.check(order)
    for die_after in KILLS:
        assert not killed.attempt(die_after=die_after)
    assert killed.attempt()
    killed.check(order)
    assert len(killed.steps) == 3 * STEPS
    assert killed.weights == straight.weights
