"""What `DataLoader` promises a training loop: where an iteration starts, what a state is, what is refused."""

import contextlib
import copy
import json
import logging
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from forebay import _ranks
from harness import Order, flat, ids_of, seeded, take

BATCH = 24
STEPS = 14  # of 317 samples


@pytest.fixture(scope="module")
def order(root: Path) -> Order:
    """The straight run of what `loader` reads."""
    return Order.of(root, "small", 4, shuffle=True, seed=3)


@pytest.fixture
def loader(root: Path) -> Iterator[forebay.DataLoader]:
    with make(root) as loader:
        yield loader


def make(root: Path, **changes: Any) -> forebay.DataLoader:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 3, "output": "numpy", **changes}
    return forebay.DataLoader("small", root=root, **settings)


def epoch_of(order: Order, epoch: int, first: int = 0, batch: int = BATCH) -> list[list[int]]:
    """Batches of an epoch from step `first` on."""
    places = range(0, len(order.epochs[epoch]), batch)
    return [order.step(epoch, place, batch) for place in places[first:]]


def cursor(loader: forebay.DataLoader, consumed: int | None = None) -> tuple[int, int]:
    found = loader.state_dict(consumed)["cursor"]
    return found["epoch"], found["n"]


# Where an iteration starts


def test_epochs_follow_each_other_whole(loader: forebay.DataLoader, order: Order) -> None:
    """NVIDIA/DALI#5199, #5046: the last partial batch never comes, the iterator is exhausted for good."""
    for epoch in range(3):
        assert loader.epoch == max(0, epoch - 1)
        assert harness.batches_of(loader) == epoch_of(order, epoch)
    assert len(loader) == STEPS
    assert loader.samples == 317


def test_iter_after_a_break_starts_the_epoch_again(loader: forebay.DataLoader, order: Order) -> None:
    for steps in (0, 1, 5, STEPS - 1):
        assert take(loader, steps) == epoch_of(order, 0)[:steps]
    assert harness.batches_of(loader) == epoch_of(order, 0)
    for steps in (3, 0):
        assert take(loader, steps) == epoch_of(order, 1)[:steps]
    assert harness.batches_of(loader) == epoch_of(order, 1)


@pytest.mark.parametrize("transform", [None, lambda batch, rng: batch])
def test_a_loop_that_counts_its_steps_gets_epoch_after_epoch(
    transform: forebay.Transform | None, root: Path, order: Order
) -> None:
    """Who takes the last batch and never asks for more has had the epoch, live as after a resume."""
    with make(root, transform=transform) as loader:
        for epoch in range(3):
            assert take(loader, len(loader)) == epoch_of(order, epoch)
            with make(root) as resumed:
                resumed.load_state_dict(loader.state_dict())
                assert take(resumed, 1) == epoch_of(order, epoch + 1)[:1]


def test_set_epoch_names_the_next_epoch(loader: forebay.DataLoader, order: Order) -> None:
    for epoch in (2, 0, 1, 1, 3):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert harness.batches_of(loader) == epoch_of(order, epoch)


def test_set_epoch_of_the_current_epoch_keeps_the_cursor(loader: forebay.DataLoader, order: Order) -> None:
    loader.set_epoch(1)
    batches = iter(loader)
    seen = [ids_of(next(batches)) for _ in range(4)]
    loader.set_epoch(1)
    seen += [ids_of(batch) for batch in batches]
    assert seen == epoch_of(order, 1)

    loader.load_state_dict(state_at(loader, 2, 5 * BATCH))
    loader.set_epoch(2)
    assert cursor(loader) == (2, 5 * BATCH)
    assert harness.batches_of(loader) == epoch_of(order, 2, 5)


def test_set_epoch_of_another_epoch_ends_the_iteration(loader: forebay.DataLoader, order: Order) -> None:
    batches = iter(loader)
    next(batches)
    loader.set_epoch(1)
    with pytest.raises(forebay.ClosedError, match="set_epoch"):
        next(batches)
    assert harness.batches_of(loader) == epoch_of(order, 1)


