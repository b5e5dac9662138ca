"""A training program: an ordinary loop, except that it may be killed at any moment and started again.

    python train.py digits --root data --run runs/mine

Started a second time with the same --run it goes on from its last checkpoint, with the very next sample. A checkpoint
is two files: the model's, and `latest.json`, which names it and holds the loader's state beside it. The second is
replaced in one go, after the first is on disk, so that there is a whole checkpoint at every moment.

Besides, the run folder gets a ledger for each start (ledger-1.jsonl, ledger-2.jsonl, ...) and at the end result.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import forebay
from ledger import Ledger

SEED = 7


@dataclass(frozen=True)
class Job:
    """What is trained, on which topics, and how often it is saved."""

    model: str
    topic: str
    test_topic: str
    batch: int
    save_every: int


# An epoch of the digits has 45 steps: saved every 11, a checkpoint nearly always lies inside one.
JOBS = {
    "digits": Job("Digits", "digits", "digits-test", batch=32, save_every=11),
    "text": Job("Text", "text", "text-test", batch=16, save_every=10),
}


class Model(Protocol):
    """What the loop needs of a model; models_torch.py and models_numpy.py have two each."""

    name: str
    framework: str
    suffix: str

    def train(self, batch: Any) -> float:
        """Learns from a batch and returns its loss."""

    def score(self, batch: Any) -> tuple[float, int]:
        """A sum over a batch, and how many were added up."""

    def save(self, path: Path) -> None:
        """Writes all that training goes on from."""

    def load(self, path: Path) -> None:
        """Takes what `save` wrote."""


def main() -> None:
    """See the module."""
    arguments = parse()
    job, run = JOBS[arguments.job], arguments.run
    run.mkdir(parents=True, exist_ok=True)
    model = make_model(job.model, arguments.framework)
    loader = forebay.DataLoader(
        job.topic,
        root=arguments.root,
        global_batch_size=job.batch,
        rank=0,
        world_size=1,
        shuffle=True,
        seed=SEED,
        output=arguments.framework,
    )
    test = forebay.DataLoader(job.test_topic, batch_size=256, root=arguments.root, output=arguments.framework)

    step = resume(run, model, loader)
    result: dict[str, Any] = {"model": model.name, "framework": model.framework, "batch": job.batch}
    result |= {"samples_per_epoch": loader.samples, "steps_per_epoch": len(loader), "first_step": step + 1}
    result["before"] = mean_score(model, test)
    samples, started = 0, time.perf_counter()
    with Ledger(run / f"ledger-{len(list(run.glob('ledger-*.jsonl'))) + 1}.jsonl") as ledger:
        while step < arguments.steps:
            for batch in loader:
                loss = model.train(batch)
                step += 1
                ids = batch["id"].tolist()
                samples += len(ids)
                ledger.write(step, ids, loss)
                if step % job.save_every == 0:
                    save(run, model, loader, step)
                if step == arguments.steps:
                    break
    result |= {"steps": step, "samples": samples, "wall_s": time.perf_counter() - started}
    result["stall_s"] = loader.stats()["stall_ns"] / 1e9
    result["after"] = mean_score(model, test)
    replace(run / "result.json", result)
    print(f"{step} steps, score on {job.test_topic}: {result['before']:.3f} before, {result['after']:.3f} after")
    loader.close()
    test.close()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--root", required=True, help="folder of the topics")
    parser.add_argument("--run", type=Path, required=True, help="folder of this run; goes on from what is there")
    parser.add_argument("--steps", type=int, default=400, help="batches to train on, over all starts (default: 400)")
    parser.add_argument("--framework", choices=("torch", "numpy"), default="torch")
    return parser.parse_args()


def make_model(name: str, framework: str) -> Model:
    """The model in this framework, which only now is imported."""
    if framework == "torch":
        import models_torch as models
    else:
        # As for torch: products as small as these lose time with more threads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        import models_numpy as models  # type: ignore[no-redef]
    model: Model = getattr(models, name)(SEED)
    return model


def resume(run: Path, model: Model, loader: forebay.DataLoader) -> int:
    """Takes the last checkpoint, if there is one, and returns its step."""
    try:
        latest = json.loads((run / "latest.json").read_text())
    except FileNotFoundError:
        return 0
    model.load(run / latest["model"])
    loader.load_state_dict(latest["loader"])
    print(f"goes on after step {latest['step']}")
    return int(latest["step"])


def save(run: Path, model: Model, loader: forebay.DataLoader, step: int) -> None:
    """Makes a checkpoint: model and position in the data, one bound to the other."""
    file = run / f"model-{step}{model.suffix}"
    model.save(file)
    sync(file)
    replace(run / "latest.json", {"step": step, "model": file.name, "loader": loader.state_dict()})
    for old in run.glob(f"model-*{model.suffix}"):
        if old != file:
            old.unlink()


def replace(file: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file so that at every moment either the old or the new one is there, whole."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    sync(fresh)
    fresh.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Returns when a file's or folder's content is on disk."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def mean_score(model: Model, batches: Iterable[Any]) -> float:
    """The model's score over all batches."""
    sums, counts = zip(*(model.score(batch) for batch in batches), strict=True)
    return float(sum(sums) / sum(counts))


if __name__ == "__main__":
    main()
