"""The benchmark's own tests: that wrong data are caught, that ratios are made within rounds, that limits read it all.

No figure is looked at for its size. `.venv/bin/python -m pytest benches` runs them.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench
import growth
import machine
import measure
import peers
import report
import rivals
import workloads
from contestants import COLD, DISK, OURS, RANKED, REFERENCE, RING, Limit, Loop, Opened, Part
from peers import PEERS, Peer
from workloads import ROWS, WORKLOADS, Checker, Data, Field, Workload

TINY = Workload("test", samples=10, fields=(Field("x", "uint16", (8,)),), batch=4)
MANY = Workload("many", samples=10, fields=(Field("f", "float32"), Field("i", "int64", (2,))), batch=4)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """The raw file of a few samples."""
    workloads._write_raw(TINY, tmp_path / "samples.bin")
    return tmp_path / "samples.bin"


def _batches(raw: Path) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    rows = np.fromfile(raw, "uint16").reshape(10, 8)
    return [(np.arange(at, min(at + 4, 10)), rows[at : at + 4].copy()) for at in range(0, 10, 4)]


def _checked(raw: Path, batches: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> dict[str, Any]:
    checker = Checker(TINY, raw)
    for ids, rows in batches:
        checker.batch(ids, {"x": rows})
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
        {"kind": "run", "round": number, "contestant": name, "bytes": 1e9, "epoch_s": [seconds], **_quiet()}
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
    """Limits and slabs are those of contestants that exist, and names are given once."""
    for contestant in OURS.values():
        other = contestant.slab_of if isinstance(contestant, Limit) else contestant.limit
        assert other is None or other in OURS
        assert isinstance(contestant, Limit) or isinstance(OURS[contestant.limit], Limit)
    assert isinstance(OURS[REFERENCE], Loop)
    assert not OURS.keys() & PEERS.keys()
    assert {*COLD, *RANKED, DISK, RING} <= OURS.keys()
    for peer in PEERS.values():
        assert peer.environment in peers.ENVIRONMENTS
        assert peer.over == "rows" or peer.over in peers.WRITERS
        assert peer.suits(TINY)


def test_contestants_are_chosen_by_name() -> None:
    """Patterns, the usual ones of a workload, and peers only if they are asked for."""
    tiny = WORKLOADS["tiny"]
    assert [c.name for c in bench.choose(tiny, "limit_ring,ideal_p*", peers=False)] == ["limit_ring", "ideal_pread"]
    assert not any(isinstance(c, Peer) for c in bench.choose(tiny, None, peers=False))
    assert {c.name for c in bench.choose(tiny, None, peers=True)} >= PEERS.keys()
    assert [c.name for c in bench.choose(WORKLOADS["D"], None, peers=False)] == list(COLD)
    assert [c.name for c in bench.choose(WORKLOADS["F"], None, peers=False)] == list(RANKED)
    with pytest.raises(SystemExit, match="no such contestant"):
        bench.choose(tiny, "torch*", peers=False)


def test_what_is_wrong_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benches/run` asks first, with `--only-check`."""

    def asked(*arguments: str) -> object:
        monkeypatch.setattr("sys.argv", ["bench.py", *arguments, "--only-check"])
        try:
            bench.main()
        except SystemExit as end:
            return end.code
        return None

    assert asked("--workload", "tiny", "--rounds", "1") is None
    assert asked("--help") == 0
    assert asked("--workload", "Z") == asked("--rounds", "0") == asked("--rounds", "many") == 2
    assert "cannot be run yet" in str(asked("--workload", "C"))
    assert "no such contestant" in str(asked("--contestants", "nobody"))


def test_samples_of_several_fields_are_checked(tmp_path: Path) -> None:
    """By field, or whole; one wrong field is enough."""
    raw = tmp_path / "samples.bin"
    workloads._write_raw(MANY, raw)
    rows = workloads.raw_rows(MANY, raw)
    assert rows["f"].view("<u4").tolist() == list(range(10))
    columns = {name: np.array(rows[name]) for name in ("f", "i")}
    columns["i"][3, 1] += 1
    checker = Checker(MANY, raw)
    checker.batch(np.arange(10), columns)
    assert checker.wrong == 1
    checker = Checker(MANY, raw)
    checker.batch(np.arange(10), {ROWS: np.array(rows).view(np.uint8).reshape(10, -1)})
    assert checker.wrong == 0
    assert checker.result()["missing"] == 0


