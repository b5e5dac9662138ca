"""What would go wrong without a word in some library, one function each. Each runs in a process of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import harness
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from forebay.lightning import Checkpointing
from harness import Order, ids_of
from torchdata.stateful_dataloader import StatefulDataLoader
from trainers import lightning
from variants import QUIET, fit

Wrapped = torch.utils.data.DataLoader
BATCH = 24


def made(root: Path, **settings: Any) -> forebay.DataLoader:
    return forebay.DataLoader("small", BATCH, root=root, **{"shuffle": True, "seed": 11, **settings})


def order_of(root: Path) -> Callable[..., list[list[int]]]:
    order = Order.of(root, "small", 3, shuffle=True, seed=11)

    def batches(epoch: int, first: int = 0, end: int = 14) -> list[list[int]]:
        return [order.step(epoch, step * BATCH, BATCH) for step in range(first, end)]

    return batches


def at(root: Path, epoch: int, batches: int) -> forebay.State:
    """The state after so many batches of an epoch."""
    with made(root) as loader:
        loader.set_epoch(epoch)
        harness.take(loader, batches)
        return loader.state_dict()


def quiet_fit(loader: Any, root: Path, epochs: int = 1, **settings: Any) -> list[list[int]]:
    seen: list[list[int]] = []
    trainer = pl.Trainer(max_epochs=epochs, enable_checkpointing=False, **{**QUIET, **settings})
    trainer.fit(lightning.Model(lambda batch: seen.append(ids_of(batch))), loader)
    return seen


def two_ranks(folder: Path) -> None:
    """As one of two, of which the other never shows: what is refused is refused before anything is exchanged."""
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=2)


# torch


def a_torch_loader_that_stacks_batches_is_refused(root: Path, folder: Path) -> None:
    with made(root) as loader, pytest.raises(forebay.InvalidError, match="batch_size=None"):
        next(iter(Wrapped(loader)))
    with made(root) as loader, pytest.raises(forebay.InvalidError, match="batch_size=None"):
        next(iter(StatefulDataLoader(loader)))


def a_stateful_loader_around_ours_resumes_at_every_place(root: Path, folder: Path) -> None:
    """meta-pytorch/data#1437: a state of an epoch's end comes back as an exhausted iterator."""
    order = order_of(root)
    for taken in (0, 1, 13, 14):
        with made(root) as loader, made(root) as other:
            wrapped = StatefulDataLoader(loader, batch_size=None)
            batches = iter(wrapped)
            assert [ids_of(next(batches)) for _ in range(taken)] == order(0, 0, taken)
            resumed = StatefulDataLoader(other, batch_size=None)
            resumed.load_state_dict(wrapped.state_dict())
            rest = [ids_of(batch) for batch in resumed]
            assert rest == (order(0, taken) if taken < 14 else order(1))
            assert [ids_of(batch) for batch in resumed] == order(2 if taken == 14 else 1)


def an_iterator_made_before_the_state_is_loaded_goes_on_at_the_state(root: Path, folder: Path) -> None:
    """huggingface/accelerate#2016: iter() before load_state_dict begins at step 0."""
    order = order_of(root)
    for transform in (None, lambda batch, rng: batch):
        with made(root, transform=transform) as loader:
            early = iter(loader)
            loader.load_state_dict(at(root, 1, 5))
            assert ids_of(next(early)) == order(1)[5]
            assert loader.state_dict()["cursor"] == {"epoch": 1, "n": 6 * BATCH}
            assert [ids_of(batch) for batch in early] == order(1, 6)


def iterators_that_nobody_drew_from_do_not_move_the_state(root: Path, folder: Path) -> None:
    """Lightning makes one to see whether it can, and then another."""
    order = order_of(root)
    with made(root) as loader:
        loader.load_state_dict(at(root, 1, 5))
        kept = [iter(loader), iter(loader)]
        assert [ids_of(batch) for batch in loader] == order(1, 5)
        with pytest.raises(forebay.ClosedError):
            next(kept[0])


