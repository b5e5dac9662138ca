"""What users of other loaders have lost data, days and sleep over, each under the name of its symptom.

The reports, by theme, and the test that keeps each away from here (in this module, unless it is named with its own):

A. A resume that is not exact
   meta-pytorch/data#1437                 test_a_state_at_an_epochs_end_makes_no_epoch_disappear,
                                          test_exact: test_killed_around_the_end_of_an_epoch
   verl#7401                              test_a_resumed_run_trains_all_the_steps_that_were_planned
   KempnerForge#57                        test_the_second_resume_of_an_epoch_counts_on
   huggingface/datasets#8308              test_the_state_moves_with_every_batch_after_a_resume
   huggingface/datasets#7901, PR 8408     test_no_sample_is_lost_or_repeated_wherever_a_shuffled_epoch_is_cut
   huggingface/datasets#7447              test_epochs_after_a_resume_are_whole
   huggingface/datasets#6673,             test_each_epoch_has_an_order_of_its_own_and_every_run_has_the_same
     pytorch#73603, VeOmni PR 940
   mosaicml/streaming#437, #880           test_a_loaded_state_takes_effect, test_loader:
                                          test_a_state_that_cannot_be_honoured_is_refused_and_changes_nothing
   litData#316, #331, #363, #24, #770     test_a_state_may_be_loaded_at_any_time
   tensorflow#63079                       not yet: checkpoints kept by forebay itself
   Megatron-Bridge#3993 and its PRs       not yet: the same
   torchtitan#811, Megatron-Bridge#5637   test_any_number_of_ranks_goes_on_for_any_other
   SimpleTuner PR 2986, Megatron PR 7413  test_the_state_of_rank_0_is_that_of_all_ranks
   accelerate#2016, prime-rl PR 3299      test_loader: test_loading_ends_the_iteration_and_never_mixes
   paiml/entrenar#294                     none: a story of what starting a shard again costs
B. A resume that is slow, a state that is costly
   transformers#11284, #21934,            test_exact: test_resuming_late_reads_no_more_than_resuming_early
     webdataset#177
   lhotse#1327                            test_a_state_has_the_same_size_wherever_training_stands
   meta-pytorch/data#1317, VeOmni PR 822, test_asking_for_the_state_at_every_step_reads_and_waits_for_nothing
     accelerate#3243
C. Memory that grows
   google/grain#1021, ffcv#345            test_lifecycle: test_thousands_of_loaders_..., test_a_dropped_loader_...
   pytorch#13246, #97432, ray#42483       test_memory_is_what_was_asked_for_and_stays
   pytorch#95823 and others               not yet: pinned memory
D. Shared memory, descriptors
   pytorch#5040, #108861                  test_loader: test_a_slab_beyond_the_limit_is_refused_and_nothing_moves
   pytorch#973, #11201                    test_lifecycle: test_fifty_thousand_kept_columns_need_no_descriptors
   mosaicml/streaming#781, #767, #573     test_after_a_kill_nothing_is_in_the_way_of_the_next_start
E. Views that change under the program
   facebookresearch/spdl#1636             test_lifecycle: test_views_kept_over_an_epochs_edge_stay_what_they_were
   InstantTensor#9, ffcv#37, caffe#2998   test_lifecycle: test_keeping_all_batches_keeps_them_intact
   litData PR 887                         test_lifecycle: test_what_is_written_to_a_batch_is_seen_by_no_other
F. Hangs and ends
   pytorch#21554, #96629, Energon#119     test_loader: test_a_disk_that_does_not_answer_..., test_transform:
                                          test_a_transform_that_does_not_end_is_a_timeout
   mosaicml/streaming#417                 test_loader: test_a_slab_beyond_the_limit_is_refused_and_nothing_moves
   lance#3640, #2204, #2405               test_lifecycle: test_a_forked_child_is_refused_and_disturbs_nobody
   Megatron PR 3684, KempnerForge PR 203  test_a_state_is_still_answered_after_a_signal_to_end
   NVIDIA/DALI#5199, #5046                test_loader: test_epochs_follow_each_other_whole
   ami-data-companion#140, litData#452    not yet: the daemon and its spool
G. Ranks that end apart
   pytorch#141069, #33148,                test_all_ranks_end_together, test_ranks_without_data_of_their_own_end_too,
     webdataset#188, datasets#6437        test_an_error_on_one_rank_is_an_error_at_its_step_and_no_hang
H. Gaps between epochs
   pytorch#139792, deeplake#1760          the engine's: epochs follow each other without reading again
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from harness import Order, flat, ids_of, take


@pytest.fixture(scope="module")
def order(root: Path) -> Order:
    """The straight run of `even`."""
    return Order.of(root, "even", 4, shuffle=True)


def make(root: Path, batch: int = 12, **changes: Any) -> forebay.DataLoader:
    return forebay.DataLoader(
        "even", root=root, **{"global_batch_size": batch, "shuffle": True, "output": "numpy", **changes}
    )


def resumed(root: Path, state: forebay.State, batch: int = 12, **changes: Any) -> forebay.DataLoader:
    loader = make(root, batch, **changes)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def at(state: forebay.State, epoch: int, place: int) -> forebay.State:
    return {**state, "cursor": {"epoch": epoch, "n": place}}


def steps(order: Order, epoch: int, place: int = 0, batch: int = 12) -> list[list[int]]:
    return [order.step(epoch, one, batch) for one in range(place, len(order.epochs[epoch]), batch)]


# A. A resume that is not exact


@pytest.mark.parametrize("left", [1, 0])
def test_a_state_at_an_epochs_end_makes_no_epoch_disappear(left: int, root: Path, order: Order) -> None:
    """meta-pytorch/data#1437: saved at the end of an epoch, after loading one whole epoch is gone."""
    with make(root, 1) as loader:
        seen = take(loader, 240 - left)
        state = loader.state_dict()
    with resumed(root, state, 1) as loader:
        assert loader.state_dict() == state
        if left:
            seen += harness.batches_of(loader)
        assert seen == steps(order, 0, batch=1)
        assert harness.batches_of(loader) == steps(order, 1, batch=1)
        end = loader.state_dict()
    with resumed(root, end, 1) as loader:
        assert loader.state_dict() == end
        assert harness.batches_of(loader) == steps(order, 2, batch=1)


