"""Trainings that are killed, as processes, and resumed on other numbers of ranks: none lost, none twice, in order."""

from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from harness import Job, Order, seeded

TOTAL = 317
SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 11}
IN_ORDER: dict[str, Any] = {"shuffle": False}
WORLDS = [1, 2, 3, 4, 6]


@pytest.fixture(scope="module")
def orders(root: Path) -> dict[bool, Order]:
    """The straight run of `small`, shuffled and not."""
    return {settings["shuffle"]: Order.of(root, "small", 3, **settings) for settings in (SHUFFLED, IN_ORDER)}


def test_the_straight_run_is_what_the_order_says(root: Path, orders: dict[bool, Order]) -> None:
    """Else the other tests here would compare with something else than one loader's own run."""
    for settings in (SHUFFLED, IN_ORDER):
        order = orders[settings["shuffle"]]
        for batch in (12, 48):
            with forebay.DataLoader("small", batch, root=root, output="numpy", **settings) as loader:
                for epoch in range(3):
                    for place, ids in zip(range(0, TOTAL, batch), harness.batches_of(loader), strict=True):
                        assert ids == order.step(epoch, place, batch)
    assert orders[True].epochs[0] != orders[True].epochs[1] != orders[True].epochs[2]
    samples = [int(sample["id"]) for sample in forebay.open("small", root=root, columns=["id"], output="numpy")]
    assert orders[False].epochs[0] == orders[False].epochs[2] == samples


@pytest.mark.parametrize(
    ("shuffle", "drop_last", "tail", "names_epochs"),
    [
        (True, False, "pad", True),
        (True, False, "short", False),
        (True, True, None, False),
        (False, False, "pad", False),
        (False, True, None, True),
    ],
)
def test_killed_anywhere_and_resumed_on_other_ranks_it_is_one_straight_run(
    shuffle: bool,
    drop_last: bool,
    tail: str | None,
    names_epochs: bool,
    root: Path,
    orders: dict[bool, Order],
    tmp_path: Path,
) -> None:
    settings = {**(SHUFFLED if shuffle else IN_ORDER), "drop_last": drop_last, "tail": tail}
    job = Job(tmp_path, root, "small", names_epochs=names_epochs, save_every=3, settings=settings)
    chance = seeded("killed", shuffle, drop_last, tail)
    for _ in range(5):
        world = chance.choice(WORLDS)
        job.run(world, 12, kill_after=chance.randrange(1, 20 * world))
    assert job.run(chance.choice(WORLDS), 12)
    job.check(orders[shuffle])


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_may_change_at_every_restart(
    shuffle: bool, root: Path, orders: dict[bool, Order], tmp_path: Path
) -> None:
    job = Job(tmp_path, root, "small", epochs=2, settings=SHUFFLED if shuffle else IN_ORDER)
    for world, batch, steps in [(2, 24, 5), (3, 9, 7), (1, 5, 11), (4, 60, 2), (6, 6, 13)]:
        assert not job.run(world, batch, kill_after=steps * world)
    assert job.run(2, 32)
    job.check(orders[shuffle])