def test_stripes_make_up_the_whole() -> None:
    """Each sample is in one stripe, and all but the last hold whole blocks."""
    for workload in (WORKLOADS["A"], WORKLOADS["B"], WORKLOADS["E"], TINY):
        stripes = list(workloads._stripes(workload))
        assert sum(count for _, count in stripes) == workload.samples
        assert [start for start, _ in stripes] == list(np.cumsum([0, *(count for _, count in stripes[:-1])]))
        assert all(count.bit_count() == 1 and count >= 1024 for _, count in stripes[:-1])


class _Slow:
    """A loader of batches of three, which no workload asks for."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def epoch(self, number: int) -> Any:
        for start in range(0, self.samples, 3):
            yield {"x": None, "id": range(start, min(start + 3, self.samples))}

    def stats(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


def _job(kind: Any, tmp_path: Path) -> measure.Job:
    def make(workload: Workload, data: Data, part: Part) -> Opened:
        return _Slow(workload.samples)

    loop = Loop("slow", "", "sequential", make, kind, "")
    return measure.Job(loop, TINY, Data.under(tmp_path), Part())


def test_peers_are_counted_by_rows_and_cut_off(tmp_path: Path) -> None:
    """Their batches may be cut elsewhere; ours may not."""
    found = measure.epochs(_job("peer", tmp_path), least_s=0, least=2, most=2, cap_s=1e9)
    assert (found["steps"], found["bytes"], found["capped"]) == (8, 20 * TINY.sample_bytes, False)
    found = measure.epochs(_job("peer", tmp_path), least_s=0, least=2, most=2, cap_s=-1.0)
    assert (found["steps"], found["bytes"], found["capped"]) == (1, 3 * TINY.sample_bytes, True)
    with pytest.raises(RuntimeError, match="not every batch came"):
        measure.epochs(_job("forebay", tmp_path), least_s=0, least=1, most=1, cap_s=1e9)


def test_what_is_missing_is_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, and samples that a format is not made for."""
    monkeypatch.setattr(rivals, "REPOSITORY", tmp_path)
    seen: list[dict[str, Any]] = []

    class Quiet:
        def put(self, kind: str, **values: Any) -> None:
            seen.append({"kind": kind, **values})

    quiet: Any = Quiet()
    asked = [PEERS["litdata_shuffled"], PEERS["nodes_batches_shuffled"]]
    assert rivals.Rivals(quiet, MANY, Data.under(tmp_path)).ready(asked, 1e9) == []
    reasons = {row["contestant"]: row["reason"] for row in seen if row["kind"] == "skipped"}
    assert reasons.keys() == {*peers.ABSENT, *(peer.name for peer in asked)}
    assert "one field" in reasons["litdata_shuffled"]
    assert "no environment" in reasons["nodes_batches_shuffled"]


