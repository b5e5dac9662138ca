"""Jobs whose checkpoints forebay keeps: killed as processes and resumed, ranks that meet, processes that are stale."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from forebay._job import attempt_of
from harness import Job, Order, seeded

SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 11}
WORLDS = [1, 2, 3, 4, 6]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A root of one test: 111 samples in two partitions, the first with two segments."""
    pytest.importorskip("numpy")
    root = tmp_path / "root"
    harness.make_topic(root, "small", [70, 41], partitions=2, block_bytes="512", segment_bytes="1KiB")
    return root


def loader_of(root: Path, **settings: Any) -> forebay.DataLoader:
    given = {"job": "vision", "output": "numpy", **SHUFFLED, **settings}
    if "global_batch_size" not in given:
        given.setdefault("batch_size", 10)
    return forebay.DataLoader("small", root=root, **given)


def latest(root: Path) -> int | None:
    found = forebay.latest("vision", root)
    return None if found is None else found.step


def listed(root: Path, capfd: pytest.CaptureFixture[str]) -> dict[int, dict[str, Any]]:
    """What `forebay checkpoint ls` says of the job, by step."""
    capfd.readouterr()
    harness.cli("checkpoint", "ls", "vision", "--root", root, "--json")
    return {one["step"]: one for one in json.loads(capfd.readouterr().out)}


@pytest.fixture(scope="module")
def order(root: Path) -> Order:
    """The straight run of `small`."""
    return Order.of(root, "small", 2, **SHUFFLED)


@pytest.fixture
def job(root: Path, tmp_path: Path) -> Job:
    """A job over `small`, in a root of its own that shares the topics."""
    home = tmp_path / "root"
    home.mkdir()
    for entry in root.iterdir():
        (home / entry.name).symlink_to(entry)
    return Job(tmp_path, home, "small", epochs=2, settings=SHUFFLED, job="vision")


def test_killed_anywhere_and_resumed_on_other_ranks_it_is_one_straight_run(job: Job, order: Order) -> None:
    job.save_every = 2
    chance = seeded("jobs")
    for _ in range(12):
        world = chance.choice(WORLDS)
        job.run(world, 12, kill_after=chance.randrange(1, 14 * world))
    assert job.run(chance.choice(WORLDS), 12)
    job.check(order)


@pytest.mark.parametrize("moment", ["stepped", "noted", "saving", "written", "saved"])
def test_rank_0_dies_around_a_commit(moment: str, job: Job, order: Order) -> None:
    """Between the model's file and the commit, too: the checkpoint before counts, for the model and for the data."""
    job.save_every = 3
    assert not job.run(2, 12, die=(9, moment))
    # "stepped" is within the step that follows.
    assert latest(job.root) == (9 if moment in ("stepped", "saved") else 6)
    assert (job.folder / "state.json-9").exists() == (moment not in ("noted", "saving"))
    assert job.run(3, 12)
    job.check(order)


def test_a_model_that_is_gone_takes_its_checkpoint_with_it(
    job: Job, order: Order, caplog: pytest.LogCaptureFixture
) -> None:
    job.save_every = 3
    assert not job.run(2, 12, die=(10, "noted"))
    (job.folder / "state.json-9").unlink()
    with caplog.at_level(logging.WARNING, "forebay"):
        found = forebay.latest("vision", job.root)
    assert found is not None
    assert (found.step, found.path) == (6, str(job.folder / "state.json-6"))
    assert "passed over because its file is gone: job=vision step=9" in caplog.text
    assert job.run(1, 12)
    job.check(order)


def test_batches_and_ranks_may_change_at_every_start(job: Job, order: Order) -> None:
    for world, batch, steps in [(2, 24, 5), (3, 9, 7), (1, 5, 11), (6, 6, 9)]:
        assert not job.run(world, batch, kill_after=steps * world)
    assert job.run(2, 32)
    job.check(order)


def test_commit_and_resume_in_one_process(own: Path) -> None:
    assert forebay.latest("vision", own) is None
    with loader_of(own) as loader:
        assert loader.resumed is None
        batches = iter(loader)
        first = [harness.ids_of(next(batches)) for _ in range(4)]
        committed = loader.commit(30, "s3://models/30", tag="best")
        rest = [harness.ids_of(batch) for batch in batches]
    assert committed == forebay.latest("vision", own)
    assert committed[:2] == (30, "s3://models/30")
    assert committed.state["cursor"] == {"epoch": 0, "n": 40}
    for resume in ("latest", 30, "best", "tag:best"):
        with loader_of(own, resume=resume) as loader:
            assert loader.resumed == committed
            assert harness.batches_of(loader) == rest
    with loader_of(own, resume="never") as loader:
        assert harness.batches_of(loader) == first + rest
    assert latest(own) is None