@pytest.mark.parametrize("names_epochs", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_killed_around_the_end_of_an_epoch(
    names_epochs: bool, drop_last: bool, root: Path, orders: dict[bool, Order], tmp_path: Path
) -> None:
    """meta-pytorch/data#1437, verl#7401: a state saved at an epoch's end lets the next epoch vanish."""
    steps = TOTAL // 24 + (0 if drop_last else 1)
    for at, moment in [
        (steps - 1, "saved"),  # one step is left
        (steps - 1, "stepped"),  # in the last step
        (steps, "noted"),  # the last step is done, the state before it is saved
        (steps, "saving"),
        (steps, "saved"),  # the state at the very end
        (steps + 1, "saved"),  # one step into the next epoch
    ]:
        folder = tmp_path / f"{at}-{moment}"
        folder.mkdir()
        settings = {**SHUFFLED, "drop_last": drop_last}
        job = Job(folder, root, "small", epochs=3, names_epochs=names_epochs, settings=settings)
        assert not job.run(1, 24, die=(at, moment))
        assert job.run(1, 24)
        job.check(orders[True])
        assert len(job.steps) == 3 * steps


@pytest.mark.parametrize("moment", ["noted", "saving", "saved"])
def test_rank_0_dies_while_it_saves(moment: str, root: Path, orders: dict[bool, Order], tmp_path: Path) -> None:
    """A torn state is never read, and its step is trained again by all."""
    job = Job(tmp_path, root, "small", epochs=2, save_every=4, settings=SHUFFLED)
    assert not job.run(3, 12, die=(20, moment))
    assert job.run(2, 12)
    job.check(orders[True])


def test_ten_resumes_in_a_row(root: Path, orders: dict[bool, Order], tmp_path: Path) -> None:
    """KempnerForge#57, huggingface/datasets#8308: from the second resume of an epoch on, the state is off."""
    job = Job(tmp_path, root, "small", settings=SHUFFLED)
    chance = seeded("ten")
    for _ in range(10):
        assert not job.run(1, 12, kill_after=chance.randrange(1, 8))
    assert job.run(1, 12)
    job.check(orders[True])


def test_the_topic_grows_while_it_is_trained_on(tmp_path: Path, root: Path) -> None:
    """What a job trains on is fixed when it starts, whatever is appended, and whoever reads anew sees all of it."""
    pytest.importorskip("numpy")
    own = tmp_path / "root"
    harness.make_topic(own, "growing", [100, 60], partitions=2, block_bytes="512", segment_bytes="4KiB")
    order = Order.of(own, "growing", 2, **SHUFFLED)
    job = Job(tmp_path, own, "growing", epochs=2, settings=SHUFFLED)
    first = 160

    def grow(messages: int) -> None:
        nonlocal first
        if messages % 10 == 5:
            harness.ingest(own, "growing", [37], first=first)
            first += 37

    assert not job.run(2, 16, kill_after=31, meanwhile=grow)
    harness.ingest(own, "growing", [50], first=first)
    first += 50
    assert job.run(4, 16, meanwhile=grow)
    job.check(order)
    with forebay.DataLoader("growing", 10, root=own, output="numpy") as loader:
        assert sorted(harness.flat(harness.batches_of(loader))) == list(range(first))


@pytest.mark.parametrize("shuffle", [True, False])
def test_resuming_late_reads_no_more_than_resuming_early(shuffle: bool, root: Path) -> None:
    """transformers#11284, #21934, webdataset#177, lhotse#1327: hours of loading and dropping what was trained on."""
    settings: dict[str, Any] = {"root": root, "output": "numpy", "read_ahead_steps": 1, "reader_threads": 1}
    settings |= {**(SHUFFLED if shuffle else IN_ORDER), "lanes": 4, "chunk": 2, "pool": 2}
    first: dict[int, int] = {}
    for percent in (1, 50, 99):
        with forebay.DataLoader("wide", 2, **settings) as loader:
            state = loader.state_dict()
            state["cursor"]["n"] = 400 * percent // 100
            loader.load_state_dict(state)
            order = iter(loader)
            harness.ids_of(next(order))
            stats = loader.stats()
            # Whatever the threads did, they cannot have read more than there is room for.
            first[percent] = stats["read_bytes"]
            assert first[percent] <= stats["slots"] * 2 * 16392 * 4
            assert stats["batches"] == 1
    assert max(first.values()) < 400 * 16392 / 4


def test_a_straight_run_reads_everything_once(root: Path) -> None:
    with forebay.DataLoader(
        "wide", 8, root=root, output="numpy", shuffle=True, columns=["x"], checksum="off"
    ) as loader:
        for _ in loader:
            pass
        # The epoch, and what was read ahead of the next one.
        room = loader.stats()["slab_bytes"]
        assert 400 * 16384 <= loader.stats()["read_bytes"] <= 400 * 16384 * 1.1 + room