def test_dropped_files_are_out_of_the_page_cache(tmp_path: Path) -> None:
    """And warmed ones are in it; where a file system keeps everything, that is said."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 200_000)
    machine.warm([file])
    assert machine.resident_part([file]) == 1.0
    with contextlib.suppress(RuntimeError):
        machine.drop([file])
        assert machine.resident_part([file]) == 0.0


def _run_of(name: str, number: int, seconds: float) -> dict[str, Any]:
    of_loop: dict[str, Any] = {
        "open_ms": 1.0,
        "start_ms": 1.0,
        "first_batch_ms": 1.0,
        "slab_bytes": 0,
        "memory_beyond_slab_bytes": 0,
    }
    of_loop |= {"per_batch": {}, "read_per_delivered": None, "capped": False, "workers": 0}
    sums = {"bytes": 2e9, "epoch_bytes": 1e9, "epoch_s": [seconds, seconds], "cpu_s": 1.0, "load": 0.1, **_quiet()}
    return {"kind": "run", "round": number, "contestant": name, **sums, **of_loop}


def test_tables_compare_with_peers() -> None:
    """Ratios to the fastest that resumes, and to LitData; absent ones are named."""
    about: dict[str, Any] = dict.fromkeys(
        ("cores", "cpu", "cpu_family_model", "l2", "l3", "hypervisor", "memory_gib", "kernel", "filesystem", "python"),
        "?",
    )
    about |= dict.fromkeys(("torch", "numpy", "forebay", "commit", "changed", "date"), "?")
    data = {"name": "A", "samples": 10, "shape": "uint16[8]", "epoch_bytes": 1e9, "batch": 4, "cold": False}
    seconds = {RING: 0.5, "forebay_shuffled": 1.0, "nodes_batches_shuffled": 5.0, "torch_batches_shuffled": 2.0}
    runs = [_run_of(name, 0, s) for name, s in (seconds | {"litdata_shuffled": 40.0}).items()]
    skipped = {"kind": "skipped", "contestant": "dali", "reason": "because"}
    machine_row = {"kind": "machine", **about}
    text = report.tables([machine_row, {"kind": "data", **data}, *runs, skipped])
    assert "| shuffled, to the fastest peer that resumes (`nodes_batches_shuffled`) | ≥ 4 x | 5.0 x |" in text
    assert "| shuffled, to LitData (`litdata_shuffled`) | ≥ 30 x | 40.0 x |" in text
    assert "- `dali`: because" in text
    assert "batches of 4. 1 round on" in text
    assert "### Targets" in text
    assert "A tiny workload" not in text
    tiny = report.tables([machine_row, {"kind": "data", **data, "name": "tiny"}, *runs, skipped])
    assert "### Targets" not in tiny
    assert "A tiny workload" in tiny
    assert text.index("`torch_batches_shuffled`") < text.index("`nodes_batches_shuffled`") < text.index("`litdata_shuf")


def test_growth_changes_one_thing_at_a_time() -> None:
    """Within a series everything but what grows is equal, and the sizes asked for are reached."""
    found = growth.cases(small=False)
    reached = {(case.series, case.value) for case in found}
    assert {("samples", 10**8), ("blocks", 10**5), ("windows", 1000), ("lanes", 8192), ("lanes", 64)} <= reached
    for case in found:
        assert case.lanes * case.chunk <= case.samples
        assert case.series != "blocks" or case.samples // case.block_rows == case.value


def test_pages_are_written_between_their_marks(tmp_path: Path) -> None:
    """Everything else stays."""
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- b -->\nold\n<!-- e -->\nz\n")
    report.put_between(page, "<!-- b -->", "<!-- e -->", "new")
    assert page.read_text() == "a\n<!-- b -->\n\nnew\n\n<!-- e -->\nz\n"
    with pytest.raises(SystemExit, match="no marks"):
        report.put_between(page, "<!-- c -->", "<!-- e -->", "new")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_limits_read_the_whole_file(raw: Path, tmp_path: Path) -> None:
    """Every thread's share, the short last read too, in as many passes as asked for."""
    program = tmp_path / "limits"
    source = Path(__file__).with_name("limits.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", program, source, "-lpthread"], check=True)
    for threads in ("1", "2", "3"):
        command: list[str | Path] = [program, raw, "64", "1024", threads, "0", "3", "cached"]
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


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_limits_read_past_the_page_cache(tmp_path: Path) -> None:
    """A file that does not end on a page, in whole pages; where there are no such reads the program says so."""
    program, file = tmp_path / "limits", tmp_path / "file"
    file.write_bytes(b"x" * 10_000)
    source = Path(__file__).with_name("limits.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", program, source, "-lpthread"], check=True)
    for way in ("direct", "scattered"):
        done = subprocess.run([program, file, "4096", "16384", "2", "0", "2", way], capture_output=True, text=True)
        if done.returncode:
            assert "Invalid argument" in done.stderr
        else:
            assert json.loads(done.stdout)["epoch_bytes"] == 10_000
    for wrong in (["100", "16384", "2", "0", "2", "direct"], ["4096", "16384", "2", "0", "2", "slowly"]):
        assert subprocess.run([program, file, *wrong], capture_output=True).returncode == 2