def a_loop_that_begins_at_epoch_0_after_a_resume_is_told(root: Path, folder: Path) -> None:
    with made(root) as loader:
        loader.load_state_dict(at(root, 1, 5))
        for epoch in (0, 2):
            with pytest.raises(forebay.StateMismatchError, match=f"epoch={epoch} loaded_epoch=1"):
                loader.set_epoch(epoch)
        loader.set_epoch(1)
        assert [ids_of(batch) for batch in loader] == order_of(root)(1, 5)
        loader.set_epoch(0)
        loader.load_state_dict(at(root, 1, 14))
        loader.set_epoch(2)
        assert [ids_of(batch) for batch in loader] == order_of(root)(2)


def a_process_group_tells_the_rank_where_the_environment_does_not(root: Path, folder: Path) -> None:
    """Lightning's launcher sets WORLD_SIZE and no RANK; others set nothing, and all ranks would read everything."""
    two_ranks(folder)
    with forebay.DataLoader("small", global_batch_size=BATCH, root=root) as loader:
        assert len(next(iter(loader))["id"]) == BATCH // 2
        assert (loader.rank, loader.world_size) == (0, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        with made(root) as loader:
            assert loader.world_size == 2
        patch.setenv("WORLD_SIZE", "4")
        patch.setenv("RANK", "3")
        with made(root) as loader, pytest.raises(forebay.InvalidError, match="do not agree"):
            next(iter(loader))


# torch.distributed.checkpoint


def a_topic_that_has_grown_since_the_save_is_restored(root: Path, folder: Path) -> None:
    """The new loader's list of extents is longer than the one that was saved."""
    grown = folder / "root"
    harness.make_topic(grown, "grown", [60], partitions=3)
    with forebay.DataLoader("grown", 12, root=grown, shuffle=True) as loader:
        harness.take(loader, 2)
        dcp.save({"data": loader}, checkpoint_id=folder / "saved", no_dist=True)
        rest = loader.state_dict()
    harness.ingest(grown, "grown", [30, 30], first=60)
    more = folder / "more.npz"
    np.savez(more, id=np.arange(120, 121), x=harness.x_of([120], 4), label=np.ones(1, "i4"))
    harness.cli("ingest", more, "--topic", "grown", "--root", grown, "--default", "label=0", "-q")
    with forebay.DataLoader("grown", 12, root=grown, shuffle=True) as loader:
        assert len(loader) == 11
        assert "label" in loader.schema
        dcp.load({"data": loader}, checkpoint_id=folder / "saved", no_dist=True)
        assert loader.state_dict() == rest
        assert len(list(loader)) == 3
        assert len(loader) == 5


# Lightning


def every_limited_epoch_has_an_order_of_its_own(root: Path, folder: Path) -> None:
    """limit_train_batches breaks an epoch off, and iterating again would begin it again."""
    order = order_of(root)
    with made(root) as loader:
        assert quiet_fit(loader, root, 3, limit_train_batches=4) == order(0, 0, 4) + order(1, 0, 4) + order(2, 0, 4)


def a_state_loaded_by_oneself_is_not_lost_to_lightnings_first_look(root: Path, folder: Path) -> None:
    """Lightning calls iter() once before it begins."""
    with made(root) as loader:
        loader.load_state_dict(at(root, 0, 5))
        assert quiet_fit(loader, root, limit_train_batches=9) == order_of(root)(0, 5)


def a_trainer_at_another_epoch_than_the_state_is_told(root: Path, folder: Path) -> None:
    with made(root) as loader:
        loader.load_state_dict(at(root, 1, 5))
        with pytest.raises(forebay.StateMismatchError, match="epoch=0 loaded_epoch=1"):
            quiet_fit(loader, root, 3)


def a_trainer_without_the_jobs_checkpoint_is_told(root: Path, folder: Path) -> None:
    """The model would begin anew, and the data in the middle."""
    with made(root, job="told") as loader:
        harness.take(loader, 5)
        loader.commit(5)
    with made(root, job="told") as loader, pytest.raises(forebay.StateMismatchError, match=r"step=5.*ckpt_path"):
        quiet_fit(loader, root, callbacks=[Checkpointing(loader)])


def overfitting_on_shuffled_batches_is_refused(root: Path, folder: Path) -> None:
    with made(root) as loader, pytest.raises(forebay.InvalidError, match="overfit_batches=2"):
        quiet_fit(loader, root, overfit_batches=2, callbacks=[Checkpointing(loader)])
    with made(root, shuffle=False) as loader:
        seen = quiet_fit(loader, root, 2, overfit_batches=2, callbacks=[Checkpointing(loader)])
        assert seen[:2] == seen[2:]


def a_checkpoint_between_two_optimizer_steps_warns(root: Path, folder: Path) -> None:
    """After a resume ModelCheckpoint saves the step it came from once more, a batch later."""
    fit(made(root), folder, 1, lambda batch: None, accumulate_grad_batches=2, limit_train_batches=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for ours in (True, False):
            trained: list[Any] = []
            (folder / "last.ckpt").unlink()
            fit(made(root), folder, 1, trained.append, accumulate_grad_batches=2, max_steps=2)
            fit(made(root), folder, 1, trained.append, accumulate_grad_batches=2, max_steps=4, ours=ours)
            told = [one for one in caught if "gradients accumulate" in str(one.message)]
            assert len(trained) == 8
            assert bool(told) != ours, [str(one.message) for one in caught]


def lightnings_lost_count_is_told_where_it_cannot_be_mended(root: Path, folder: Path) -> None:
    """With no length, batches of the next epoch are in Lightning's hands before it says which epoch it means."""

    def train(batches: int, **settings: Any) -> int:
        left = [batches]

        def after_step(batch: Any) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        with pytest.raises(SystemExit) if batches else warnings.catch_warnings():
            fit(made(root), folder, 3, after_step, length=False, **settings)
        return left[0]

    train(15)
    train(14)
    with pytest.raises(forebay.StateMismatchError, match="epoch=1 loaded_epoch=2"):
        fit(made(root), folder, 3, lambda batch: None, length=False)


def files_written_in_a_thread_are_committed_when_they_are_there(root: Path, folder: Path) -> None:
    from pytorch_lightning.plugins.io import AsyncCheckpointIO

    with made(root, job="thread") as loader:
        fit(loader, folder, 1, lambda batch: None, ours=True, saving=EVERY_TWO, plugins=[AsyncCheckpointIO()])
    last = forebay.latest("thread", root=root)
    assert last is not None
    assert last.path is not None
    saved = torch.load(last.path, weights_only=False)
    assert (last.step, saved["global_step"]) == (14, 14)
    assert last.state == saved["forebay"]["data"]


EVERY_TWO = {"every_n_train_steps": 2, "save_top_k": -1}


# Accelerate


def accelerate_that_deals_batches_out_is_refused(root: Path, folder: Path) -> None:
    """Only its main process reads, so the other ranks' parts of each step would never be trained on."""
    os.environ.update(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    two_ranks(folder)
    for dispatch, says in ((True, "main process only"), (False, "some of these batches only")):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
        assert accelerator.num_processes == 2
        with made(root, rank=0, world_size=2) as loader, pytest.raises(forebay.InvalidError, match=says):
            next(iter(accelerator.prepare(Wrapped(loader, batch_size=None))))


def accelerate_that_counts_epochs_from_0_is_told(root: Path, folder: Path) -> None:
    for stateful in (False, True):
        config = DataLoaderConfiguration(use_stateful_dataloader=stateful)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        with made(root) as loader, made(root) as other:
            before = accelerator.prepare(Wrapped(loader, batch_size=None))
            before.set_epoch(1)
            batches = iter(before)
            next(batches)
            after = accelerator.prepare(Wrapped(other, batch_size=None))
            if stateful:
                after.load_state_dict(before.state_dict())
            else:
                other.load_state_dict(loader.state_dict())
            with pytest.raises(forebay.StateMismatchError, match="epoch=0 loaded_epoch=1"):
                next(iter(after))
            del batches


def skipping_batches_of_a_resumed_loader_is_refused(root: Path, folder: Path) -> None:
    """They would be skipped twice: the state says already where to go on."""
    accelerator = Accelerator(cpu=True)
    with made(root) as loader:
        prepared = accelerator.prepare(Wrapped(loader, batch_size=None))
        loader.load_state_dict(at(root, 0, 5))
        with pytest.raises(forebay.InvalidError, match="skip 5 batches"):
            next(iter(skip_first_batches(prepared, 5)))
    with made(root) as loader:
        prepared = accelerator.prepare(Wrapped(loader, batch_size=None))
        assert ids_of(next(iter(skip_first_batches(prepared, 5)))) == order_of(root)(0)[5]


def accelerates_passed_through_loader_is_ours(root: Path, folder: Path) -> None:
    with made(root) as loader:
        assert Accelerator(cpu=True).prepare(loader) is loader
