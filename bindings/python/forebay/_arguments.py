"""What people pass: out of habit, and as numbers of whatever type.

`DataLoader` has the argument names of `torch.utils.data.DataLoader` where the meaning is the same. The others describe
how torch's loader works inside, and have no meaning here: they are refused by name, with the reason and what to use
instead. Their harmless defaults are taken without a word, so that code which spells them out goes on working. Anything
else that is unknown is refused with the nearest name there is.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from forebay._forebay import LIMITS
from forebay.errors import InvalidError


class Habit(NamedTuple):
    """An argument of torch's loader that has no meaning here."""

    harmless: tuple[object, ...]
    """Values that ask for nothing."""
    reason: str
    """Why it has no meaning, and what to use instead."""


_PROCESSES = "batches are made by threads of the engine, not by worker processes"
_ORDER = "the order is a function of shuffle and seed, which is what makes it exact to resume"

HABITS: dict[str, Habit] = {
    "sampler": Habit((None,), f"{_ORDER}; use shuffle= and seed="),
    "batch_sampler": Habit((None,), f"{_ORDER}; use batch_size= or global_batch_size=, shuffle= and drop_last="),
    "num_workers": Habit((0,), f"{_PROCESSES}; leave it out"),
    "collate_fn": Habit((None,), "samples are laid into batches as they are read; use transform= on the whole batch"),
    "pin_memory": Habit((False, None), "the engine owns the memory of batches and pins it for the GPU; use device="),
    "worker_init_fn": Habit((None,), f"{_PROCESSES}; use transform=, whose random generator is keyed by the place"),
    "multiprocessing_context": Habit((None,), f"{_PROCESSES}; leave it out"),
    "generator": Habit((None,), f"{_ORDER}; use seed="),
    "prefetch_factor": Habit((None,), "the engine reads ahead by its plan, as far as its memory goes; leave it out"),
    "persistent_workers": Habit((False,), f"{_PROCESSES}; leave it out"),
    "pin_memory_device": Habit(("",), "the engine owns the memory of batches and pins it for the GPU; use device="),
    "in_order": Habit((True,), "batches always come in order; leave it out"),
}


def check(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuses the keywords in `given`, which no parameter took, unless they ask for nothing.

    `known` are the names of the parameters that there are.
    """
    for name, value in given.items():
        habit = HABITS.get(name)
        if habit is None:
            raise InvalidError(f"unknown argument{_meant(name, known)}: argument={name}")
        if not any(value is harmless or _equal(value, harmless) for harmless in habit.harmless):
            raise InvalidError(f"{name} has no meaning here: {habit.reason}: {name}={_short(value)}")


def _equal(value: object, harmless: object) -> bool:
    # Of the same type only: an array compares element by element.
    return type(value) is type(harmless) and value == harmless


def _meant(name: str, known: Iterable[str]) -> str:
    import difflib  # only needed to be helpful

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def step_or_text(resume: Any) -> Any:
    """A step as NumPy and torch have it, too."""
    return resume if isinstance(resume, (str, bool)) or not hasattr(resume, "__index__") else resume.__index__()


def refuse_without_job(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise InvalidError.of(f"this is about a job, and there is none: argument={name}", "job=NAME")


def count(name: str, value: int | None, least: int = 1, most: int = 2**32 - 1) -> Any:
    """As `_number`, or none."""
    return None if value is None else number(name, value, least, most)


def number(name: str, value: int, least: int = 1, most: int = 2**32 - 1) -> int:
    """A whole number within its limits, as torch, NumPy and Python have them."""
    try:
        whole = value.__index__()
    except AttributeError:
        raise InvalidError(f"{name} is a whole number: {name}={value!r}") from None
    most = LIMITS.get(name, most)
    if isinstance(value, bool) or not least <= whole <= most:
        raise InvalidError(f"{name} is {least} to {most}: {name}={value!r}")
    return whole


def seconds(name: str, value: float) -> float:
    """A time that can be waited for."""
    try:
        time = float(value)
    except (TypeError, ValueError):
        raise InvalidError(f"{name} is seconds, or 0 for none: {name}={value!r}") from None
    if not 0 <= time < 2**63:
        raise InvalidError(f"{name} is seconds, or 0 for none: {name}={value!r}")
    return time


def keep(last: int | None, every: int | None) -> tuple[int | None, int | None]:
    """Which checkpoints stay."""
    return count("keep_last", last, most=2**63), count("keep_every", every, most=2**63)


def parameters(kind: type) -> list[str]:
    """Names of what a class takes, but for those that it takes to refuse them."""
    import inspect

    return [name for name in inspect.signature(kind).parameters if name != "habits"]
