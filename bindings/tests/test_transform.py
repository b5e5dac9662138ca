"""Transforms run ahead in threads and change nothing about order, cursor and errors."""

import contextlib
import functools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from harness import Order, flat, ids_of, take

BATCH = 24
STEPS = 14


@pytest.fixture(scope="module")
def order(root: Path) -> Order:
    return Order.of(root, "small", 3, shuffle=True, seed=3)


def make(root: Path, transform: forebay.Transform, **changes: Any) -> forebay.DataLoader:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 3, "output": "numpy", **changes}
    return forebay.DataLoader("small", root=root, transform=transform, **settings)


def ids(batch: forebay.Batch, rng: Any) -> list[int]:
    return ids_of(batch)


def drawn(batch: forebay.Batch, rng: Any) -> tuple[list[int], list[int]]:
    """A batch and what its generator says."""
    return ids_of(batch), rng.integers(1 << 40, size=3).tolist()


def epoch_of(order: Order, epoch: int, first: int = 0) -> list[list[int]]:
    return [order.step(epoch, place, BATCH) for place in range(0, 317, BATCH)[first:]]


def place(loader: forebay.DataLoader, consumed: int | None = None) -> int:
    found: int = loader.state_dict(consumed)["cursor"]["n"]
    return found


class Gate:
    """A transform whose batches wait until they are let through, by step of epoch 0."""

    def __init__(self, order: Order) -> None:
        self.steps = epoch_of(order, 0)
        self.started = [threading.Event() for _ in range(STEPS)]
        self.open = [threading.Event() for _ in range(STEPS)]

    def __call__(self, batch: forebay.Batch, rng: Any) -> list[int]:
        found = ids_of(batch)
        step = self.steps.index(found)
        self.started[step].set()
        assert self.open[step].wait(60)
        return found


def test_batches_come_in_order_whatever_the_threads_do(root: Path, order: Order) -> None:
    """The first batch of each pair is held back until the second is done."""
    done: dict[int, threading.Event] = {}
    lock = threading.Lock()

    def transform(batch: forebay.Batch, rng: Any) -> list[int]:
        found = ids_of(batch)
        step = epoch_of(order, 0).index(found)
        with lock:
            for number in (step, step ^ 1):
                done.setdefault(number, threading.Event())
        if step % 2 == 0 and step + 1 < STEPS:
            assert done[step ^ 1].wait(60)
        done[step].set()
        return found

    with make(root, transform, transform_threads=2) as loader:
        assert list(loader) == epoch_of(order, 0)


def test_random_numbers_belong_to_the_place(root: Path, order: Order) -> None:
    """The same at every run, on any thread, after any resume; others in every epoch and at every place."""
    with make(root, drawn, transform_threads=1) as loader:
        straight = [list(loader) for _ in range(3)]
    assert [[found for found, _ in epoch] for epoch in straight] == [epoch_of(order, epoch) for epoch in range(3)]
    numbers = [tuple(number) for epoch in straight for _, number in epoch]
    assert len(set(numbers)) == 3 * STEPS
    with make(root, drawn, transform_threads=5) as loader:
        assert [list(loader) for _ in range(3)] == straight
        loader.set_epoch(1)
        for _, _ in zip(range(6), loader, strict=False):
            pass
        state = loader.state_dict()
    for threads in (1, 3):
        with make(root, drawn, transform_threads=threads) as loader:
            loader.load_state_dict(state)
            assert list(loader) == straight[1][6:]
            assert list(loader) == straight[2]
    with make(root, drawn, seed=4) as loader:
        loader.set_epoch(0)
        assert {tuple(number) for _, number in loader}.isdisjoint(numbers)


def test_ranks_do_not_draw_the_same_random_numbers(root: Path) -> None:
    """One augmentation on all ranks is a fraction of the variety that was meant."""
    seen: list[tuple[int, ...]] = []
    for rank in range(4):
        with make(root, drawn, rank=rank, world_size=4, batch_size=6) as loader:
            seen += [tuple(numbers) for _, numbers in loader]
    assert len(set(seen)) == len(seen) == 4 * STEPS


def test_without_numpy_the_generator_is_pythons(root: Path) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; sys.modules['torch'] = None\n"
        "import forebay\n"
        "def draw(batch, rng): return type(batch['id']).__name__, rng.random()\n"
        "loader = forebay.DataLoader('small', 100, root=sys.argv[1], seed=3, transform=draw)\n"
        "print(list(loader)); print(list(loader)); loader.set_epoch(0); print(list(loader))\n"
    )
    done = harness.python(code, root)
    assert done.returncode == 0, done.stderr
    first, second, again = done.stdout.splitlines()
    expected = [("Tensor", random.Random(f"forebay/3/0/{n}").random()) for n in (0, 100, 200, 300)]
    assert first == again == str(expected)
    assert first != second


