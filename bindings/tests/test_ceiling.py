"""`ceiling`: real batches again and again, and a loader that is as it was."""

import itertools
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from harness import ids_of

pytest.importorskip("numpy")

BATCH = 24


def make(root: Path, topic: str = "small", **changes: Any) -> forebay.DataLoader:
    settings: dict[str, Any] = {"shuffle": True, "seed": 3, "output": "numpy", **changes}
    return forebay.DataLoader(topic, BATCH, root=root, **settings)


def test_the_first_batches_come_again_and_again(root: Path) -> None:
    with make(root) as loader:
        wanted = harness.batches_of(loader)[:3]
    with make(root) as loader:
        seen = list(itertools.islice(forebay.ceiling(loader, batches=3), 10))
        assert [ids_of(batch) for batch in seen] == [wanted[at % 3] for at in range(10)]
        assert seen[0] is seen[3], "they are kept, not copied"


def test_the_loader_goes_on_where_it_was(root: Path) -> None:
    with make(root) as straight:
        wanted = harness.batches_of(straight)
    with make(root) as loader:
        before = loader.state_dict()
        replay = forebay.ceiling(loader)
        next(replay)
        assert loader.state_dict() == before
        first = ids_of(next(iter(loader)))
        assert first == wanted[0]
        loader.load_state_dict({**before, "cursor": {"epoch": 0, "n": 2 * BATCH}})
        assert ids_of(next(forebay.ceiling(loader, 2))) == wanted[2]
        assert harness.batches_of(loader) == wanted[2:], "of that epoch nothing is lost"


def test_all_slots_may_be_kept(root: Path) -> None:
    """Batches that fill the slab: more are kept in ordinary memory, and reading goes on when they are gone."""
    with make(root, "wide", read_ahead_steps=1, reader_threads=1, lanes=2, chunk=8, pool=1) as loader:
        count = len(loader)
        replay = forebay.ceiling(loader, batches=count)
        seen = [ids_of(batch) for batch in itertools.islice(replay, 2 * count)]
        assert seen[:count] == seen[count:]
        del replay
        assert harness.batches_of(loader) == seen[:count]


def test_a_transform_is_part_of_it(root: Path) -> None:
    with make(root, transform=lambda batch, rng: len(batch["id"])) as loader:
        assert list(itertools.islice(forebay.ceiling(loader, 2), 5)) == [BATCH] * 5
        assert loader.state_dict()["cursor"] == {"epoch": 0, "n": 0}


def test_few_batches_and_other_loaders() -> None:
    assert list(itertools.islice(forebay.ceiling([1, 2, 3], batches=8), 7)) == [1, 2, 3, 1, 2, 3, 1]
    assert list(itertools.islice(forebay.ceiling(iter("abc"), batches=2), 4)) == ["a", "b", "a", "b"]


def test_what_cannot_be_replayed_is_refused(root: Path) -> None:
    with pytest.raises(forebay.InvalidError, match="no batches"):
        forebay.ceiling([])
    for wrong in (0, -1, True, 2.5):
        with pytest.raises(forebay.InvalidError, match="batches"):
            forebay.ceiling([1], batches=wrong)  # type: ignore[arg-type]
    loader = make(root)
    loader.close()
    with pytest.raises(forebay.ClosedError):
        forebay.ceiling(loader)
