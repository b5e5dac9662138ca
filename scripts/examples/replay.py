"""One of several ranks that go on from a checkpoint: reads, does not train, and writes down which samples it got.

    python replay.py digits --root data --latest runs/mine/latest.json --rank 0 --world-size 2 --steps 400 --ledger FILE

It shows that a checkpoint of one process is continued by any number of them: the ranks' parts of a step, put one after
the other, are the step of a single process. Each rank computes its part by itself; none talks to another.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import forebay
from ledger import Ledger
from train import JOBS, SEED


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--root", required=True, help="folder of the topics")
    parser.add_argument("--latest", type=Path, required=True, help="the checkpoint to go on from")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="the last step")
    parser.add_argument("--ledger", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()

    latest = json.loads(arguments.latest.read_text())
    job, step = JOBS[arguments.job], latest["step"]
    loader = forebay.DataLoader(
        job.topic,
        root=arguments.root,
        global_batch_size=job.batch,
        rank=arguments.rank,
        world_size=arguments.world_size,
        shuffle=True,
        seed=SEED,
        columns=["id"],
        output="numpy",
    )
    loader.load_state_dict(latest["loader"])
    with loader, Ledger(arguments.ledger) as ledger:
        while step < arguments.steps:
            for batch in loader:
                step += 1
                # Where a short last step does not divide evenly, rows repeated for equal shapes are False in the mask.
                ids = batch["id"][batch["mask"]] if "mask" in batch else batch["id"]
                ledger.write(step, ids.tolist())
                if step == arguments.steps:
                    break


if __name__ == "__main__":
    main()
