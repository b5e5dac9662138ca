"""Forebay: the exact data feeder in front of GPUs.

Kill a training at any moment, restart it on any number of ranks, and it continues with exactly the sample that comes
next. Importing this package brings in neither torch nor NumPy.
"""

from forebay._forebay import Tensor, __version__
from forebay.errors import (
    BusyError,
    ClosedError,
    CorruptError,
    Error,
    ExistsError,
    InvalidError,
    IoError,
    NoSpaceError,
    NotFoundError,
    NotRetainedError,
    PermissionError,  # noqa: A004 (it is one)
    StateMismatchError,
    TimeoutError,  # noqa: A004 (it is one)
)

__all__ = [
    "BusyError",
    "ClosedError",
    "CorruptError",
    "Error",
    "ExistsError",
    "InvalidError",
    "IoError",
    "NoSpaceError",
    "NotFoundError",
    "NotRetainedError",
    "PermissionError",
    "StateMismatchError",
    "Tensor",
    "TimeoutError",
    "__version__",
]
