"""States as Python has them: plain data with the same keys at every state of a loader.

Checkpoint libraries flatten nested containers: `torch.distributed.checkpoint` makes an entry of every number in a list
of dicts, and finds only entries that the object being restored has as well. A topic's list of extents may be longer at
the restart than it was at the save, so whatever is a list travels as one JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forebay.errors import InvalidError

State = dict[str, Any]
"""A loader's state: plain data, a few hundred bytes, the same on every rank."""

FIRST_SCHEMA = 1
"""Number of a schema that the engine does not write; a checkpoint library would miss it once there is a second."""
_LISTS = ("windows",)
"""Entries whose length may differ between two states of one loader."""


def pack(text: str) -> State:
    """The state that the engine wrote as JSON."""
    state: State = json.loads(text)
    state.setdefault("schema", FIRST_SCHEMA)
    for name in _LISTS:
        if name in state:
            state[name] = json.dumps(state[name], separators=(",", ":"))
    return state


def unpack(state: Mapping[str, Any]) -> str:
    """The engine's JSON of a state, which may have its lists as lists, too."""
    try:
        plain = dict(state)
        for name in _LISTS:
            if isinstance(plain.get(name), str):
                plain[name] = json.loads(plain[name])
        return json.dumps(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(f"not a state of a forebay loader: {error}") from error
