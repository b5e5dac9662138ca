"""One rank of a training that `torchrun` starts, and starts again: the job's attempt is what torchrun says."""

import json
import os
import signal
import sys
from pathlib import Path

import forebay
import torch
import torch.distributed as dist
from trainers import plain, tiny

DIES_AT = 9
"""Step at which rank 1 dies in its first life, with a checkpoint behind it."""


def main(root: str, folder: Path) -> None:
    """Trains two epochs."""
    life, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    # A file per life, so that nothing is asked of the network but the loopback device.
    meeting = f"file://{folder}/meeting-{life}"
    dist.init_process_group("gloo", init_method=meeting, rank=int(rank), world_size=int(os.environ["WORLD_SIZE"]))
    model = tiny.model()
    loader = forebay.DataLoader("small", global_batch_size=24, root=root, shuffle=True, seed=11, job="elastic")
    step = 0
    if loader.resumed and loader.resumed.path:
        model.load_state_dict(torch.load(loader.resumed.path)["model"])
        step = loader.resumed.step
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with open(folder / f"ledger-{life}-{rank}", "w") as ledger:
        for epoch in range(loader.epoch, 2):
            loader.set_epoch(epoch)
            for batch in loader:
                optimizer.zero_grad()
                tiny.loss(model, batch).backward()
                optimizer.step()
                step += 1
                print(json.dumps({"step": step, "ids": batch["id"][batch["mask"]].tolist()}), file=ledger, flush=True)
                if (life, rank, step) == ("0", "1", DIES_AT):
                    os.kill(os.getpid(), signal.SIGKILL)
                path = folder / f"step-{step}.pt"
                if step % tiny.SAVE_EVERY == 0 and rank == "0":
                    plain.save({"model": model.module.state_dict()}, path)
                if step % tiny.SAVE_EVERY == 0:
                    loader.commit(step, path)
                    dist.barrier()  # So that the rank that dies has a checkpoint behind it.
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
