"""Topics whose schema grows under trainings: a killed job goes on with the tensors that it began with, to the dtype."""

import json
import signal
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest

np = pytest.importorskip("numpy")

SETTINGS: dict[str, Any] = {"shuffle": True, "seed": 3, "lanes": 4, "chunk": 8}
# Trains, saves the state beside what it saw, and dies without a word where it is told to.
TRAINER = """
import json, os, pathlib, signal, sys
import forebay
root, folder, steps, settings = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
loader = forebay.DataLoader("grows", 12, root=root, output="numpy", **settings)
saved = folder / "state.json"
if saved.exists():
    loader.load_state_dict(json.loads(saved.read_text()))
with open(folder / "seen.jsonl", "a") as seen:
    for step, batch in enumerate(loader):
        row = {name: [str(value.dtype), value.tolist()] for name, value in batch.items()}
        seen.write(json.dumps(row) + "\\n")
        seen.flush()
        saved.write_text(json.dumps(loader.state_dict()))
        if step + 1 == steps:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def ingest(root: Path, number: int, ids: Any, *arguments: str, **more: Any) -> None:
    file = root.parent / f"{number}.npz"
    np.savez(file, id=ids, x=harness.x_of(ids, 4), **more)
    harness.cli("ingest", file, "--topic", "grows", "--root", root, "-q", *arguments)


def train(root: Path, folder: Path, steps: int) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    done = harness.python(TRAINER, root, folder, str(steps), json.dumps(SETTINGS))
    assert done.returncode == (-signal.SIGKILL if steps else 0), done.stderr
    return [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


def test_killed_and_resumed_over_a_topic_that_grew_it_is_one_straight_run(tmp_path: Path) -> None:
    root = tmp_path / "root"
    ingest(root, 0, np.arange(0, 100, dtype="i2"))
    ingest(root, 1, np.arange(100, 150, dtype="i4"))
    straight = train(root, tmp_path / "straight", 0)
    assert {batch["id"][0] for batch in straight} == {"int32"}

    train(root, tmp_path / "killed", 5)
    ingest(root, 2, np.arange(150, 200, dtype="i8"), "--default", "label=-1", label=np.full(50, 7, "i2"))
    train(root, tmp_path / "killed", 3)
    ingest(root, 3, np.arange(200, 210, dtype="i2"), label=np.full(10, 8, "i4"))
    assert train(root, tmp_path / "killed", 0) == straight

    # Who begins now gets what there is now, whoever wrote it.
    with forebay.DataLoader("grows", 10, root=root, output="numpy", **SETTINGS) as loader:
        seen: dict[int, int] = {}
        for batch in loader:
            assert (batch["id"].dtype, batch["label"].dtype) == (np.int64, np.int32)
            assert (batch["x"] == harness.x_of(batch["id"], 4)).all()
            seen.update(zip(batch["id"].tolist(), batch["label"].tolist(), strict=True))
    assert seen == {at: -1 if at < 150 else 7 if at < 200 else 8 for at in range(210)}
    samples = forebay.open("grows", root=root, output="numpy")
    assert len(samples) == 210
    for at in (0, 120, 170, 205):
        assert samples[at]["id"] == at
        assert samples[at]["label"] == seen[at]
        assert (samples[at]["id"].dtype, samples[at]["label"].dtype) == (np.int64, np.int32)


def test_a_state_is_not_honoured_with_columns_that_its_schema_lacks(tmp_path: Path) -> None:
    root = tmp_path / "root"
    ingest(root, 0, np.arange(0, 40, dtype="i8"))
    with forebay.DataLoader("grows", 8, root=root, output="numpy", **SETTINGS) as loader:
        next(iter(loader))
        state = loader.state_dict()
    ingest(root, 1, np.arange(40, 60, dtype="i8"), "--default", "label=0", label=np.ones(20, "i2"))
    with forebay.DataLoader("grows", 8, root=root, output="numpy", columns=["id", "label"], **SETTINGS) as loader:
        with pytest.raises(forebay.StateMismatchError, match="schema version 1 of its topic.*label"):
            loader.load_state_dict(state)
        assert sum(len(batch["label"]) for batch in loader) == 60


def test_sealed_segments_open_in_pyarrow_each_with_its_own_schema(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    root = tmp_path / "root"
    ingest(root, 0, np.arange(0, 40, dtype="i2"))
    ingest(root, 1, np.arange(40, 60, dtype="i8"), "--default", "label=0", label=np.ones(20, "i2"))
    ingest(root, 2, np.arange(60, 70, dtype="i8"), label=np.ones(10, "i4"))
    files = sorted(root.glob("topics/**/*.arrow"))
    assert [file.name for file in files] == ["00000000000000000000.arrow", "00000000000000000040.s2.arrow"]
    tables = [pa.ipc.open_file(file).read_all() for file in files]
    assert [table.schema.field("id").type for table in tables] == [pa.int16(), pa.int64()]
    assert [table.num_rows for table in tables] == [40, 20]
    assert tables[1].column("label").to_pylist() == [1] * 20


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("checksum", ["off", "sampled", "always"])
def test_rows_stored_narrower_and_wider_go_through_one_unit(tmp_path: Path, checksum: str, shuffle: bool) -> None:
    root = tmp_path / "root"
    harness.cli("topic", "create", "grows", "--root", root, "--schema", "id:int64, x:int32[4]", "--partitions=2")
    # In its own order the topic goes from the wide rows of one partition to the narrow ones of the other.
    for number, dtype in enumerate(["i4", "i4", "i8", "i8", "i8"]):
        ids = np.arange(number * 300, number * 300 + 300)
        file = tmp_path / f"{number}.npz"
        np.savez(file, id=ids, x=(ids[:, None] * 7 + np.arange(4)).astype(dtype))
        harness.cli("ingest", file, "--topic", "grows", "--root", root, "-q")
    settings: dict[str, Any] = {"shuffle": shuffle, "seed": 3, "checksum": checksum, "output": "numpy"}
    for batch_size in (1, 6, 64):
        seen: list[int] = []
        with forebay.DataLoader("grows", batch_size, root=root, **settings) as loader:
            for batch in loader:
                assert (batch["x"] == batch["id"][:, None] * 7 + np.arange(4)).all()
                seen += batch["id"].tolist()
        assert sorted(seen) == list(range(1500))
