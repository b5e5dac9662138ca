"""The errors that Forebay raises.

Each derives from `Error`, and from the built-in that people would catch. `InvalidError` stands for the kind `Invalid`
of the engine, and so on: the compiled half finds the class by that name. The text is one line: what is wrong, with
values as `key=value`, then the causes, then `; try:` and the next step where there is one, which is also in `hint`.
"""

import builtins
from typing import TypeVar

__all__ = [
    "BusyError",
    "ClosedError",
    "CorruptError",
    "Error",
    "ExistsError",
    "FencedError",
    "InvalidError",
    "IoError",
    "NoSpaceError",
    "NotFoundError",
    "NotRetainedError",
    "PermissionError",
    "StateMismatchError",
    "TimeoutError",
]


E = TypeVar("E", bound="Error")


class Error(Exception):
    """What all errors of Forebay are."""

    hint: str | None = None
    """The next step, if there is one to name."""

    @classmethod
    def of(cls: type[E], message: str, hint: str | None = None) -> E:
        """An error with that message, and with the next step at its end."""
        error = cls(message if hint is None else f"{message}; try: {hint}")
        error.hint = hint
        return error


class InvalidError(Error, ValueError):
    """An argument, a name or a setting is wrong: change it."""


class NotFoundError(Error, FileNotFoundError):
    """The topic, file or column asked for does not exist."""


class ExistsError(Error, FileExistsError):
    """The thing to be made is there already."""


class PermissionError(Error, builtins.PermissionError):  # noqa: A001 (it is one)
    """The system refuses access."""


class BusyError(Error, BlockingIOError):
    """Somebody else holds it: a topic open for writing elsewhere."""


class CorruptError(Error, ValueError):
    """Data on disk are damaged; the message names file, block and offset."""


class StateMismatchError(Error, ValueError):
    """A state does not belong to this topic, plan or batch."""


class NotRetainedError(Error, LookupError):
    """Data that a state or a version needs is no longer retained."""


class NoSpaceError(Error, OSError):
    """No room: disk full, memory limit."""


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 (it is one)
    """Too slow: a time-out passed."""


class ClosedError(Error, RuntimeError):
    """The loader or writer is closed, or belongs to another process."""


class IoError(Error, OSError):
    """A read or write failed."""


class FencedError(Error, RuntimeError):
    """A later run of the job has taken over, or it was rewound: this process is stale and must stop."""
