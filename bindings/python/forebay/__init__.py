"""Forebay: the exact data feeder in front of GPUs.

Kill a training at any moment, restart it on any number of ranks, and it continues with exactly the sample that comes
next. Importing this package brings in neither torch nor NumPy.
"""

from forebay._forebay import Tensor, __version__
from forebay._job import Checkpoint, latest
from forebay._samples import Batch, Samples, open  # noqa: A004 (what it is called)
from forebay._state import State
from forebay.ceiling import ceiling
from forebay.errors import (
    BusyError,
    ClosedError,
    CorruptError,
    Error,
    ExistsError,
    FencedError,
    InvalidError,
    IoError,
    NoSpaceError,
    NotFoundError,
    NotRetainedError,
    PermissionError,  # noqa: A004 (it is one)
    StateMismatchError,
    TimeoutError,  # noqa: A004 (it is one)
)
from forebay.loader import DataLoader, Transform

__all__ = [
    "Batch",
    "BusyError",
    "Checkpoint",
    "ClosedError",
    "CorruptError",
    "DataLoader",
    "Error",
    "ExistsError",
    "FencedError",
    "InvalidError",
    "IoError",
    "NoSpaceError",
    "NotFoundError",
    "NotRetainedError",
    "PermissionError",
    "Samples",
    "State",
    "StateMismatchError",
    "Tensor",
    "TimeoutError",
    "Transform",
    "__version__",
    "ceiling",
    "latest",
    "open",
]