def test_an_error_is_raised_at_its_batchs_turn(root: Path, order: Order) -> None:
    class BadError(Exception):
        pass

    def transform(batch: forebay.Batch, rng: Any) -> list[int]:
        found = ids_of(batch)
        if found in (epoch_of(order, 0)[5], epoch_of(order, 0)[6]):
            raise BadError(found)
        return found

    with make(root, transform, transform_threads=4) as loader:
        for _ in range(2):
            batches = iter(loader)
            assert [next(batches) for _ in range(5)] == epoch_of(order, 0)[:5]
            with pytest.raises(BadError) as caught:
                next(batches)
            assert caught.value.args == (epoch_of(order, 0)[5],)
            assert place(loader) == 5 * BATCH, "the failed batch is not consumed"
            for _ in range(2):
                with pytest.raises(forebay.ClosedError) as over:
                    next(batches)
                assert isinstance(over.value.__cause__, BadError)
        state = loader.state_dict()
    with make(root, ids) as loader:
        loader.load_state_dict(state)
        assert list(loader) == epoch_of(order, 0, 5)


def test_a_transform_cannot_pass_for_the_end(root: Path) -> None:
    """verl#7401: a run that ends early without an error is under-trained."""

    def transform(batch: forebay.Batch, rng: Any) -> Any:
        return next(iter(()))

    with make(root, transform) as loader, pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)


def test_the_state_counts_what_was_yielded_not_what_is_ahead(root: Path) -> None:
    with make(root, ids, transform_threads=4) as loader:
        assert place(loader) == 0
        batches = iter(loader)
        assert place(loader) == 0
        for step, _ in enumerate(batches, 1):
            assert place(loader) == min(step * BATCH, 317)
            assert place(loader, 0) == 0
            assert place(loader, step) == min(step * BATCH, 317)
            with pytest.raises(forebay.InvalidError, match=f"handed_out={step}"):
                loader.state_dict(step + 1)
            assert loader.epoch == 0
        assert place(loader) == 317


def test_after_a_break_the_epoch_starts_again_and_the_state_is_the_trainers(root: Path, order: Order) -> None:
    for steps in (1, STEPS - 2, STEPS - 1):  # in the last ones, the loader itself is at the epoch's end already
        with make(root, ids, transform_threads=4) as loader:
            for _, _ in zip(range(steps), loader, strict=False):
                pass
            assert place(loader) == steps * BATCH
            state = loader.state_dict()
            assert list(loader) == epoch_of(order, 0)
            assert list(loader) == epoch_of(order, 1)
            loader.load_state_dict(state)
            assert list(loader) == epoch_of(order, 0, steps)


def test_after_a_break_a_transform_that_still_runs_holds_nobody_up(root: Path, order: Order) -> None:
    gate = Gate(order)

    def let_the_first_go() -> None:
        if gate.started[1].wait(60):  # batches ahead are taken while the first one is waited for
            gate.open[0].set()

    with make(root, gate, transform_threads=2) as loader:
        opener = threading.Thread(target=let_the_first_go)
        opener.start()
        for batch in loader:
            assert batch == epoch_of(order, 0)[0]
            break
        opener.join()
        batches = iter(loader)  # although a transform of the broken off iteration is running
        for event in gate.open:
            event.set()
        assert next(batches) == epoch_of(order, 0)[0]


def test_set_epoch_near_the_end_keeps_what_is_ahead(root: Path, order: Order) -> None:
    with make(root, ids, transform_threads=6) as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(STEPS - 2)]
        loader.set_epoch(0)  # the current one
        seen += list(batches)
        assert seen == epoch_of(order, 0)
        batches = iter(loader)
        next(batches)
        loader.set_epoch(2)
        assert (loader.epoch, place(loader)) == (2, 0)
        with pytest.raises(forebay.ClosedError):
            next(batches)
        assert list(loader) == epoch_of(order, 2)


@pytest.mark.parametrize("steps", [1, STEPS - 1])
def test_loading_ends_the_iteration_and_drops_what_is_ahead(steps: int, root: Path, order: Order) -> None:
    with make(root, ids, transform_threads=6) as loader:
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        state = loader.state_dict()
        state["cursor"] = {"epoch": 1, "n": 5 * BATCH}
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(forebay.ClosedError):
                next(batches)
        assert loader.state_dict() == state
        del batches
        assert loader.state_dict() == state
        assert list(loader) == epoch_of(order, 1, 5)