@pytest.mark.parametrize("cut", range(0, 61, 4))
def test_a_resumed_run_trains_all_the_steps_that_were_planned(cut: int, root: Path, order: Order) -> None:
    """verl#7401: resumed at an epoch's border, the next epoch is skipped and the job ends well, under-trained."""
    planned = 60
    with make(root, rank=0, world_size=4) as loader:
        seen = train(loader, cut)
        state = loader.state_dict()
    with resumed(root, state, rank=0, world_size=4) as loader:
        seen += train(loader, planned - cut)
    assert seen == [step[:3] for epoch in range(3) for step in steps(order, epoch)]


def train(loader: forebay.DataLoader, count: int) -> list[list[int]]:
    """So many steps over as many epochs as they need."""
    seen: list[list[int]] = []
    while len(seen) < count:
        for batch in loader:
            seen.append(ids_of(batch))
            if len(seen) == count:
                break
    return seen


def test_the_second_resume_of_an_epoch_counts_on(root: Path) -> None:
    """KempnerForge#57: 30 batches, resume, 10 more, and the state says 10 instead of 40."""
    with make(root, 4) as loader:
        take(loader, 30)
        state = loader.state_dict()
    for done in (40, 50, 59):
        with resumed(root, state, 4) as loader:
            take(loader, done - state["cursor"]["n"] // 4)
            state = loader.state_dict()
            assert state["cursor"] == {"epoch": 0, "n": done * 4}


def test_the_state_moves_with_every_batch_after_a_resume(root: Path) -> None:
    """huggingface/datasets#8308: after the first resume the state stays where it was."""
    with make(root) as loader:
        take(loader, 2)
        state = loader.state_dict()
    for turn in range(1, 4):
        with resumed(root, state) as loader:
            batches = iter(loader)
            for step in range(5):
                assert loader.state_dict()["cursor"]["n"] == (2 + (turn - 1) * 5 + step) * 12
                next(batches)
            state = loader.state_dict()


def test_no_sample_is_lost_or_repeated_wherever_a_shuffled_epoch_is_cut(root: Path, order: Order) -> None:
    """huggingface/datasets#7901, PR 8408: resumed, a buffer's worth is lost and some samples come twice."""
    with make(root) as loader:
        state = loader.state_dict()
        for cut in range(21):
            loader.load_state_dict(at(state, 1, cut * 12) if cut < 20 else at(state, 0, 240))
            rest = harness.batches_of(loader)
            assert sorted(flat(steps(order, 1)[: cut % 20] + rest)) == list(range(240))
            assert rest == steps(order, 1, cut % 20 * 12)


def test_epochs_after_a_resume_are_whole(root: Path, order: Order) -> None:
    """huggingface/datasets#7447: after a resume within an epoch, every later one holds only what was left of it."""
    with make(root) as loader:
        state = at(loader.state_dict(), 0, 17 * 12)
    with resumed(root, state) as loader:
        assert [len(harness.batches_of(loader)) for _ in range(3)] == [3, 20, 20]
        assert len(loader) == 20


def test_each_epoch_has_an_order_of_its_own_and_every_run_has_the_same(root: Path) -> None:
    """huggingface/datasets#6673, pytorch#73603, VeOmni PR 940: one order for ever, or another one in every run."""
    runs = []
    for names_epochs in (False, True):
        with make(root) as loader:
            epochs = []
            for epoch in range(3):
                if names_epochs:
                    loader.set_epoch(epoch)
                epochs.append(harness.batches_of(loader))
            runs.append(epochs)
    assert runs[0] == runs[1]
    assert len({str(epoch) for epoch in runs[0]}) == 3
    code = (
        "import sys, forebay\n"
        "loader = forebay.DataLoader('even', 12, root=sys.argv[1], shuffle=True, output='numpy', reader_threads=1)\n"
        "print([[batch['id'].tolist() for batch in loader] for _ in range(3)])\n"
    )
    other = harness.python(code, root)
    assert other.stdout.strip() == str(runs[0]), other.stderr
    with make(root, seed=1) as loader:
        assert harness.batches_of(loader) != runs[0][0]


def test_a_loaded_state_takes_effect(root: Path, order: Order) -> None:
    """mosaicml/streaming#437, #880: the state says 100 samples, iteration starts with the first."""
    with make(root, 10) as loader:
        state = at(loader.state_dict(), 0, 100)
        loader.load_state_dict(state)
        assert harness.batches_of(loader) == steps(order, 0, 100, 10)


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("before", ["never begun", "broken off", "at the end", "past the end", "named"])
def test_a_state_may_be_loaded_at_any_time(before: str, threads: int, root: Path, order: Order) -> None:
    """litData#316, #331, #363, #24, #770: IndexError before the first iteration, a replayed tail after a break."""
    changes: dict[str, Any] = {}
    if threads:
        changes = {"transform": lambda batch, rng: batch, "transform_threads": threads}
    with make(root, **changes) as loader:
        if before == "broken off":
            take(loader, 3)
        elif before == "at the end":
            take(loader, 20)
        elif before == "past the end":
            harness.batches_of(loader)
        elif before == "named":
            loader.set_epoch(3)
        for epoch, place in [(0, 0), (1, 36), (0, 228), (0, 240)]:
            state = at(loader.state_dict(), epoch, place)
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            expected = steps(order, epoch, place) or steps(order, epoch + 1)
            assert harness.batches_of(loader) == expected
            assert harness.batches_of(loader) == steps(order, epoch + 1 if place < 240 else epoch + 2)


@pytest.mark.parametrize("before", [1, 2, 3, 4, 8])
def test_any_number_of_ranks_goes_on_for_any_other(before: int, root: Path, order: Order) -> None:
    """torchtitan#811, Megatron-Bridge PR 5637: 4 ranks to 2 forgets two positions, 2 to 4 fails."""
    parts = ranks_of(root, before, None, 4)
    assert parts == steps(order, 0, batch=24)[:4]
    with make(root, 24, rank=before - 1, world_size=before) as loader:
        take(loader, 4)
        state = loader.state_dict()
    for after in (1, 2, 3, 4, 8):
        assert ranks_of(root, after, state, 6) == steps(order, 0, 96, 24)


def ranks_of(root: Path, world: int, state: forebay.State | None, count: int) -> list[list[int]]:
    """So many global batches, put together from all ranks."""
    parts = []
    for rank in range(world):
        with make(root, 24, rank=rank, world_size=world) as loader:
            if state is not None:
                loader.load_state_dict(state)
            parts.append(take(loader, count))
    return [flat(step) for step in zip(*parts, strict=True)]


def test_the_state_of_rank_0_is_that_of_all_ranks(root: Path, order: Order) -> None:
    """SimpleTuner PR 2986, Megatron-LM PR 7413: only rank 0's state is saved, and two samples come twice, two never."""
    states = []
    for rank in range(4):
        with make(root, rank=rank, world_size=4) as loader:
            take(loader, 7)
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    seen = []
    for rank in range(4):
        with resumed(root, states[0], rank=rank, world_size=4) as loader:
            seen.append(harness.batches_of(loader))
    assert [flat(step) for step in zip(*seen, strict=True)] == steps(order, 0, 84)


# B. A resume that is slow, a state that is costly


def test_a_state_has_the_same_size_wherever_training_stands(root: Path) -> None:
    """lhotse#1327: the position of a sampler takes hours to restore, as its buckets are made again."""
    with make(root, 1) as loader:
        sizes = set()
        for _ in loader:
            sizes.add(len(json.dumps(loader.state_dict())) - len(str(loader.state_dict()["cursor"]["n"])))
        assert len(sizes) == 1
        assert sizes.pop() < 700


def test_asking_for_the_state_at_every_step_reads_and_waits_for_nothing(root: Path) -> None:
    """meta-pytorch/data#1317, VeOmni PR 822, accelerate#3243: a state for every step costs seconds each."""
    with make(root, 240, read_ahead_steps=1) as loader:
        batches = iter(loader)
        next(batches)
        before = loader.stats()
        for _ in range(1000):
            loader.state_dict()
        after = loader.stats()
        assert {name: after[name] for name in ("batches", "stall_ns", "bytes")} == {
            name: before[name] for name in ("batches", "stall_ns", "bytes")
        }


# C, D. Memory


def test_memory_is_what_was_asked_for_and_stays(root: Path) -> None:
    """pytorch#13246, #5902: 5 to 17 GB in half an hour. ray#42483: memory without bound behind a slow consumer."""
    with forebay.DataLoader("wide", 8, root=root, shuffle=True, output="numpy", memory_limit_bytes=64 << 20) as loader:
        harness.batches_of(loader)
        slab = loader.stats()["slab_bytes"]
        assert slab <= 64 << 20
        resident = resident_bytes()
        for _ in range(8):
            harness.batches_of(loader)
        assert loader.stats()["slab_bytes"] == slab
        assert loader.stats()["overflow_batches"] == 0
        # Eight epochs are 52 MB; what is kept of them is nothing.
        assert resident_bytes() - resident < 16 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_after_a_kill_nothing_is_in_the_way_of_the_next_start(root: Path, tmp_path: Path) -> None:
    """mosaicml/streaming#781, #767, #573, grain#1031: after a kill the next start fails on names that exist already."""
    own = tmp_path / "root"
    harness.make_topic(own, "even", [240])
    code = (
        "import sys, forebay\n"
        "loader = forebay.DataLoader('even', 12, root=sys.argv[1], output='dlpack')\n"
        "while True:\n"
        "    for batch in loader: print(len(batch), flush=True)\n"
    )
    shared = set(os.listdir("/dev/shm"))  # noqa: S108 (to see that nothing is left there)
    running = []
    for lines in (1, 3, 30):
        program = subprocess.Popen([sys.executable, "-c", code, str(own)], stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        for _ in range(lines):
            assert program.stdout.readline() == "2\n"
        running.append(program)  # the earlier ones go on meanwhile
    for program in running:
        program.kill()
        program.communicate()
    assert set(os.listdir("/dev/shm")) <= shared  # noqa: S108
    with make(own) as loader:
        assert len(harness.batches_of(loader)) == 20
    harness.cli("topic", "rm", "even", "--root", own, "--yes")  # the dead hold it no more


# F. Hangs and ends


def test_a_state_is_still_answered_after_a_signal_to_end(root: Path) -> None:
    """Megatron-LM PR 3684, KempnerForge PR 203: SIGTERM kills the workers first, and the last checkpoint fails."""
    code = (
        "import json, os, signal, sys, forebay\n"
        "def end(*_): raise SystemExit\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "loader = forebay.DataLoader('even', 12, root=sys.argv[1], shuffle=True, output='dlpack')\n"
        "try:\n"
        "    while True:\n"
        "        for batch in loader:\n"
        "            print('step', flush=True)\n"
        "            sys.stdin.readline()\n"
        "except SystemExit:\n"
        "    print(json.dumps(loader.state_dict()))\n"
    )
    pipe = subprocess.PIPE
    program = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    for step in range(5):
        assert program.stdout.readline() == "step\n"
        if step < 4:
            program.stdin.write("\n")
            program.stdin.flush()
    os.killpg(program.pid, signal.SIGTERM)
    out, _ = program.communicate()
    assert program.returncode == 0
    with make(root) as loader:
        loader.load_state_dict(json.loads(out.splitlines()[-1]))
        assert len(harness.batches_of(loader)) == 15


# G. Ranks that end apart


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("name", ["small", "even"])
@pytest.mark.parametrize("end", ["pad", "short", "drop"])
def test_all_ranks_end_together(world: int, name: str, end: str, root: Path) -> None:
    """pytorch#141069, #33148, webdataset#188: one rank has a batch more, and the others wait in their all-reduce."""
    changes: dict[str, Any] = {"drop_last": True} if end == "drop" else {"tail": end}
    for batch in (1, 4, 11):
        shapes, seen = [], []
        for rank in range(world):
            with forebay.DataLoader(
                name, batch, root=root, rank=rank, world_size=world, shuffle=True, output="numpy", **changes
            ) as loader:
                made = list(loader)
                assert len(made) == len(loader)
                shapes.append([one["x"].shape for one in made])
                seen += flat(ids_of(one) for one in made)
                total = loader.samples
        assert len({len(shape) for shape in shapes}) == 1
        if end != "short":
            assert all(shape == shapes[0] for shape in shapes)
        left_out = total % (batch * world) if end == "drop" else 0
        assert len(seen) == len(set(seen)) == total - left_out


def test_ranks_without_data_of_their_own_end_too(tmp_path: Path) -> None:
    """datasets#6437, ray#42008: fewer shards than ranks, and a rank without any never ends, or never begins."""
    np = pytest.importorskip("numpy")
    root = tmp_path / "root"
    harness.make_topic(root, "tiny", [5])
    for tail in ("pad", "short"):
        rows, seen = [], []
        for rank in range(8):
            with forebay.DataLoader(
                "tiny", 1, root=root, rank=rank, world_size=8, tail=tail, shuffle=True, output="numpy"
            ) as loader:
                for _ in range(2):
                    (batch,) = list(loader)
                    assert ids_of(batch) == np.asarray(batch["id"])[: len(ids_of(batch))].tolist()
                rows.append(len(batch["id"]))
                seen += ids_of(batch)
        assert sorted(seen) == list(range(5))
        assert rows == [1] * 8 if tail == "pad" else sum(rows) == 5


def test_an_error_on_one_rank_is_an_error_at_its_step_and_no_hang(tmp_path: Path) -> None:
    """One rank of three has a damaged record: it fails at that step, every time; the others deliver theirs."""
    pytest.importorskip("numpy")
    root = tmp_path / "root"
    harness.make_topic(root, "damaged", [300], width=2048, block_bytes="64KiB", segment_bytes="64KiB")
    (segment,) = harness.sealed_segments(root, "damaged")
    harness.damage(segment, harness.x_of([200], 2048).tobytes())
    places: dict[int, int] = {}
    for rank in range(3):
        with forebay.DataLoader(
            "damaged", 4, root=root, rank=rank, world_size=3, output="numpy", checksum="always", timeout=60
        ) as loader:
            for _ in range(2):
                batches = iter(loader)
                done = 0
                error = None
                while done < len(loader) and error is None:
                    try:
                        next(batches)
                        done += 1
                    except forebay.CorruptError as raised:
                        error = str(raised)
                assert loader.state_dict()["cursor"]["n"] == done * 12
                if error is not None:
                    assert str(segment) in error
                    for _ in range(2):
                        with pytest.raises(forebay.CorruptError):
                            next(batches)
                    assert loader.state_dict()["cursor"]["n"] == done * 12
                assert places.setdefault(rank, done) == done
                del batches
    # Record 200 is of step 16, and of rank 2: its checksum is one over 16 records, which the other ranks share.
    assert places[2] <= 16
    assert all(12 * done + 12 > 192 - 16 for done in places.values())
