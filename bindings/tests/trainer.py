"""A training, as far as the data are concerned: a process that consumes batches, notes them and saves its state.

Run as a program by `harness.Job`, with its orders as JSON in the first argument. It needs neither torch nor NumPy.
After each step it appends a line to its ledger and tells its launcher, whose answer stands for the all-reduce of a real
training: no rank is a step ahead of another. Rank 0 then saves the state as checkpoints are saved: a file beside,
fsync, rename; a job commits that file. `die` names a step and a moment at which the process kills itself.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any

import forebay


def integers(tensor: forebay.Tensor, code: str) -> list[int]:
    """The values of a tensor, without any framework."""
    interface = tensor.__array_interface__
    data = ctypes.string_at(interface["data"][0], tensor.nbytes)
    return list(struct.unpack(f"<{tensor.nbytes // struct.calcsize(code)}{code}", data))


class Trainer:
    """One rank's process."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.rank = orders["rank"]
        self.ledger = os.open(orders["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.steps = 0
        job = {"job": orders["job"], "attempt": orders["attempt"]} if orders["job"] else {}
        self.loader = forebay.DataLoader(
            orders["topic"],
            root=orders["root"],
            rank=self.rank,
            world_size=orders["world"],
            global_batch_size=orders["batch"],
            output="dlpack",
            **orders["settings"],
            **job,
        )
        self.before = 0

    def run(self) -> None:
        """Trains from the saved state, or from the start, to the end of the last epoch."""
        saved = self.orders["state"]
        if self.orders["job"]:
            if (checkpoint := self.loader.resumed) is not None:
                self.before = checkpoint.step
                assert checkpoint.path is not None
                with open(checkpoint.path) as file:
                    assert json.load(file) == checkpoint.state == self.loader.state_dict(), "model and data differ"
        elif os.path.exists(saved):
            with open(saved) as file:
                state = json.load(file)
            self.loader.load_state_dict(state)
            assert self.loader.state_dict() == state
        cursor = self.loader.state_dict()["cursor"]
        self.note({"resumed": [cursor["epoch"], cursor["n"]]})
        for epoch in self.epochs():
            for batch in self.loader:
                self.step(epoch, batch)
        self.tell("end")

    def epochs(self) -> Iterator[int]:
        """The epochs to go, as a training loop that names them counts, or as one that just iterates again."""
        last = self.orders["epochs"]
        if self.orders["names_epochs"]:
            for epoch in range(self.loader.epoch, last):
                self.loader.set_epoch(epoch)
                yield epoch
            return
        while True:
            cursor = self.loader.state_dict()["cursor"]
            left = self.loader.samples - cursor["n"]
            ended = left == 0 or (self.orders["settings"].get("drop_last") and left < self.orders["batch"])
            epoch = cursor["epoch"] + (1 if ended else 0)
            if epoch >= last:
                return
            yield epoch

    def step(self, epoch: int, batch: dict[str, forebay.Tensor]) -> None:
        """Consumes one batch."""
        ids = integers(batch["id"], "q")
        if "mask" in batch:
            ids = [one for one, there in zip(ids, integers(batch["mask"], "b"), strict=True) if there]
        cursor = self.loader.state_dict()["cursor"]
        assert cursor["epoch"] == epoch
        self.die("stepped")
        self.note({"epoch": epoch, "to": cursor["n"], "ids": ids})
        self.steps += 1
        self.die("noted")
        self.tell("step")
        if self.rank == 0 and self.steps % self.orders["save_every"] == 0:
            self.save()

    def save(self) -> None:
        """Makes the state durable, whole or not at all."""
        path = self.orders["state"]
        if self.orders["job"]:
            path += f"-{self.before + self.steps}"
        text = json.dumps(self.loader.state_dict()).encode()
        with open(path + ".tmp", "wb") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            self.die("saving")
            file.write(text[len(text) // 2 :])
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)
        if self.orders["job"]:
            self.die("written")
            self.loader.commit(self.before + self.steps, path)
        self.die("saved")

    def note(self, line: dict[str, Any]) -> None:
        """Appends a line to the ledger in one piece."""
        os.write(self.ledger, json.dumps(line).encode() + b"\n")

    def tell(self, word: str) -> None:
        """Tells the launcher, and waits for its leave to go on."""
        sys.stdout.write(word + "\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            sys.exit("the launcher is gone")

    def die(self, moment: str) -> None:
        """Ends like a machine that loses power, if that was ordered for now."""
        if self.orders["die"] == [self.steps, moment]:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # The launcher takes every word there for an error.
    Trainer(json.loads(sys.argv[1])).run()