def test_a_job_goes_on_with_the_records_it_began_with(own: Path) -> None:
    with loader_of(own) as loader:
        harness.take(loader, 1)
        loader.commit(1)
        rest = harness.batches_of(loader_of(own))
        harness.ingest(own, "small", [37], first=111)
        assert harness.batches_of(loader_of(own, resume=1)) == rest
        assert sorted(harness.flat(harness.batches_of(loader_of(own, job="other")))) == list(range(148))


def test_paths_mean_the_same_from_everywhere(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with loader_of(own) as loader:
        Path("model-1").mkdir()
        assert loader.commit(1, "model-1").path == str(tmp_path / "model-1")
        assert not caplog.records
        loader.commit(2, Path("model-2.pt"))
        assert "there is no such file" in caplog.text
    monkeypatch.chdir("/")
    assert latest(own) == 1


def test_a_state_taken_earlier_is_committed_later(own: Path) -> None:
    """As by a thread that writes the model while training goes on."""
    with loader_of(own) as loader:
        batches = iter(loader)
        [next(batches) for _ in range(2)]
        taken = loader.state_dict()
        then = [harness.ids_of(next(batches)) for _ in range(3)]
        thread = threading.Thread(target=loader.commit, args=(2,), kwargs={"state": taken})
        thread.start()
        then += [harness.ids_of(batch) for batch in batches]
        thread.join()
    assert harness.batches_of(loader_of(own)) == then


@pytest.mark.parametrize("transformed", [True, False])
def test_only_what_was_consumed_counts(transformed: bool, own: Path) -> None:
    """Gradient accumulation, and wrappers that fetch ahead."""
    transform = (lambda batch, _: batch) if transformed else None
    with loader_of(own, transform=transform) as loader:
        batches = iter(loader)
        ids = [harness.ids_of(next(batches)) for _ in range(5)]
        assert loader.commit(1, consumed=4).state["cursor"]["n"] == 40
        with pytest.raises(forebay.InvalidError, match="consumed counts batches"):
            loader.commit(2, consumed=6)
        with pytest.raises(forebay.InvalidError, match="give one"):
            loader.commit(2, consumed=2, state=loader.state_dict())
    assert harness.take(loader_of(own), 1) == ids[4:]


def test_checkpoints_that_are_not_kept_go(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with loader_of(own, keep_last=2, keep_every=4) as loader:
        batches = iter(loader)
        for step in range(1, 10):
            next(batches)
            loader.commit(step, tag="best" if step == 3 else None)
        assert sorted(listed(own, capfd)) == [3, 4, 8, 9]
        loader.commit(10, keep_last=1)
        assert sorted(listed(own, capfd)) == [3, 10]
    for step in (3, 10):
        assert loader_of(own, resume=step).resumed is not None


def test_a_rank_that_comes_first_waits_for_rank_0(own: Path) -> None:
    with loader_of(own) as loader:
        harness.take(loader, 3)
        loader.commit(3)
        state = loader.state_dict()
    ranks = {"world_size": 2, "global_batch_size": 10, "attempt": "again-1"}
    begun, states = threading.Event(), []

    def rank_1() -> None:
        second = loader_of(own, rank=1, **ranks)
        begun.set()
        states.append(second.state_dict())
        states.append(second.commit(4).state)

    thread = threading.Thread(target=rank_1)
    thread.start()
    begun.wait()
    first = loader_of(own, rank=0, **ranks)
    assert first.state_dict() == state
    thread.join()
    assert states == [state, state]
    assert latest(own) == 3, "only rank 0 commits"


def test_ranks_of_another_attempt_are_not_joined(own: Path) -> None:
    ranks = {"world_size": 2, "global_batch_size": 10}
    first = loader_of(own, rank=0, attempt="again-1", **ranks)
    assert first.epoch == 0
    second = loader_of(own, rank=1, attempt="again-2", timeout=0.05, **ranks)
    with pytest.raises(forebay.TimeoutError, match='attempt="again-2" rank=1.*same job=, attempt= and root=') as caught:
        iter(second)
    assert "rank 0 of this attempt has not begun" in str(caught.value)
    iter(first)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_without_an_attempt_bring_a_state(rank: int, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    ranks = {"world_size": 2, "global_batch_size": 10}
    with pytest.raises(forebay.InvalidError, match="attempt= with a text.*torchrun or srun.*load_state_dict"):
        iter(loader_of(own, rank=rank, **ranks))
    with forebay.DataLoader("small", 10, root=own, output="numpy", **SHUFFLED) as plain:
        harness.take(plain, 2)
        state = plain.state_dict()
    both = [loader_of(own, rank=number, **ranks) for number in range(2)]
    for loader in both:
        loader.load_state_dict(state)
    assert [loader.state_dict() for loader in both] == [state, state]
    both[0].commit(7)
    assert latest(own) == 7


def test_the_attempt_is_what_launchers_say() -> None:
    assert attempt_of({}) is None
    assert attempt_of({"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2"}) == "torchelastic-x-2"
    slurm = {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "0"}
    assert attempt_of(slurm) == "slurm-77-1-0"
    assert attempt_of({"SLURM_JOB_ID": "77"}) == "slurm-77-0"
    assert attempt_of({"TORCHELASTIC_RUN_ID": "x", **slurm}) == "torchelastic-x-0-slurm-77-1-0"
    assert attempt_of({"PMIX_NAMESPACE": "prte-9@1"}) == "pmix-prte-9@1"


def test_a_torchrun_start_needs_no_attempt(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    ranks = {"world_size": 2, "global_batch_size": 10}
    first, second = (loader_of(own, rank=rank, **ranks) for rank in range(2))
    assert first.state_dict() == second.state_dict()


STALE = """
import sys, forebay
loader = forebay.DataLoader("small", 10, root=sys.argv[1], job="vision", output="dlpack", shuffle=True, seed=11)
batches = iter(loader)
next(batches)
loader.commit(1)
print("ready", flush=True)
for what in (lambda: next(batches), lambda: loader.commit(2), lambda: iter(loader), lambda: loader.load_state_dict({})):
    sys.stdin.readline()
    try:
        what()
        print("no error", flush=True)
    except forebay.Error as error:
        print(type(error).__name__, error, flush=True)
"""


def test_a_stopped_rank_0_that_wakes_up_is_refused(own: Path) -> None:
    """The old process moves nothing: not at its next batch, not by its next commit, not by starting over."""
    pipe = subprocess.PIPE
    old = subprocess.Popen([sys.executable, "-c", STALE, own], stdin=pipe, stdout=pipe, text=True, bufsize=1)
    try:
        assert old.stdin is not None
        assert old.stdout is not None
        assert old.stdout.readline() == "ready\n"
        old.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, old.pid, os.WSTOPPED | os.WNOWAIT)
        old.stdin.write("\n\n")
        new = loader_of(own)
        batches = iter(new)
        next(batches)
        old.send_signal(signal.SIGCONT)
        for _ in range(2):
            word = old.stdout.readline()
            assert word.startswith(
                "FencedError a later run of the job has taken over: job=vision generation=1 newest=2"
            )
        assert latest(own) == 1
        new.commit(2)
        old.stdin.write("\n\n")
        assert old.stdout.readline().startswith("FencedError")
        assert old.stdout.readline().startswith("InvalidError not a state")
        next(batches)
        new.commit(3)
    finally:
        old.kill()
        old.communicate()


def test_a_fenced_loader_starts_no_run_of_its_own(own: Path) -> None:
    old, new = loader_of(own), loader_of(own)
    batches = iter(old)
    next(batches)
    state = old.state_dict()
    assert new.epoch == 0
    with pytest.raises(forebay.FencedError, match="newest=2"):
        next(batches)
    del batches
    old.load_state_dict(state)
    for act in (lambda: iter(old), lambda: old.commit(5), lambda: old.epoch):
        with pytest.raises(forebay.FencedError, match="newest=2"):
            act()
    new.commit(1)


def test_batches_that_are_transformed_ahead_are_held_back_too(own: Path) -> None:
    old = loader_of(own, transform=lambda batch, _: batch, transform_threads=4)
    batches = iter(old)
    next(batches)
    assert loader_of(own).epoch == 0
    with pytest.raises(forebay.FencedError):
        next(batches)


def test_a_rewind_ends_the_run_and_the_next_starts_there(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with loader_of(own) as loader:
        batches = iter(loader)
        ids = []
        for step in range(1, 6):
            ids.append(harness.ids_of(next(batches)))
            loader.commit(step * 10)
        harness.cli("checkpoint", "rewind", "vision", "--to", "20", "--dry-run", "--root", own)
        next(batches)
        harness.cli("checkpoint", "rewind", "vision", "--to", "20", "--yes", "--root", own)
        with pytest.raises(forebay.FencedError, match="the job was rewound to step 20"):
            next(batches)
        with pytest.raises(forebay.FencedError, match="the job was rewound to step 20"):
            loader.commit(70)
    assert latest(own) == 20
    table = listed(own, capfd)
    assert {step for step, one in table.items() if one["abandoned"]} == {30, 40, 50}
    with loader_of(own) as loader:
        assert harness.take(loader, 1) == ids[2:3]
        loader.commit(30)
    assert not listed(own, capfd)[30]["abandoned"]


def test_loading_a_state_begins_where_it_says(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """torch.distributed.checkpoint asks a loader for its state before it loads one into it."""
    with loader_of(own) as loader:
        batches = iter(loader)
        for step in (1, 2):
            next(batches)
            loader.commit(step)
        taken = loader.state_dict()
        third = [harness.ids_of(next(batches))]
        loader.commit(3)
        rest = [harness.ids_of(batch) for batch in batches]
    found = forebay.latest("vision", own)
    assert found is not None
    with loader_of(own) as loader:
        assert loader.state_dict() == found.state
        loader.load_state_dict(found.state)
        assert harness.batches_of(loader) == rest
        assert loader._job is not None
        assert loader._job._native.generation == 2, "it stood there already: no other run"
    with loader_of(own) as loader:
        assert loader.epoch == 0
        loader.load_state_dict(taken)
        assert loader.resumed == (2, None, taken)
        assert latest(own) == 2, "of a state that a checkpoint has, that checkpoint"
        assert harness.take(loader, 1) == third
        loader.commit(3)
        harness.take(loader, 1)
        loader.load_state_dict(taken)
        assert harness.take(loader, 1) == third, "back once more, in the middle of a run"
        loader.commit(3)
    assert [one["generation"] for one in listed(own, capfd).values()] == [1, 1, 5]


def test_a_job_of_another_order_or_topic_is_refused_and_ends_no_run(own: Path) -> None:
    harness.make_topic(own, "other", [50])
    running = loader_of(own)
    batches = iter(running)
    next(batches)
    running.commit(1)
    others: list[tuple[dict[str, Any], str]] = [
        ({"seed": 12}, "another seed"),
        ({"shuffle": False}, r"another order \(shuffle\)"),
    ]
    for settings, words in others:
        with pytest.raises(forebay.StateMismatchError, match=words):
            iter(loader_of(own, **settings))
    with pytest.raises(forebay.StateMismatchError, match="another topic"):
        iter(forebay.DataLoader("other", 10, root=own, job="vision", **SHUFFLED))
    with pytest.raises(forebay.StateMismatchError, match="other records or another order"):
        running.commit(2, state=forebay.DataLoader("small", 10, root=own, shuffle=True, seed=12).state_dict())
    for resume, words in [(7, "the nearest is 1"), ("bset", "no such tag")]:
        with pytest.raises(forebay.NotFoundError, match=words):
            iter(loader_of(own, resume=resume))
    with pytest.raises(forebay.NotFoundError, match="did you mean vision"):
        iter(loader_of(own, job="visoin", resume=1))
    next(batches)
    running.commit(2)


def test_data_that_are_gone_are_named_with_the_way_out(own: Path) -> None:
    with loader_of(own) as loader:
        harness.take(loader, 1)
        loader.commit(1)
    first, *_ = harness.sealed_segments(own, "small")
    first.unlink()
    with pytest.raises(forebay.NotRetainedError, match=r"partition=0 needed=0\.\.70.*missing=\d+.*no checkpoint"):
        iter(loader_of(own))
    with loader_of(own, resume="never") as loader:
        harness.take(loader, 1)
        loader.commit(1)
        harness.take(loader, 1)
        loader.commit(2)
    assert latest(own) == 2
    harness.cli("topic", "rm", "small", "--yes", "--force", "--root", own)  # kept checkpoints hold it back
    harness.make_topic(own, "small", [70, 41], partitions=2)
    with pytest.raises(forebay.StateMismatchError, match="deleted and made again"):
        iter(loader_of(own))


def test_what_a_job_needs_is_said(own: Path) -> None:
    places: list[tuple[Any, Any]] = [(5, own), ("vision", 5), (b"vision", own), ("vision", b"x")]
    for job, root in places:
        with pytest.raises(forebay.InvalidError, match="job is a text|root is a folder"):
            forebay.latest(job, root)
    with forebay.DataLoader("small", 10, root=own) as loader, pytest.raises(forebay.InvalidError, match="job=NAME"):
        loader.commit(1)
    with loader_of(own) as loader:
        for step in (-1, 1.5, True, "x"):
            with pytest.raises(forebay.InvalidError, match="step is"):
                loader.commit(step)  # type: ignore[arg-type]
        loader.commit(5)
        loader.commit(5)
        with pytest.raises(forebay.InvalidError, match="steps only grow.*step=4 last=5"):
            loader.commit(4)
        with pytest.raises(forebay.InvalidError, match="not a tag"):
            loader.commit(6, tag="7")
        for wrong in ({"tag": 5}, {"state": 5}, {"state": [1]}, {"path": ""}, {"path": b"x"}, {"path": "model-\udcff"}):
            with pytest.raises(forebay.InvalidError, match="tag is|not a state|path is text"):
                loader.commit(6, **wrong)
        assert harness.forked(lambda: loader.commit(6)) == 1
        loader.commit(6)
    with pytest.raises(forebay.ClosedError):
        loader.commit(7)
    assert latest(own) == 6