def test_a_training_loop_that_names_epochs_goes_on_where_it_was(root: Path, order: Order) -> None:
    """The state of an epoch's end: that epoch, named again, has nothing left, and the next is whole."""
    for epoch, step in [(0, 3), (1, 0), (1, STEPS), (0, STEPS)]:
        with make(root) as loader:
            loader.load_state_dict(state_at(loader, epoch, min(step * BATCH, 317)))
            for number in range(loader.epoch, 3):
                loader.set_epoch(number)
                assert harness.batches_of(loader) == epoch_of(order, number, step if number == epoch else 0)


def test_a_second_live_iterator_is_refused(loader: forebay.DataLoader, order: Order) -> None:
    first = iter(loader)
    next(first)
    with pytest.raises(forebay.InvalidError, match="iterated already"):
        iter(loader)
    assert ids_of(next(first)) == epoch_of(order, 0)[1], "the refusal must not disturb the first"
    for _ in first:
        pass
    second = iter(loader)  # an exhausted one may live on
    assert list(first) == []
    assert ids_of(next(second)) == epoch_of(order, 1)[0]
    del second
    assert harness.batches_of(loader) == epoch_of(order, 1)


def test_an_exception_in_the_loops_body_leaves_a_usable_loader(loader: forebay.DataLoader, order: Order) -> None:
    def train() -> None:
        for step, _ in enumerate(loader):
            1 / (3 - step)

    with pytest.raises(ZeroDivisionError):
        train()
    assert cursor(loader) == (0, 4 * BATCH)
    state = loader.state_dict()
    assert take(loader, 1) == epoch_of(order, 0)[:1]
    loader.load_state_dict(state)
    assert harness.batches_of(loader) == epoch_of(order, 0, 4)


# States


def state_at(loader: forebay.DataLoader, epoch: int, place: int) -> forebay.State:
    state = loader.state_dict()
    state["cursor"] = {"epoch": epoch, "n": place}
    return state


def test_a_state_counts_what_was_yielded_between_any_two_batches(loader: forebay.DataLoader) -> None:
    assert cursor(loader) == (0, 0)
    for epoch in range(2):
        batches = iter(loader)
        assert cursor(loader) == (epoch, 0)
        for step, _ in enumerate(batches, 1):
            assert cursor(loader) == (epoch, min(step * BATCH, 317))
        assert cursor(loader) == (epoch, 317)


def test_consumed_gives_the_state_of_an_earlier_batch(loader: forebay.DataLoader) -> None:
    for _ in range(2):  # from the start, and after a resume
        batches = iter(loader)
        epoch, start = cursor(loader)
        for _ in range(6):
            next(batches)
        for consumed in range(7):
            assert cursor(loader, consumed) == (epoch, start + consumed * BATCH)
        for wrong in (7, 100, 2**40):
            with pytest.raises(forebay.InvalidError, match="handed_out=6"):
                loader.state_dict(wrong)
        with pytest.raises(forebay.InvalidError, match="consumed=-1"):
            loader.state_dict(-1)
        loader.load_state_dict(loader.state_dict())
    for _ in loader:
        pass
    assert cursor(loader, 1) == (0, 13 * BATCH)
    assert cursor(loader, 2) == (0, 317)


