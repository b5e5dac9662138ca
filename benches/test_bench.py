"""The benchmark's own tests: that wrong data are caught, that ratios are made within rounds, that limits read it all.

.venv/bin/python -m pytest benches
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import report
import workloads
from contestants import CONTESTANTS, REFERENCE, RING, Limit, Loop
from workloads import Checker, Workload

TINY = Workload("test", samples=10, shape=(8,), dtype="uint16", batch=4)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """The raw file of a few samples."""
    workloads._write_raw(TINY, tmp_path / "samples.bin")
    return tmp_path / "samples.bin"


def _batches(raw: Path) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    rows = np.fromfile(raw, TINY.dtype).reshape(TINY.samples, *TINY.shape)
    return [(np.arange(at, min(at + 4, 10)), rows[at : at + 4].copy()) for at in range(0, 10, 4)]


def _checked(raw: Path, batches: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> dict[str, Any]:
    checker = Checker(TINY, raw)
    for ids, rows in batches:
        checker.batch(ids, rows)
    return checker.result()


def test_good_epochs_pass(raw: Path) -> None:
    """In order, and in another order."""
    found = _checked(raw, _batches(raw))
    assert (found["wrong"], found["missing"], found["repeated"], found["in_order"]) == (0, 0, 0, True)
    found = _checked(raw, _batches(raw)[::-1])
    assert (found["wrong"], found["missing"], found["repeated"], found["in_order"]) == (0, 0, 0, False)


def test_wrong_data_are_caught(raw: Path) -> None:
    """A byte changed, two ids exchanged, a batch left out, a batch given twice, an id that does not exist."""
    batches = _batches(raw)
    batches[1][1][2, 7] ^= 1
    assert _checked(raw, batches)["wrong"] == 1
    batches = _batches(raw)
    batches[0][0][[0, 1]] = batches[0][0][[1, 0]]
    assert _checked(raw, batches)["wrong"] == 2
    assert _checked(raw, _batches(raw)[:2])["missing"] == 2
    assert _checked(raw, [*_batches(raw), _batches(raw)[0]])["repeated"] == 4
    batches = _batches(raw)
    batches[2][0][1] = 11
    assert _checked(raw, batches)["wrong"] == 1


def test_ratios_are_made_within_rounds() -> None:
    """A slow round slows both sides of its ratio."""
    rows = [
        {"kind": "run", "round": number, "contestant": name, "epoch_bytes": 1e9, "epoch_s": [seconds], **_quiet()}
        for number, slow in enumerate((1.0, 4.0, 1.0))
        for name, seconds in ((REFERENCE, slow), ("forebay_sequential", 2 * slow))
    ]
    runs = report.Runs(rows)
    assert runs.ratios("forebay_sequential", REFERENCE) == [0.5, 0.5, 0.5]
    assert runs.ratios("forebay_sequential", RING) == []
    assert report.gigabytes_per_s(rows[0]) == 1.0


def _quiet() -> dict[str, float]:
    return {"others": 0.0}


def test_contestants_name_each_other() -> None:
    """Limits and slabs are those of contestants that exist."""
    for contestant in CONTESTANTS.values():
        other = contestant.slab_of if isinstance(contestant, Limit) else contestant.limit
        assert other is None or other in CONTESTANTS
        assert isinstance(contestant, Limit) or isinstance(CONTESTANTS[contestant.limit], Limit)
    assert isinstance(CONTESTANTS[REFERENCE], Loop)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_limits_read_the_whole_file(raw: Path, tmp_path: Path) -> None:
    """Every thread's share, the short last read too, in as many passes as asked for."""
    program = tmp_path / "limits"
    source = Path(__file__).with_name("limits.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", program, source, "-lpthread"], check=True)
    for threads in ("1", "2", "3"):
        command: list[str | Path] = [program, raw, "64", "1024", threads, "0", "3"]
        if shutil.which("strace"):
            command = ["strace", "-f", "-o", tmp_path / "calls", "-e", "trace=pread64", *command]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result = json.loads(done.stdout)
        assert result["epoch_bytes"] == raw.stat().st_size == 160
        assert len(result["epoch_s"]) == 3
        if shutil.which("strace"):
            read = re.findall(r", (\d+), (\d+)\) = (\d+)", (tmp_path / "calls").read_text())
            ours = sorted((int(at), int(got)) for asked, at, got in read if asked in {"64", "32"})
            assert ours == sorted([(0, 64), (64, 64), (128, 32)] * 3)
