"""With each library: killed in the middle of epochs and at their edges, and resumed, it is one straight run.

The ids of every step are compared with the order, and the weights at the end with those of a run that nobody killed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forebay
import pytest
from harness import Order
from training import EXAMPLES, Training

for library in ("torch", "accelerate", "pytorch_lightning", "torchdata"):
    pytest.importorskip(library)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

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

RANKS: dict[str, tuple[str, dict[str, Any]]] = {
    "dcp": ("trainers.dcp", {}),
    "accelerate": ("trainers.accelerated", {}),
    "lightning": ("trainers.lightning", {**QUIET, "devices": 2, "strategy": "ddp"}),
}
"""By two processes, which exchange gradients and write one checkpoint."""
KILLS_OF_RANKS = [5, 11, 14]


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


@pytest.mark.parametrize("way", RANKS)
def test_two_processes_are_killed_and_resumed_together(way: str, root: Path, order: Order, tmp_path: Path) -> None:
    straight, killed = (made(tmp_path / name, root, RANKS[way]) for name in ("straight", "killed"))
    assert straight.attempt(2)
    straight.check(order)
    for die_after in KILLS_OF_RANKS:
        assert not killed.attempt(2, die_after=die_after)
    assert killed.attempt(2)
    killed.check(order)
    assert killed.weights == straight.weights


def test_a_distributed_checkpoint_of_two_processes_is_resumed_by_one(root: Path, order: Order, tmp_path: Path) -> None:
    training = made(tmp_path / "training", root, WAYS["dcp"])
    assert not training.attempt(2, die_after=17)
    assert not training.attempt(1, die_after=4)
    assert training.attempt(2)
    training.check(order)


def test_torchrun_starts_all_ranks_again_and_the_job_goes_on(root: Path, order: Order, tmp_path: Path) -> None:
    """Rank 1 dies in its first life. Both ranks of the second start where rank 0's run record of their attempt says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(EXAMPLES)}
    program = Path(__file__).with_name("elastic.py")
    done = subprocess.run(
        [*command, str(program), str(root), str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    steps: dict[int, list[int]] = {}
    for life in (0, 1):
        ranks = [json_lines(tmp_path / f"ledger-{life}-{rank}") for rank in (0, 1)]
        assert all(ranks), "both ranks train in both lives"
        assert ranks[0][0]["step"] == ranks[1][0]["step"] == (1 if life == 0 else 9)
        for one, other in zip(*ranks, strict=False):
            assert one["step"] == other["step"]
            steps[one["step"]] = one["ids"] + other["ids"]
    assert list(steps) == list(range(1, 2 * STEPS + 1))
    assert list(steps.values()) == [order.step(epoch, step * 24, 24) for epoch in range(2) for step in range(STEPS)]
    last = forebay.latest("elastic", root=root)
    assert last is not None
    assert last.step == 2 * STEPS


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]
