"""Jobs: when a loader's run begins, and the name of its attempt.

A run begins when its cursor is first needed, not when the loader is made: it starts at a state loaded before that.
Rank 0 begins it and commits; the other ranks wait for the run record of their own attempt. Loading a state later begins
another run. What is stored and what is refused is settled in the compiled half (`_forebay.Job`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay import _forebay, _state
from forebay.errors import InvalidError

if TYPE_CHECKING:
    from forebay._ranks import Ranks

START_TIMEOUT_S = 600.0
"""How long ranks wait for rank 0 to begin the run, where no `timeout` says it: models take their time to load."""

_logger = logging.getLogger("forebay")


class Checkpoint(NamedTuple):
    """A checkpoint of a job."""

    step: int
    """The training's own number."""
    path: str | None
    """The model's file, if one was named."""
    state: dict[str, Any]
    """The loader's state: the data that comes next."""


def folder_of(root: str | os.PathLike[str] | None) -> str:
    """The folder of the topics: what the caller says, else FOREBAY_ROOT, else ./forebay-data."""
    folder: object = None
    with contextlib.suppress(TypeError):
        folder = os.fspath((os.environ.get("FOREBAY_ROOT") or "forebay-data") if root is None else root)
    if not isinstance(folder, str):
        raise InvalidError(f"root is a folder, as text or a path: root={root!r}")
    return folder


def latest(job: str, root: str | os.PathLike[str] | None = None) -> Checkpoint | None:
    """The job's newest checkpoint, as `(step, path, state)`: load the model from that path. None if there is none.

    It is the one that `DataLoader(..., job=job)` goes on from. Checkpoints whose file is gone are passed over with a
    warning (URLs are not looked at), as are those that a rewind abandoned.
    """
    if not isinstance(job, str):
        raise InvalidError(f"job is a text: job={job!r}")
    found, passed_over = _forebay.job_latest(folder_of(root), job)
    for step, path in passed_over:
        _logger.warning("a checkpoint is passed over because its file is gone: job=%s step=%s path=%s", job, step, path)
    return _checkpoint(found)


def _checkpoint(found: tuple[int, str | None, str] | None) -> Checkpoint | None:
    return None if found is None else Checkpoint(found[0], found[1], _state.pack(found[2]))


def attempt_of(environment: Mapping[str, str]) -> str | None:
    """The name that launchers give to one start of all ranks; None where nothing tells.

    What several launchers say is put together: a scheduler may start a launcher again that counts from 0.
    """
    parts = []
    if run_id := environment.get("TORCHELASTIC_RUN_ID"):
        parts.append(f"torchelastic-{run_id}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}")
    elif namespace := environment.get("PMIX_NAMESPACE"):
        parts.append(f"pmix-{namespace}")
    if job_id := environment.get("SLURM_JOB_ID"):
        step = environment.get("SLURM_STEP_ID", "")
        parts.append(f"slurm-{job_id}-{environment.get('SLURM_RESTART_COUNT', '0')}-{step}".rstrip("-"))
    return "-".join(parts) or None


def local_path(path: str | os.PathLike[str]) -> str:
    """A path as it is stored: absolute, so that it means the same wherever a run starts. URLs stay as they are."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise InvalidError(f"path is text, or None where there is no file: path={path!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"path is text in UTF-8, and a record cannot hold another: path={path!r}") from error
    return text if "://" in text else os.path.abspath(text)


class Job:
    """One loader's part in its job."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        name: str,
        resume: str | int,
        attempt: str | None,
        revision: str | None,
        keep: tuple[int | None, int | None],
    ) -> None:
        for what, text in (("job", name), ("attempt", attempt), ("revision", revision)):
            if not (isinstance(text, str) or (text is None and what != "job")):
                raise InvalidError(f"{what} is a text: {what}={text!r}")
        if isinstance(resume, bool) or not isinstance(resume, (str, int)) or (isinstance(resume, int) and resume < 0):
            raise InvalidError(f"resume is 'latest', 'never', a step or a tag: resume={resume!r}")
        self.name = name
        self._attempt = attempt_of(os.environ) if attempt is None else attempt
        self._settings: dict[str, Any] = {
            "root": folder_of(root),
            "job": name,
            "resume": str(resume),
            "revision": revision,
            "keep_last": keep[0],
            "keep_every": keep[1],
        }
        # What is wrong with the arguments is to be said now; who this is among the ranks shows later.
        self._native = self._make(self._attempt)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._ranks: tuple[int, int] | None = None
        self._explicit = False
        self._batches = 0

    def _make(self, attempt: str | None) -> _forebay.Job:
        return _forebay.Job(attempt=attempt, **self._settings)

    def begin(self, loader: _forebay.Loader, ranks: Ranks, timeout: float) -> bool:
        """Begins the run, or joins it, and puts the loader where it starts. False if that was done already."""
        if os.getpid() != self._pid:
            return False  # The loader says what is wrong.
        place = (ranks.rank, ranks.world_size)
        with self._lock:
            if self._ranks is not None and self._ranks != place:
                raise InvalidError.of(
                    "the rank changed after the run of the job had begun: "
                    f"job={self.name} rank={place[0]} world_size={place[1]} before={self._ranks}",
                    "rank= and world_size=, or make the loader once RANK and WORLD_SIZE are set",
                )
            if self._ranks is not None and not self._explicit:
                return False
            if ranks.world_size == 1 and self._attempt is None:
                self._attempt = f"single-{uuid.uuid4()}"
                self._native = self._make(self._attempt)
            if ranks.rank == 0:
                self._native.lead(loader, self._explicit)
            else:
                self._native.follow(loader, self._explicit, ranks.rank, timeout or START_TIMEOUT_S)
            self._ranks, self._explicit = place, False
            self._batches = loader.stats()["batches"]
        self.log()
        return True

    def check(self) -> None:
        """Raises once a later run has taken over."""
        self._native.check()

    def loaded(self, loader: _forebay.Loader) -> None:
        """A state was loaded: what begins, or begins anew, begins there."""
        with self._lock:
            is_at_start = self._ranks is not None and loader.stats()["batches"] == self._batches
            # Frameworks ask for the state before they load it, which begins the run; loading where it stands is none.
            self._explicit = not (is_at_start and loader.state() == self._native.start_state)

    def commit(
        self,
        step: int,
        path: str | None,
        tag: str | None,
        state: str,
        keep: tuple[int | None, int | None],
    ) -> None:
        """Makes a checkpoint durable, on rank 0; elsewhere it only looks whether the run goes on."""
        if self._ranks is not None and self._ranks[0] != 0:
            self._native.check()
            return
        if path is not None and "://" not in path and not os.path.exists(path):
            _logger.warning("commit comes after the model is written, and there is no such file: path=%s", path)
        self._native.commit(step, path, tag, state, *keep)
        self.log()

    @property
    def started_at(self) -> Checkpoint | None:
        """The checkpoint that the run started from."""
        return _checkpoint(self._native.started_at)

    def log(self) -> None:
        """Says what there is to know."""
        for line in self._native.take_notices():
            _logger.warning("%s", line)
