"""Errors of the compiled half arrive as the classes that people catch."""

import builtins
import pickle

import forebay
import pytest
from forebay import _forebay, errors

CAUGHT_BY: dict[str, type[Exception]] = {
    "Invalid": ValueError,
    "NotFound": FileNotFoundError,
    "Exists": FileExistsError,
    "Permission": builtins.PermissionError,
    "Busy": BlockingIOError,
    "Corrupt": ValueError,
    "StateMismatch": ValueError,
    "NotRetained": LookupError,
    "NoSpace": OSError,
    "Timeout": builtins.TimeoutError,
    "Closed": RuntimeError,
    "Io": OSError,
    "Fenced": RuntimeError,
}


def test_every_kind_is_known_here() -> None:
    assert set(_forebay._testing_kinds()) == set(CAUGHT_BY)
    assert {f"{kind}Error" for kind in CAUGHT_BY} | {"Error"} == set(errors.__all__)
    assert set(errors.__all__) <= set(forebay.__all__)


@pytest.mark.parametrize("kind", CAUGHT_BY)
def test_a_kind_raises_its_class(kind: str) -> None:
    with pytest.raises(CAUGHT_BY[kind]) as caught:
        _forebay._testing_raise(kind, "no good: topic=a", "another topic")
    error = caught.value
    assert type(error) is getattr(forebay, f"{kind}Error")
    assert isinstance(error, forebay.Error)
    assert str(error) == "no good: topic=a; try: another topic"
    assert error.hint == "another topic"
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 (made here)
    assert (type(copy), str(copy), copy.hint) == (type(error), str(error), error.hint)


def test_an_error_without_a_next_step() -> None:
    with pytest.raises(forebay.ClosedError) as caught:
        _forebay._testing_raise("Closed", "closed")
    assert (str(caught.value), caught.value.hint) == ("closed", None)