@pytest.mark.parametrize("steps", [1, STEPS - 1])
def test_closing_the_loader_is_no_early_end(steps: int, root: Path) -> None:
    loader = make(root, ids, transform_threads=6)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    loader.close()
    with pytest.raises(forebay.ClosedError):
        next(batches)


def test_a_loop_that_counts_its_steps_gets_epoch_after_epoch(root: Path, order: Order) -> None:
    with make(root, ids, transform_threads=3) as loader:
        for epoch in range(3):
            batches = iter(loader)
            assert [next(batches) for _ in range(STEPS)] == epoch_of(order, epoch)
            assert loader.state_dict()["cursor"] == {"epoch": epoch, "n": 317}
            del batches


def test_a_transform_that_does_not_end_is_a_timeout(root: Path, order: Order) -> None:
    """pytorch#21554: a decoder that sleeps for ever on one record."""
    gate = Gate(order)
    with make(root, gate, transform_threads=2, timeout=0.2) as loader:
        batches = iter(loader)
        while not gate.started[0].is_set():  # a busy machine may be late with the batch itself
            with pytest.raises(forebay.TimeoutError):
                next(batches)
        for _ in range(2):
            with pytest.raises(forebay.TimeoutError, match="transform"):
                next(batches)
        assert place(loader) == 0
        for event in gate.open:
            event.set()
        found: Any = None
        while found is None:
            with contextlib.suppress(forebay.TimeoutError):
                found = next(batches)
        assert found == epoch_of(order, 0)[0], "the batch was not lost"


def test_errors_of_the_loader_come_at_their_turn_too(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    root = tmp_path / "root"
    harness.make_topic(root, "damaged", [200], width=64, block_bytes="1KiB", segment_bytes="4KiB")
    (segment,) = harness.sealed_segments(root, "damaged")
    harness.damage(segment, harness.x_of([150], 64).tobytes())
    settings: dict[str, Any] = {"root": root, "output": "numpy", "checksum": "always"}
    with forebay.DataLoader("damaged", 10, **settings) as plain:
        batches: Iterator[Any] = iter(plain)
        before = [ids_of(batch) for batch in until_corrupt(batches)]
        assert 0 < len(before) <= 15
        with pytest.raises(forebay.CorruptError):
            next(batches)
    with forebay.DataLoader("damaged", 10, transform=ids, transform_threads=6, **settings) as loader:
        batches = iter(loader)
        assert list(until_corrupt(batches)) == before
        with pytest.raises(forebay.CorruptError):  # asked again, the same error again
            next(batches)
        assert place(loader) == len(before) * 10


def until_corrupt(batches: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except forebay.CorruptError:
        return
    raise AssertionError("the damage was not seen")


def test_several_threads_may_ask(root: Path, order: Order) -> None:
    with make(root, ids, transform_threads=2) as loader:
        batches = iter(loader)
        seen: list[list[int]] = []

        def ask(number: int) -> None:
            if number == 0:
                while len(seen) < STEPS - 4:
                    assert place(loader) % BATCH in (0, 317 % BATCH)
            else:
                for batch in batches:
                    seen.append(batch)

        harness.in_threads(4, ask)
        assert sorted(seen) == sorted(epoch_of(order, 0))
        assert place(loader) == 317


def test_what_a_transform_returns_is_yielded_as_it_is(root: Path) -> None:
    marks: list[Any] = [None, 0, (), "x", functools.partial(int)]
    left = iter(marks * 3)
    with make(root, lambda batch, rng: next(left), transform_threads=1) as loader:
        assert take_raw(loader, 5) == marks


def take_raw(loader: forebay.DataLoader, count: int) -> list[Any]:
    return [value for _, value in zip(range(count), loader, strict=False)]


def test_a_batch_kept_by_a_transform_stays_intact(root: Path) -> None:
    """What is returned may be a view of the batch; what is kept stays what it was."""
    kept: list[forebay.Batch] = []

    def transform(batch: forebay.Batch, rng: Any) -> Any:
        kept.append(batch)
        return batch["x"][:2]

    with forebay.DataLoader("wide", 8, root=root, output="numpy", transform=transform) as loader:
        views = list(loader)
    assert sorted(flat(ids_of(batch) for batch in kept)) == list(range(400))
    kept.sort(key=lambda batch: int(batch["id"][0]))
    assert all((view == batch["x"][:2]).all() for view, batch in zip(views, kept, strict=True))


def test_plain_iteration_is_not_disturbed_by_a_transform_of_another_loader(root: Path, order: Order) -> None:
    with make(root, ids) as one, make(root, ids) as two:
        pairs = list(zip(one, two, strict=True))
    assert [a for a, _ in pairs] == [b for _, b in pairs] == epoch_of(order, 0)
    with make(root, ids) as loader:
        assert take(loader, 0) == []