def test_resumed_any_number_of_times_on_any_ranks_it_is_one_straight_run(root: Path, order: Order) -> None:
    chance = seeded("in process")
    state: forebay.State | None = None
    seen: list[list[int]] = [[] for _ in range(3)]
    epoch = 0
    while epoch < 3:
        world, steps = chance.choice([1, 2, 3, 4, 6, 8, 12]), chance.randrange(1, 9)
        parts = []
        for rank in range(world):
            with make(root, batch_size=BATCH // world, rank=rank, world_size=world, tail="short") as loader:
                if state is not None:
                    loader.load_state_dict(state)
                batches = iter(loader)
                epoch = loader.epoch
                parts.append([ids_of(batch) for _, batch in zip(range(steps), batches, strict=False)])
                after = loader.state_dict()
        if epoch < 3:
            seen[epoch] += flat(flat(step) for step in zip(*parts, strict=True))
        state = json.loads(json.dumps(after))
    assert seen == [flat(epoch_of(order, number)) for number in range(3)]


def test_a_state_is_small_plain_and_the_same_on_every_rank(root: Path) -> None:
    states = []
    for rank in range(4):
        with make(root, batch_size=6, rank=rank, world_size=4) as loader:
            take(loader, 3)
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 1000
    with make(root) as loader:
        for copied in (json.loads(json.dumps(states[0])), pickle.loads(pickle.dumps(states[0]))):  # noqa: S301
            loader.load_state_dict(copied)
            assert loader.state_dict() == states[0]


@pytest.mark.torch
def test_a_state_goes_through_torch_save(root: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with make(root) as loader:
        take(loader, 3)
        torch.save({"loader": loader.state_dict()}, tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", weights_only=True)["loader"]
        loader.load_state_dict(loaded)
        assert cursor(loader) == (0, 3 * BATCH)


def test_loading_ends_the_iteration_and_never_mixes(loader: forebay.DataLoader, order: Order) -> None:
    """accelerate#2016, prime-rl PR 3299: iter() before load reads from step 0."""
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    loader.load_state_dict(state_at(loader, 1, 7 * BATCH))
    assert cursor(loader) == (1, 7 * BATCH)
    for _ in range(2):
        with pytest.raises(forebay.ClosedError, match="load_state_dict"):
            next(batches)
    assert cursor(loader) == (1, 7 * BATCH)
    assert harness.batches_of(loader) == epoch_of(order, 1, 7)


def test_the_last_loaded_state_wins(loader: forebay.DataLoader, order: Order) -> None:
    for place in (2 * BATCH, 5 * BATCH, 3 * BATCH):
        loader.load_state_dict(state_at(loader, 0, place))
    assert harness.batches_of(loader) == epoch_of(order, 0, 3)


def tampered(state: forebay.State, *path: str | int, value: Any) -> forebay.State:
    changed: Any = copy.deepcopy(state)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    found: forebay.State = changed
    return found


def test_a_state_that_cannot_be_honoured_is_refused_and_changes_nothing(
    loader: forebay.DataLoader, order: Order
) -> None:
    """mosaicml/streaming#437, #880: load_state_dict without effect; it must take effect or raise."""
    good = loader.state_dict()
    good["windows"] = json.loads(good["windows"])
    extent = ("windows", 0, "extents", 0)
    mismatched = [
        tampered(good, "version", value=2),
        tampered(good, "plan", "seed", value=4),
        tampered(good, "plan", "lanes", value=5),
        tampered(good, "plan", "shuffle", value=False),
        tampered(good, "topic", value="persistent://public/default/even"),
        tampered(good, "cursor", "n", value=318),
        tampered(good, *extent, "to", value=1000),
        tampered(good, *extent, "from", value=10),
        tampered(good, *extent, "incarnation", value="0" * 32),
        tampered(good, "fingerprint", value="0" * 32),
    ]
    garbage: list[Any] = [
        None,
        {},
        [],
        "state",
        7,
        {"version": 1},
        {"step": 3},
        {"version": "1"},
        {"version": -1},
        tampered(good, "cursor", value=None),
        tampered(good, "cursor", "n", value=-1),
        tampered(good, "cursor", "n", value=1.5),
        tampered(good, "cursor", "n", value=float("nan")),
        tampered(good, "cursor", "epoch", value=2**64),
        tampered(good, "cursor", "epoch", value=2**64 - 1),
        tampered(good, "topic", value="\ud800"),
        tampered(good, "extra", value=1),
        {key: value for key, value in good.items() if key != "windows"},
        {"version": b"1"},
        {"version": {1, 2}},
        tampered(good, "windows", value="["),
        tampered(good, "windows", value="7"),
        nested(100_000),
    ]
    for state in mismatched:
        with pytest.raises(forebay.StateMismatchError):
            loader.load_state_dict(state)
    for state in garbage:
        with pytest.raises(forebay.InvalidError):
            loader.load_state_dict(state)
    batches = iter(loader)
    next(batches)
    with pytest.raises(forebay.StateMismatchError):
        loader.load_state_dict(mismatched[0])
    assert ids_of(next(batches)) == epoch_of(order, 0)[1], "a refused state must not end the iteration"


def nested(depth: int) -> Any:
    inner: Any = 0
    for _ in range(depth):
        inner = [inner]
    return inner


def test_a_state_of_another_order_is_refused_with_both(root: Path) -> None:
    with make(root) as loader:
        state = loader.state_dict()
    others: list[tuple[dict[str, Any], str]] = [
        ({"seed": 4}, "state=3 loader=4"),
        ({"shuffle": False}, "shuffle"),
        ({"lanes": 3}, "lanes"),
        ({"chunk": 3}, "chunk"),
        ({"pool": 3}, "pool"),
    ]
    for changes, text in others:
        with make(root, **changes) as other, pytest.raises(forebay.StateMismatchError, match=text):
            other.load_state_dict(state)


def test_a_topic_made_again_is_another_one(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    own = tmp_path / "root"
    harness.make_topic(own, "short-lived", [50])
    with forebay.DataLoader("short-lived", 10, root=own) as loader:
        state = loader.state_dict()
    harness.cli("topic", "rm", "short-lived", "--root", own, "--yes")
    harness.make_topic(own, "short-lived", [50])
    with forebay.DataLoader("short-lived", 10, root=own) as other:
        with pytest.raises(forebay.StateMismatchError, match="made again"):
            other.load_state_dict(state)
        assert cursor(other) == (0, 0)


# The log


def test_the_way_of_reading_is_told_with_the_first_batch(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make(root, reader="preadv") as loader, caplog.at_level(logging.INFO, "forebay"):
        batches = iter(loader)
        next(batches)
        assert [line for line in caplog.messages if "reader=" in line] == ["reader=preadv reason=asked for"]
        assert len(list(batches)) > 0
        assert len([line for line in caplog.messages if "reader=" in line]) == 1


# Ranks


def test_ranks_from_the_environment_are_read_at_iter_and_logged_once(
    root: Path, order: Order, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lightning makes loaders before process groups exist."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with make(root, batch_size=None, global_batch_size=BATCH) as loader:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr(_ranks, "_logged", set())
        with caplog.at_level(logging.INFO, "forebay"):
            halves = [take(loader, 3), take(loader, 3)]
        assert (loader.rank, loader.world_size) == (1, 2)
    assert halves == [[step[BATCH // 2 :] for step in epoch_of(order, 0)[:3]]] * 2
    lines = [message for message in caplog.messages if "rank" in message]
    assert lines == ["rank 1 of 2, from the environment"]


def test_ranks_that_appear_later_keep_the_place(root: Path, order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with make(root, batch_size=None, global_batch_size=BATCH) as loader:
        loader.load_state_dict(state_at(loader, 2, 4 * BATCH))
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert cursor(loader) == (2, 4 * BATCH)
        assert take(loader, 1) == [epoch_of(order, 2)[4][: BATCH // 3]]


class Mesh:
    """As much of a `DeviceMesh` as is looked at."""

    mesh_dim_names = ("dp", "tp")
    shape = (3, 2)

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place

    def get_coordinate(self) -> tuple[int, int]:
        return self.place


def test_peers_of_a_mesh_get_the_same_batches(root: Path, order: Order) -> None:
    for dp in range(3):
        for tp in range(2):
            with make(root, mesh=Mesh((dp, tp)), batch_size=8) as loader:
                assert (loader.rank, loader.world_size) == (dp, 3)
                assert take(loader, 2) == [step[dp * 8 : dp * 8 + 8] for step in epoch_of(order, 0)[:2]]


# What is refused


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": None}, "global_batch_size"),
        ({"batch_size": 4, "global_batch_size": 8}, "global_batch_size=8"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -3}, "batch_size"),
        ({"batch_size": 2.5}, "whole number"),
        ({"batch_size": "8"}, "whole number"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": 2**40}, "batch_size"),
        ({"batch_size": None, "global_batch_size": 25, "rank": 0, "world_size": 4}, "does not divide"),
        ({"rank": 0}, "come together"),
        ({"rank": 4, "world_size": 4}, "rank=4"),
        ({"rank": -1, "world_size": 4}, "rank=-1"),
        ({"batch_size": 318, "drop_last": True}, "samples=317"),
        ({"columns": []}, "columns is empty"),
        ({"columns": "id"}, "list of names"),
        ({"columns": ["id", "id"]}, "twice"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": None}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"tail": "drop"}, "pad, short"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"output": "jax"}, "torch, numpy, dlpack"),
        ({"device": "cuda"}, "device=cuda"),
        ({"checksum": "never"}, "always, sampled, off"),
        ({"on_bad_record": "skip"}, "raise, mask, substitute"),
        ({"on_bad_record": "mask"}, "checksum='always'"),
        ({"reader": "mmap"}, "io_uring"),
        ({"lanes": 0}, "lanes is 1 to 1048576: lanes=0"),
        ({"pool": 2**20}, "pool"),
        ({"depth": 0}, "depth is 1 to 256: depth=0"),
        ({"depth": 257}, "depth is 1 to 256: depth=257"),
        ({"depth": None}, "depth"),
        ({"reader_threads": 99}, "reader_threads is 1 to 16: reader_threads=99"),
        ({"overflow_bytes": -1}, "overflow_bytes"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes"),
        ({"transform": 3}, "transform"),
        ({"transform": print, "transform_threads": 0}, "transform"),
        ({"num_workers": 4}, "num_workers has no meaning here"),
        ({"sampler": [1]}, "sampler has no meaning here"),
        ({"pin_memory": True}, "pin_memory has no meaning here"),
        ({"shufle": True}, "did you mean shuffle"),
        ({"job": "a/b"}, "not a name"),
        ({"job": 7}, "job is a text"),
        ({"job": "vision", "resume": "-x"}, "not a tag"),
        ({"job": "vision", "resume": -1}, "resume is 'latest', 'never', a step or a tag"),
        ({"job": "vision", "attempt": ""}, 'attempt is a text of 1 to 512 bytes: attempt=""'),
        ({"job": "vision", "keep_last": 0}, "keep_last is 1 to"),
        ({"resume": 30}, "argument=resume"),
        ({"keep_every": 5}, "argument=keep_every"),
        ({"endpoint": "unix:///x"}, "argument=endpoint"),
        ({"subscription": "a"}, "argument=subscription"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_argument_is_refused_by_name(arguments: dict[str, Any], text: str, root: Path) -> None:
    with pytest.raises(forebay.InvalidError) as caught:
        make(root, **arguments)
    assert text in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("folder", [b"data", 3])
def test_a_root_that_is_no_folder_is_refused(folder: Any) -> None:
    refused = "^root is a folder, as text or a path: root="
    with pytest.raises(forebay.InvalidError, match=refused):
        forebay.DataLoader("small", BATCH, root=folder)
    with pytest.raises(forebay.InvalidError, match=refused):
        forebay.open("small", root=folder)


def test_a_column_that_is_not_there_is_refused_with_those_that_are(root: Path) -> None:
    with pytest.raises(forebay.NotFoundError, match=r'did you mean "id".*the topic has id, x'):
        make(root, columns=["idd"])


def test_what_torch_spells_out_is_accepted(root: Path) -> None:
    habits: dict[str, Any] = {
        "sampler": None,
        "num_workers": 0,
        "collate_fn": None,
        "pin_memory": False,
        "persistent_workers": False,
    }
    with make(root, timeout=0, device="cpu", job=None, **habits) as loader:
        assert len(loader) == STEPS


@pytest.mark.parametrize(
    ("dataset", "error"),
    [
        ("smal", forebay.NotFoundError),
        ("persistent://public/default/smal", forebay.NotFoundError),
        ("persistent://other/default/small", forebay.NotFoundError),
        ("", forebay.InvalidError),
        ("a/b", forebay.InvalidError),
        ("../small", forebay.InvalidError),
        ("small@v1", forebay.NotFoundError),
        ("small@", forebay.InvalidError),
        (7, forebay.InvalidError),
    ],
)
def test_a_topic_that_is_not_there_is_refused(dataset: Any, error: type[Exception], root: Path) -> None:
    with pytest.raises(error) as caught:
        forebay.DataLoader(dataset, 8, root=root)
    if dataset == "smal":
        assert "did you mean" in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)


def test_roots(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(forebay.NotFoundError, match="root="):
        forebay.DataLoader("small", 8, root=tmp_path / "nowhere")
    monkeypatch.setenv("FOREBAY_ROOT", str(root))
    forebay.DataLoader("small", 8).close()
    monkeypatch.delenv("FOREBAY_ROOT")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(forebay.NotFoundError, match="forebay-data"):
        forebay.DataLoader("small", 8)
    (tmp_path / "forebay-data").symlink_to(root)
    forebay.DataLoader("small", 8).close()


def test_an_empty_topic_is_refused_with_what_to_do(tmp_path: Path) -> None:
    harness.cli("topic", "create", "empty", "--root", tmp_path, "--schema", "id:int64")
    with pytest.raises(forebay.NotFoundError, match="forebay ingest"):
        forebay.DataLoader("empty", 8, root=tmp_path)


def test_a_slab_beyond_the_limit_is_refused_and_nothing_moves(root: Path) -> None:
    """pytorch#5040, #108861: a bus error where memory is short. mosaicml/streaming#417: a silent deadlock."""
    with make(root, memory_limit_bytes=4096) as loader:
        loader.load_state_dict(state_at(loader, 2, 3 * BATCH))
        for _ in range(2):
            with pytest.raises(forebay.NoSpaceError, match="needed_bytes=") as caught:
                iter(loader)
            assert cursor(loader) == (2, 3 * BATCH)
        assert isinstance(caught.value, OSError)
        assert "memory_limit_bytes" in (caught.value.hint or "")


def test_a_column_named_mask_is_refused_where_it_would_hide(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    np.savez(tmp_path / "a.npz", id=np.arange(5), mask=np.ones(5, bool))
    harness.cli("ingest", tmp_path / "a.npz", "--topic", "masked", "--root", tmp_path / "root", "-q")
    settings: dict[str, Any] = {"root": tmp_path / "root", "output": "numpy"}
    with pytest.raises(forebay.InvalidError, match="mask"):
        forebay.DataLoader("masked", 2, rank=0, world_size=2, **settings)
    with forebay.DataLoader("masked", 2, **settings) as loader:
        assert [batch["mask"].tolist() for batch in loader] == [[True] * 2, [True] * 2, [True]]


# Waiting


@pytest.fixture
def slow(tmp_path: Path) -> tuple[Path, Path]:
    """A topic of 400 samples in four segments, and one of these."""
    pytest.importorskip("numpy")
    harness.make_topic(tmp_path / "root", "slow", [100] * 4, block_bytes="512", segment_bytes="4KiB")
    segment = harness.sealed_segments(tmp_path / "root", "slow")[2]
    return tmp_path / "root", segment


def test_a_disk_that_does_not_answer_is_a_timeout_and_costs_no_batch(slow: tuple[Path, Path]) -> None:
    """pytorch#21554, #96629, #1355, Energon#119: one dead mount blocks all for ever."""
    root, segment = slow
    seen: list[int] = []

    def train() -> None:
        for batch in batches:
            seen.extend(ids_of(batch))

    loader = forebay.DataLoader("slow", 10, root=root, timeout=0.2, output="numpy")
    with loader, harness.stuck(segment) as answer:
        batches = iter(loader)
        text = ""
        while "files are being read" not in text:  # on a busy machine, nothing may be asked of the disk at first
            with pytest.raises(TimeoutError) as caught:
                train()
            assert isinstance(caught.value, forebay.TimeoutError)
            text = str(caught.value)
        assert f"place={len(seen)}" in text
        assert cursor(loader) == (0, len(seen))
        with pytest.raises(TimeoutError):
            next(batches)
        answer()
        while True:  # until what was asked of the dead disk fails
            try:
                train()
            except forebay.TimeoutError:
                continue
            except forebay.Error:
                break
            # Nothing was: on a busy machine the file may have been opened only after the answer.
            assert seen == list(range(400))
            return
        assert cursor(loader) == (0, len(seen))
        state = loader.state_dict()
    assert seen + rest_of(root, state) == list(range(400))


def rest_of(root: Path, state: forebay.State) -> list[int]:
    """What a restarted training gets."""
    with forebay.DataLoader("slow", 10, root=root, output="numpy") as loader:
        loader.load_state_dict(state)
        return flat(harness.batches_of(loader))


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Interrupts raise, also where the tests were started in the background: shells have them ignored there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_an_interrupt_raises_in_next_and_costs_no_batch(slow: tuple[Path, Path]) -> None:
    root, segment = slow
    seen: list[int] = []

    def train() -> None:
        for batch in batches:
            seen.extend(ids_of(batch))

    def train_until(interrupt: threading.Timer) -> None:
        interrupt.start()
        while True:  # on a busy machine it comes after more than the time-out
            with contextlib.suppress(TimeoutError):
                train()

    loader = forebay.DataLoader("slow", 10, root=root, timeout=2, output="numpy")
    with loader, harness.stuck(segment) as answer:
        batches = iter(loader)
        with pytest.raises(TimeoutError):  # from here on it waits for sure
            train()
        for _ in range(2):
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                train_until(timer)
            timer.join()
        assert cursor(loader) == (0, len(seen))
        answer()
        state = loader.state_dict()
    assert seen + rest_of(root, state) == list(range(400))


def test_a_loader_on_a_dead_disk_ends(slow: tuple[Path, Path]) -> None:
    """A process whose read never comes back must still end: somebody waits to restart it."""
    root, segment = slow
    code = (
        "import sys, forebay\n"
        "loader = forebay.DataLoader('slow', 10, root=sys.argv[1], timeout=0.5, output='dlpack')\n"
        "import os; os.rename(sys.argv[2], sys.argv[2] + '.aside'); os.mkfifo(sys.argv[2])\n"
        "for batch in loader: pass\n"
    )
    done = harness.python(code, root, segment)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("forebay.errors.TimeoutError: no batch in time")


# The end


def test_a_closed_loader_says_so(root: Path) -> None:
    loader = make(root)
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    loader.close()
    loader.close()
    with pytest.raises(forebay.ClosedError, match="over"):
        next(batches)
    for use in (iter, len, lambda it: it.state_dict(), lambda it: it.load_state_dict({}), lambda it: it.set_epoch(1)):
        with pytest.raises(forebay.ClosedError) as caught:
            use(loader)
        assert isinstance(caught.value, RuntimeError)
    assert [len(ids_of(batch)) for batch in kept] == [BATCH, BATCH]
    with pytest.raises(forebay.ClosedError), loader:
        iter(loader)


def test_leaving_the_context_closes(root: Path) -> None:
    batches: Iterator[Any] = iter(())

    def train() -> None:
        nonlocal batches
        with make(root) as loader:
            batches = iter(loader)
            next(batches)
            raise KeyError

    with pytest.raises(KeyError):
        train()
    with pytest.raises(forebay.ClosedError):
        next(batches)


def test_a_loader_cannot_be_pickled(loader: forebay.DataLoader) -> None:
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(forebay.InvalidError, match="num_workers=0"):
            use(loader)


# Single samples


def test_samples_by_index(root: Path) -> None:
    samples = forebay.open("even", root=root, output="numpy")
    assert len(samples) == 240
    assert samples[0]["id"] == 0
    assert samples[-1]["id"] == 239
    assert samples[239]["x"].tolist() == harness.x_of([239], 4)[0].tolist()
    assert [int(sample["id"]) for sample in samples[10:40:7]] == [10, 17, 24, 31, 38]
    assert "id:int64" in samples.schema
    for index in (240, -241):
        with pytest.raises(IndexError):
            samples[index]
    assert [int(sample["id"]) for sample in samples] == list(range(240))
    assert list(forebay.open("even", root=root, columns=["x"], output="numpy")[3]) == ["x"]
