"""The examples that `scripts/quickstart` shows, in small: real trainers, really killed; and what judges them."""

import os
import sys
from pathlib import Path

import ledger
import pytest
import quickstart
from ledger import Entry, Ledger
from processes import ProcessError, Processes
from quickstart import Quickstart, Show, ShowError

STRAIGHT = [Entry(1, [5, 3]), Entry(2, [0, 4]), Entry(3, [1, 2])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where files and topics are made once for all tests."""
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends every program that imports torch."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def show(folder: Path, framework: str, *shows: Show) -> None:
    with Processes() as processes:
        quickstart = Quickstart(folder, framework, processes)
        quickstart.make_topics()
        for each in shows:
            quickstart.train(each)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.timeout(900)
def test_trainers_in_numpy_go_on_where_they_were_killed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    digits = Show("digits", "", {"numpy": 270}, {"numpy": 0.85})
    show(folder, "numpy", digits, Show("text", "", {"numpy": 36}, {"numpy": 6.0}))
    said = capfd.readouterr().out
    assert "already in the topic" not in said
    assert said.count("ids equal    yes") == said.count("as 2 ranks   yes") == 2
    killed = ledger.read(folder / "runs/digits/killed/ledger-1.jsonl")
    resumed = ledger.read(folder / "runs/digits/killed/ledger-2.jsonl")
    assert 1 < resumed[0].step <= len(killed) + 1 < 270
    assert resumed[-1].step == 270
    # The next time topics are found as they were left.
    show(folder, "numpy")
    assert capfd.readouterr().out.count("already in the topic") == 4


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_trainers_in_torch_go_on_where_they_were_killed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    show(folder, "torch", Show("digits", "", {"torch": 180}, {"torch": 0.85}))
    assert "ids equal    yes, 5,748 of 5,748" in capfd.readouterr().out


def test_learning_too_little_fails(folder: Path) -> None:
    with pytest.raises(ShowError, match=r"learned too little: job=digits run=straight score=.*goal=100\.0%"):
        show(folder, "numpy", Show("digits", "", {"numpy": 225}, {"numpy": 0.9999}))


def test_a_failing_trainer_is_told_by_its_last_words(folder: Path) -> None:
    with Processes() as processes, pytest.raises(ProcessError, match=r"exit=1 output=(.|\n)*NotFoundError"):
        Quickstart(folder / "empty", "numpy", processes).train(Show("digits", "", {"numpy": 5}, {"numpy": 0.0}))


def test_processes_do_not_outlive_their_program(tmp_path: Path) -> None:
    with Processes() as processes:
        process = processes.start([sys.executable, "-c", "import time; time.sleep(1000)"], tmp_path / "output.txt")
    with pytest.raises(ProcessLookupError):
        os.kill(process.popen.pid, 0)


def test_only_one_quickstart_runs_in_a_folder(tmp_path: Path) -> None:
    with quickstart.locked(tmp_path), pytest.raises(ShowError, match="another quickstart"), quickstart.locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("other", "first", "says"),
    [
        (STRAIGHT, 1, None),
        (STRAIGHT[1:], 2, None),
        ([Entry(1, [5, 3]), Entry(2, [4, 0]), Entry(3, [1, 2])], 1, "step 2 has other samples"),
        ([Entry(1, [5, 3]), Entry(3, [1, 2])], 1, "steps 1 to 3 were expected, found 2 steps"),
        ([*STRAIGHT, Entry(4, [5, 3])], 1, "steps 1 to 3 were expected, found 4 steps, 1 to 4"),
        (STRAIGHT[1:], 1, "found 2 steps, 2 to 3"),
        ([], 1, "found none"),
    ],
)
def test_differences_of_runs_are_found(other: list[Entry], first: int, says: str | None) -> None:
    found = ledger.difference(STRAIGHT, other, first, 3)
    assert found is None if says is None else found is not None and says in found


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([[0, 1], [2], [2, 0], [1]], None),
        ([[0, 1], [2], [2, 0]], None),
        ([[0, 1], [1]], "sample 1 came twice"),
        ([[0, 1], [2, 3]], "does not end where the topic does"),
    ],
)
def test_epochs_that_are_not_whole_are_found(ids: list[list[int]], says: str | None) -> None:
    found = ledger.uneven([Entry(step + 1, numbers) for step, numbers in enumerate(ids)], samples=3)
    assert found is None if says is None else found is not None and says in found


def test_ranks_are_joined_step_by_step() -> None:
    ranks = [[Entry(2, [5]), Entry(3, [0]), Entry(4, [7])], [Entry(2, [3]), Entry(3, [4])]]
    assert ledger.joined(ranks) == [Entry(2, [5, 3]), Entry(3, [0, 4])]


def test_a_line_cut_by_a_kill_does_not_count(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as written:
        for entry in STRAIGHT:
            written.write(entry.step, entry.ids, loss=0.1)
    file = tmp_path / "ledger.jsonl"
    assert [entry.ids for entry in ledger.read(file)] == [[5, 3], [0, 4], [1, 2]]
    file.write_bytes(file.read_bytes()[:-3])
    assert ledger.read(file) == [Entry(1, [5, 3], 0.1), Entry(2, [0, 4], 0.1)]
