"""With torch: its `DataLoader` around ours, its workers refused, two processes that train together."""

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from harness import Order, flat, ids_of

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def order(root: Path) -> Order:
    return Order.of(root, "even", 3, shuffle=True)


@pytest.fixture
def loader(root: Path) -> Iterator[forebay.DataLoader]:
    with make(root) as loader:
        yield loader


def make(root: Path, **changes: Any) -> forebay.DataLoader:
    return forebay.DataLoader("even", root=root, **{"batch_size": 12, "shuffle": True, **changes})


def epoch_of(order: Order, epoch: int, first: int = 0) -> list[list[int]]:
    return [order.step(epoch, place, 12) for place in range(first * 12, 240, 12)]


def test_batches_are_tensors_that_need_no_copy(loader: forebay.DataLoader, order: Order) -> None:
    batches = iter(loader)
    batch = next(batches)
    assert {name: (one.dtype, tuple(one.shape)) for name, one in batch.items()} == {
        "id": (torch.int64, (12,)),
        "x": (torch.uint16, (12, 4)),
    }
    assert ids_of(batch) == epoch_of(order, 0)[0]
    assert not batch["x"].requires_grad
    batch["id"] += 1
    batch["x"] = batch["x"].float().requires_grad_()
    batch["x"].sum().backward()
    assert [ids_of(one) for one in batches] == epoch_of(order, 0)[1:]


def test_large_columns_are_views_of_the_slab(root: Path) -> None:
    with forebay.DataLoader("wide", 8, root=root) as loader:
        batch = next(iter(loader))
        assert loader.stats()["leased_slots"] == 1
        row = batch["x"][3]
        copied = batch["x"].clone()
        del batch
        assert loader.stats()["leased_slots"] == 1, "a view keeps the slot"
        assert torch.equal(row, copied[3])
        del row
        assert loader.stats()["leased_slots"] == 0


def test_a_torch_loader_around_ours_yields_the_same(loader: forebay.DataLoader, order: Order) -> None:
    assert isinstance(loader, torch_data.IterableDataset)
    wrapped = torch_data.DataLoader(loader, batch_size=None, num_workers=0)
    assert len(wrapped) == 20
    for epoch in range(3):
        assert [ids_of(batch) for batch in wrapped] == epoch_of(order, epoch)


def test_a_torch_loader_around_ours_keeps_the_state(loader: forebay.DataLoader, root: Path, order: Order) -> None:
    wrapped = torch_data.DataLoader(loader, batch_size=None, num_workers=0)
    seen = []
    for batch in wrapped:
        seen.append(ids_of(batch))
        assert loader.state_dict()["cursor"] == {"epoch": 0, "n": len(seen) * 12}
        if len(seen) == 7:
            break
    state = loader.state_dict()
    del batch
    with make(root) as other:
        other.load_state_dict(json.loads(json.dumps(state)))
        wrapped = torch_data.DataLoader(other, batch_size=None, num_workers=0)
        seen += [ids_of(batch) for batch in wrapped]
        assert seen == epoch_of(order, 0)
        assert [ids_of(batch) for batch in wrapped] == epoch_of(order, 1)


def test_a_torch_loader_around_ours_with_a_transform(root: Path, order: Order) -> None:
    with make(root, transform=lambda batch, rng: {**batch, "noise": torch.from_numpy(rng.random(12))}) as loader:
        wrapped = torch_data.DataLoader(loader, batch_size=None, num_workers=0)
        made = list(wrapped)
        assert [ids_of(batch) for batch in made] == epoch_of(order, 0)
        assert len({float(batch["noise"][0]) for batch in made}) == 20


def test_a_torch_loader_on_several_ranks_wants_them_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with make(root) as loader, pytest.raises(forebay.InvalidError, match="must be given"):
        next(iter(torch_data.DataLoader(loader, batch_size=None)))
    with make(root, rank=1, world_size=2) as loader:
        assert len(list(torch_data.DataLoader(loader, batch_size=None))) == 10


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_are_refused_with_the_reason(loader: forebay.DataLoader) -> None:
    next(iter(loader))
    wrapped = torch_data.DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(forebay.InvalidError, match=r"each of them would yield every batch.*num_workers=1"):
        next(iter(wrapped))
    assert len(list(loader)) == 20


def test_spawned_workers_are_refused_with_the_reason(loader: forebay.DataLoader) -> None:
    wrapped = torch_data.DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(forebay.InvalidError, match="num_workers=0"):
        next(iter(wrapped))


def test_batches_can_be_copied_saved_and_sent(loader: forebay.DataLoader, tmp_path: Path) -> None:
    batch = next(iter(loader))
    del batch["x"]  # torch pickles no uint16
    torch.save(batch, tmp_path / "batch.pt")
    for other in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), torch.load(tmp_path / "batch.pt")):  # noqa: S301
        assert all(torch.equal(other[name], batch[name]) for name in batch)
        assert other["id"].data_ptr() != batch["id"].data_ptr()


DDP = """
import json, os, sys
import torch, torch.distributed as dist
import forebay

rank, root, store = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = forebay.DataLoader("small", root=root, global_batch_size=24, shuffle=True)
seen = []
for epoch in range(2):
    loader.set_epoch(epoch)
    for batch in loader:
        mask = batch["mask"]
        optimizer.zero_grad()
        loss = (model(batch["x"].float() / 65536).squeeze(1) * mask).mean()
        loss.backward()
        optimizer.step()
        seen.append(batch["id"][mask].tolist())
weights = [parameter.detach().flatten().tolist() for parameter in model.parameters()]
print(json.dumps({"seen": seen, "weights": weights, "state": loader.state_dict()}))
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes_train_together_on_parts_of_their_own(root: Path, tmp_path: Path) -> None:
    """Gradients of every step meet, so a rank with another number of steps would hang."""
    pipe = subprocess.PIPE
    environment = {**os.environ, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DDP, str(root), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**environment, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        answers = [rank.communicate(timeout=500) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    one, two = (json.loads(out) for out, _ in answers)
    assert one["weights"] == two["weights"]
    assert one["state"] == two["state"]
    steps = [a + b for a, b in zip(one["seen"], two["seen"], strict=True)]
    straight = Order.of(root, "small", 2, shuffle=True)
    assert steps == [straight.step(epoch, place, 24) for epoch in range(2) for place in range(0, 317, 24)]
    assert not set(flat(one["seen"][:14])) & set(flat(two["seen"][:14]))


def test_torch_imported_after_the_loader_was_made_is_told_what_to_do(root: Path) -> None:
    """It then takes the loader for a map of samples."""
    code = (
        "import sys, forebay\n"
        "loader = forebay.DataLoader('even', 12, root=sys.argv[1])\n"
        "assert 'torch' not in sys.modules\n"
        "import torch.utils.data\n"
        "try:\n"
        "    next(iter(torch.utils.data.DataLoader(loader, batch_size=None)))\n"
        "except forebay.InvalidError as error:\n"
        "    print(error.hint)\n"
        "loader = forebay.DataLoader('even', 12, root=sys.argv[1])\n"
        "wrapped = torch.utils.data.DataLoader(loader, batch_size=None)\n"
        "print(sum(len(batch['id']) for batch in wrapped))\n"
    )
    done = harness.python(code, root)
    assert done.stdout.startswith("import torch before the loader is made"), done.stderr
    assert done.stdout.endswith("\n240\n"), done.stderr
