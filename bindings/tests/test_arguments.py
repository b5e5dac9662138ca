"""Arguments of torch's loader that mean nothing here are refused by name; harmless ones are not."""

import inspect
from typing import Any

import pytest
from forebay import InvalidError, _arguments

KNOWN = ["dataset", "batch_size", "global_batch_size", "shuffle", "seed", "transform", "world_size"]


class Awkward:
    """Compares as an array does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("sampler", object(), "seed="),
        ("batch_sampler", [[1]], "global_batch_size="),
        ("num_workers", 4, "leave it out"),
        ("num_workers", True, "leave it out"),
        ("collate_fn", list, "transform="),
        ("collate_fn", Awkward(), "transform="),
        ("pin_memory", True, "device="),
        ("worker_init_fn", print, "transform="),
        ("multiprocessing_context", "spawn", "leave it out"),
        ("generator", Awkward(), "seed="),
        ("prefetch_factor", 2, "leave it out"),
        ("persistent_workers", True, "leave it out"),
        ("pin_memory_device", "cuda", "device="),
        ("in_order", False, "leave it out"),
    ],
)
def test_a_habit_is_refused_with_what_to_use_instead(name: str, value: Any, instead: str) -> None:
    with pytest.raises(InvalidError, match=f"^{name} has no meaning here") as caught:
        _arguments.check({name: value}, KNOWN)
    assert instead in str(caught.value)
    assert f": {name}=" in str(caught.value)


@pytest.mark.parametrize("name", _arguments.HABITS)
def test_its_harmless_default_is_not(name: str) -> None:
    for value in _arguments.HABITS[name].harmless:
        _arguments.check({name: value}, KNOWN)


def test_an_unknown_argument_is_refused_with_the_nearest() -> None:
    for name, near in [("shufle", "shuffle"), ("worldsize", "world_size"), ("global_batchsize", "global_batch_size")]:
        with pytest.raises(InvalidError, match=f"did you mean {near}"):
            _arguments.check({name: 1}, KNOWN)
    with pytest.raises(InvalidError, match="^unknown argument: argument=zebra$"):
        _arguments.check({"zebra": 1}, KNOWN)


def test_long_values_are_cut() -> None:
    with pytest.raises(InvalidError) as caught:
        _arguments.check({"batch_sampler": list(range(1000))}, KNOWN)
    assert len(str(caught.value)) < 300


@pytest.mark.torch
def test_every_argument_of_torch_is_either_ours_or_a_habit() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    ours = {"self", "dataset", "batch_size", "shuffle", "drop_last", "timeout"}
    parameters = inspect.signature(torch_data.DataLoader.__init__).parameters
    assert set(parameters) - ours == set(_arguments.HABITS)
    for name, habit in _arguments.HABITS.items():
        assert parameters[name].default in habit.harmless
