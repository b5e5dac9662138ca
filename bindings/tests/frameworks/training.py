"""Trainings with real libraries that are killed, as processes, and started again.

Importing the libraries takes longer than all that is tested. So one server process imports them, runs nothing, and
every attempt of a training is a fork of it: a process of its own that really dies by SIGKILL.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import forebay
from harness import Job, ids_of

EXAMPLES = Path(__file__).parents[3] / "scripts" / "examples"
TIMEOUT_S = 250
"""Long enough for a loaded machine that imports the libraries anew."""
KILLED = -signal.SIGKILL


@cache
def server() -> Any:
    """Where attempts are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["numpy", "torch.utils.data", "torch.distributed.checkpoint", "accelerate", "pytorch_lightning", "forebay"]
    )
    return context


@dataclass
class Training(Job):
    """A training by `train(loader, folder, epochs, after_step, **options)`, killed and started again."""

    module: str = ""
    """With `:name` behind it if another function than `train` is meant."""
    options: dict[str, Any] = field(default_factory=dict)
    weights: Any = None
    """Of the model at the end, as rank 0 has it."""

    def attempt(self, world: int = 1, batch: int = 24, *, die_after: int | None = None) -> bool:
        """Starts all ranks. True if they came to the end; rank 0 dies after that many batches, if told, with all."""
        self.attempts += 1
        ranks = []
        for rank in range(world):
            orders = {
                "module": self.module,
                "options": self.options,
                "root": str(self.root),
                "topic": self.topic,
                "settings": self.settings,
                "rank": rank,
                "world": world,
                "batch": batch,
                "epochs": self.epochs,
                "folder": str(self.folder),
                "attempt": self.attempts,
                "ledger": str(self._ledger(rank)),
                "die_after": die_after,
            }
            ranks.append(server().Process(target=run, args=(orders,)))
        for process in ranks:
            process.start()
        try:
            for process in ranks:
                process.join(TIMEOUT_S)
                if process.exitcode != 0:
                    break  # The others wait for it.
        finally:
            for process in ranks:
                process.kill()
                process.join()
        codes = [process.exitcode for process in ranks]
        said = [path.read_text() for path in sorted(self.folder.glob(f"error-{self.attempts}-*"))]
        assert codes == [0] * world or codes[0] == KILLED, (codes, *said)
        self._collect(world)
        self.last_batch = batch
        if codes[0] == 0:
            self.weights = json.loads((self.folder / "weights.json").read_text())
        return not any(codes)


def call(module: str, name: str, root: Path, folder: Path) -> None:
    """Runs one function in a process of its own; fails as it does."""
    process = server().Process(target=_call, args=(module, name, str(root), str(folder)))
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    process.join()
    error = folder / "error"
    assert process.exitcode == 0, error.read_text() if error.exists() else process.exitcode


def _call(module: str, name: str, root: str, folder: str) -> None:
    try:
        _prepare(root)
        getattr(importlib.import_module(module), name)(Path(root), Path(folder))
    except BaseException:
        Path(folder, "error").write_text(traceback.format_exc())
        raise


class Ledger:
    """What a rank notes after each batch, and where it dies."""

    def __init__(self, orders: dict[str, Any], loader: forebay.DataLoader) -> None:
        self._file = os.open(orders["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._left = orders["die_after"] if orders["rank"] == 0 else None
        self._loader = loader
        self._begun = False

    def __call__(self, batch: dict[str, Any]) -> None:
        """Notes a batch that was trained on. The state at this moment says where it came from."""
        cursor = self._loader.state_dict()["cursor"]
        if not self._begun:
            self._begun = True
            whole = self._loader._batch_size or self._loader._global_batch_size or 0
            self._note({"resumed": [cursor["epoch"], (cursor["n"] - 1) // whole * whole]})
        self._note({"epoch": cursor["epoch"], "to": cursor["n"], "ids": ids_of(batch)})
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def _prepare(root: str) -> None:
    import torch

    os.environ["FOREBAY_ROOT"] = root
    warnings.simplefilter("ignore")
    sys.path[:0] = [str(EXAMPLES), str(Path(__file__).parent)]
    torch.set_num_threads(1)


def run(orders: dict[str, Any]) -> None:
    """One rank of one attempt."""
    try:
        _run(orders)
    except BaseException:
        error = Path(orders["folder"], f"error-{orders['attempt']}-{orders['rank']}")
        error.write_text(traceback.format_exc())
        raise


def _run(orders: dict[str, Any]) -> None:
    import torch.distributed as dist

    _prepare(orders["root"])
    rank, world, folder = orders["rank"], orders["world"], Path(orders["folder"])
    if world > 1:
        # Libraries ask where the others are, and find that this is settled.
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", GLOO_SOCKET_IFNAME="lo")
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        store = dist.FileStore(str(folder / f"store-{orders['attempt']}"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    settings = orders["settings"]
    with forebay.DataLoader(orders["topic"], root=orders["root"], global_batch_size=orders["batch"], **settings) as it:
        module, _, name = orders["module"].partition(":")
        train = getattr(importlib.import_module(module), name or "train")
        model = train(it, folder, orders["epochs"], Ledger(orders, it), **orders["options"])
    if rank == 0:
        weights = [parameter.detach().flatten().tolist() for parameter in model.parameters()]
        (folder / "weights.json").write_text(json.dumps(weights))
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
