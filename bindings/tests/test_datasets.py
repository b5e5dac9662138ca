"""Dataset versions from Python: what is trained on, which states are taken, and that nothing that happens to the topic
shows."""

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
from harness import Job, Order, cli, seeded

np = pytest.importorskip("numpy")

SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 11}
SIZES: Any = {"block_bytes": "512", "segment_bytes": "4KiB"}


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A root whose topic `t` was pinned as `clean@v1` with 160 samples, and then grew."""
    root = tmp_path / "root"
    harness.make_topic(root, "t", [70, 41, 49], **SIZES)
    cli("dataset", "pin", "clean", "--topic", "t", "--root", root, "-q")
    harness.ingest(root, "t", [60], first=160)
    return root


def said(*arguments: str | os.PathLike[str]) -> Any:
    """What a command prints with --json, run as a process."""
    command = [sys.executable, "-m", "forebay._cli", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout)


def ids(name: str, root: Path) -> list[int]:
    """All samples of a dataset in its own order."""
    return [int(sample["id"]) for sample in forebay.open(name, root=root, columns=["id"], output="numpy")]


def test_a_version_is_what_it_was(grown: Path) -> None:
    assert ids("clean@v1", grown) == list(range(160))
    assert forebay.open("clean@v1", root=grown).version == "clean@v1"
    assert forebay.open("t", root=grown).version is None
    with forebay.DataLoader("clean@v1", 16, root=grown, output="numpy", **SHUFFLED) as loader:
        assert (loader.samples, len(loader), loader.version) == (160, 10, "clean@v1")
        assert sorted(harness.flat(map(harness.ids_of, loader))) == list(range(160))
        state = loader.state_dict()
        assert state["dataset"]["version"] == "clean@v1"
        assert state["dataset"]["samples"] == 160
        assert json.loads(state["windows"]) == []
        assert len(json.dumps(state)) < 600
    cli("dataset", "pin", "clean", "--root", grown, "-q")
    cli("dataset", "label", "clean@v2", "prod", "--root", grown)
    assert ids("clean@prod", grown) == list(range(220))
    with forebay.DataLoader("clean@latest", 10, root=grown) as loader:
        assert loader.version == "clean@v2"


def test_killed_and_resumed_while_the_topic_grows_and_retention_runs(tmp_path: Path) -> None:
    """Identical batches, on other numbers of ranks, with real appends and deletions in between."""
    root = tmp_path / "root"
    harness.make_topic(root, "t", [100, 41, 66, 50, 60], **SIZES)
    cli("dataset", "pin", "all", "--topic", "t", "--root", root, "-q")
    order = Order.of(root, "all@v1", 3, **SHUFFLED)
    job = Job(tmp_path, root, "all@v1", save_every=2, settings=SHUFFLED)
    chance = seeded("datasets", "killed")
    first, trims = [317], []

    def meanwhile(message: int) -> None:
        if message % 10 == 1:
            harness.ingest(root, "t", [7], first=first[0])
            first[0] += 7
        if message % 15 == 2:
            trims.append(said("topic", "trim", "t", "--keep-bytes", "0", "--root", root))

    for _ in range(3):
        world = chance.choice([1, 2, 3])
        job.run(world, 12, kill_after=chance.randrange(1, 12 * world), meanwhile=meanwhile)
    assert job.run(2, 12, meanwhile=meanwhile)
    job.check(order)
    assert trims
    assert any(holder["holder"] == "dataset all@v1" for trim in trims for holder in trim["held_by"])
    assert ids("all@v1", root) == list(range(317))
    cli("dataset", "unpin", "all@v1", "--root", root)
    assert said("topic", "trim", "t", "--keep-bytes", "0", "--root", root)["segments"] > 0


def test_a_version_in_the_middle_outlives_what_is_before_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    harness.make_topic(root, "t", [100, 120], **SIZES)
    cli("dataset", "pin", "late", "--topic", "t", "--from", "120", "--to", "200", "--root", root, "-q")
    settings = {"root": root, "output": "numpy", **SHUFFLED}
    with forebay.DataLoader("late@v1", 8, **settings) as loader:
        before = harness.batches_of(loader)
        state = loader.state_dict()
    with forebay.DataLoader("t", 8, root=root) as loader:
        bare = loader.state_dict()
    done = said("topic", "trim", "t", "--keep-bytes", "0", "--root", root)
    assert done["segments"] > 0
    assert 0 < done["first"][0] <= 120
    with forebay.DataLoader("late@v1", 8, **settings) as loader:
        assert harness.batches_of(loader) == before
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    with forebay.DataLoader("t", 8, root=root) as loader, pytest.raises(forebay.NotRetainedError, match="missing="):
        loader.load_state_dict(bare)


@pytest.mark.parametrize("shuffle", [True, False])
def test_lists_of_single_records_are_read_right(shuffle: bool, tmp_path: Path) -> None:
    """A filter that takes every other record or so makes as many extents as records."""
    root = tmp_path / "root"
    harness.make_topic(root, "t", [400, 317], width=40, partitions=2, block_bytes="4KiB", segment_bytes="16KiB")
    cli("dataset", "pin", "few", "--topic", "t", "--split", "0..0.4", "--root", root, "-q")
    cli("dataset", "pin", "rest", "--topic", "t", "--split", "0.4..1", "--root", root, "-q")
    few, rest = ids("few@v1", root), ids("rest@v1", root)
    assert sorted(few + rest) == list(range(717))
    assert 0.3 < len(few) / 717 < 0.5
    with forebay.DataLoader("few@v1", 1, root=root, output="numpy", shuffle=shuffle, seed=3) as loader:
        places = [harness.flat(harness.batches_of(loader)) for _ in range(2)]
    assert sorted(places[0]) == sorted(few)
    assert (places[0] == few) == (not shuffle)
    for world in (1, 3):
        loaders = [
            forebay.DataLoader(
                "few@v1",
                root=root,
                global_batch_size=12,
                rank=rank,
                world_size=world,
                output="numpy",
                shuffle=shuffle,
                seed=3,
                checksum="always",
            )
            for rank in range(world)
        ]
        for epoch in range(2):
            steps = zip(*(harness.batches_of(loader) for loader in loaders), strict=True)
            for number, parts in enumerate(steps):
                assert sorted(harness.flat(parts)) == sorted(places[epoch][12 * number : 12 * number + 12])
        for loader in loaders:
            loader.close()


def test_states_belong_to_their_version(grown: Path) -> None:
    def loader(name: str) -> forebay.DataLoader:
        return forebay.DataLoader(name, 8, root=grown, **SHUFFLED)

    with loader("clean@v1") as one:
        state = one.state_dict()
    cli("dataset", "pin", "clean", "--root", grown, "-q")
    with loader("clean@v1") as one:
        one.load_state_dict(state)
        assert one.state_dict() == state
    for name in ("clean@v2", "clean@latest", "t"):
        with loader(name) as other, pytest.raises(forebay.StateMismatchError) as raised:
            other.load_state_dict(state)
        assert raised.value.hint == 'forebay.DataLoader("clean@v1", ...)'
    with loader("t") as bare, loader("clean@v2") as two:
        with pytest.raises(forebay.StateMismatchError) as raised:
            two.load_state_dict(bare.state_dict())
        assert raised.value.hint == 'forebay.DataLoader("t", ...)'
    cli("dataset", "unpin", "clean@v1", "--root", grown)
    with loader("clean@v2") as two, pytest.raises(forebay.StateMismatchError, match=r"unpinned.*there are v2"):
        two.load_state_dict(state)
    cli("dataset", "unpin", "clean@v2", "--root", grown)
    cli("dataset", "pin", "clean", "--topic", "t", "--from", "5", "--root", grown, "-q")
    with loader("clean@v1") as again, pytest.raises(forebay.StateMismatchError, match="made again"):
        again.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("claen@v1", forebay.NotFoundError, "did you mean clean?"),
        ("clean@v2", forebay.NotFoundError, "there are v1"),
        ("clean@prod", forebay.NotFoundError, "there are latest"),
        ("clean@", forebay.InvalidError, "NAME@v3"),
        ("clean@v1@v2", forebay.InvalidError, "NAME@v3"),
        ("@v1", forebay.InvalidError, "dataset"),
    ],
)
def test_names_that_mean_nothing(name: str, error: type[Exception], words: str, grown: Path) -> None:
    for make in (lambda: forebay.DataLoader(name, 8, root=grown), lambda: forebay.open(name, root=grown)):
        with pytest.raises(error) as raised:
            make()
        assert words in str(raised.value)


def test_an_export_opens_elsewhere(grown: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = grown / "clean.parquet"
    assert said("dataset", "export", "clean@v1", file, "--root", grown)["records"] == 160
    table = parquet.read_table(file)
    assert table.column("id").to_pylist() == list(range(160))
    rows = np.array([list(row) for row in table.column("x").to_pylist()], "u2")
    assert (rows.reshape(160, -1) == harness.x_of(range(160), 4)).all()
    assert parquet.read_metadata(file).metadata[b"forebay.version"] == b"clean@v1"
    # And comes back as it was.
    cli("ingest", file, "--topic", "back", "--root", grown, "-q")
    assert forebay.open("back", root=grown).schema == forebay.open("t", root=grown).schema
    assert ids("back", grown) == list(range(160))


def test_damage_is_named(grown: Path) -> None:
    segment = harness.sealed_segments(grown, "t")[0]
    harness.damage(segment, bytes(harness.x_of([3], 4)))
    command = [sys.executable, "-m", "forebay._cli", "dataset", "verify", "clean@v1", "--root", str(grown), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 7
    found = json.loads(done.stdout)
    assert found["extents_damaged"] == 1
    assert found["problems"][0]["path"] == str(segment)
    for word in (str(segment), "block=", "position=", "offset=", "sample="):
        assert word in done.stderr


PIN = (
    "import resource, signal, sys\n"
    "from forebay import _forebay\n"
    "root, limit, kill = sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'killed'\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
    "sys.exit(_forebay.run_cli(['dataset', 'pin', 'clean', '-q', '--root', root]))\n"
)


@pytest.mark.parametrize("how", ["full", "killed"])
def test_a_pin_that_cannot_write_all_pins_nothing(how: str, grown: Path) -> None:
    """Files may not grow beyond some size: the system answers as if the disk were full, or kills in a write."""
    store = grown / "store" / "catalogue"

    def largest() -> int:
        return max(file.stat().st_size for file in store.rglob("*") if file.is_file())

    refused = 0
    for more in [*range(0, 900, 75), 1 << 20]:
        done = harness.python(PIN, grown, str(largest() + more), how)
        versions = [version["version"] for version in said("dataset", "ls", "--root", grown)]
        if done.returncode == 0:
            assert versions == ["clean@v1", "clean@v2"]
            break
        refused += 1
        assert versions == ["clean@v1"]
        assert ids("clean@v1", grown) == list(range(160))
        if how == "full":
            assert done.returncode == 10, done
            assert "nothing was changed" in done.stderr
        else:
            assert done.returncode == -signal.SIGXFSZ, done
    assert refused > 3
    assert ids("clean@v2", grown) == list(range(220))


@pytest.mark.parametrize("shuffle", [True, False])
def test_small_extents_in_large_blocks_are_checked_row_for_row(shuffle: bool, tmp_path: Path) -> None:
    """Far more checksummed pieces are touched than there is memory set aside for them."""
    root = tmp_path / "root"
    harness.make_topic(root, "t", [30_000], width=40, segment_bytes="1MiB")
    cli("dataset", "pin", "few", "--topic", "t", "--split", "0..0.4", "--root", root, "-q")
    few = ids("few@v1", root)
    assert said("dataset", "show", "few", "--root", root)["extents"] > 5000
    settings: dict[str, Any] = {"root": root, "output": "numpy", "shuffle": shuffle, "seed": 3, "checksum": "always"}
    with forebay.DataLoader("few@v1", 512, **settings) as loader:
        for _ in range(2):
            found = harness.flat(harness.batches_of(loader))
            assert sorted(found) == few
            assert (found == few) == (not shuffle)

    # A bit of the third row; its piece of 64 KiB holds the first 820 rows of 80 bytes, whole or in part.
    harness.damage(harness.sealed_segments(root, "t")[0], bytes(harness.x_of([3], 40)))
    bad = [place for place, one in enumerate(few) if one < 820]
    with pytest.raises(forebay.CorruptError), forebay.DataLoader("few@v1", 512, **settings) as loader:
        harness.batches_of(loader)
    tolerant = {**settings, "on_bad_record": "mask", "bad_records_max": 1000}
    with forebay.DataLoader("few@v1", 512, **tolerant) as loader:
        found = []
        for batch in loader:
            good = np.asarray(batch["mask"])
            rows = batch["id"][good]
            assert (batch["x"][good] == harness.x_of(rows, 40)).all()
            found += rows.tolist()
        assert sorted(found) == [one for one in few if one >= 820]
        assert [place for place, _ in loader.bad_records()] == bad


@pytest.mark.parametrize("checksum", ["always", "off"])
def test_a_version_over_a_grown_schema_is_read_under_its_own(checksum: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    ids_old, ids_new = np.arange(9000), np.arange(9000, 18000)
    np.savez(old, id=ids_old.astype("i4"), x=(ids_old[:, None] % 100 + np.arange(30)).astype("u1"))
    cli("ingest", old, "--topic", "t", "--root", root, "-q")
    pin = ["dataset", "pin", "few", "--topic", "t", "--split", "0..0.4", "--root", str(root), "-q"]
    cli(*pin)
    x_new = (ids_new[:, None] % 100 + np.arange(30)).astype("u2")
    np.savez(new, id=ids_new, x=x_new, label=(ids_new % 7).astype("i1"))
    cli("ingest", new, "--topic", "t", "--default", "label=-1", "--root", root, "-q")
    cli(*pin)
    for name, dtype in (("few@v1", "u1"), ("few@v2", "u2")):
        taken = ids(name, root)
        with forebay.DataLoader(name, 512, root=root, shuffle=True, output="numpy", checksum=checksum) as loader:
            found = []
            for batch in loader:
                assert batch["x"].dtype == dtype
                assert (batch["x"] == batch["id"][:, None] % 100 + np.arange(30)).all()
                if "label" in batch:
                    assert (batch["label"] == np.where(batch["id"] < 9000, -1, batch["id"] % 7)).all()
                found += batch["id"].tolist()
            assert sorted(found) == taken
            state = loader.state_dict()
            loader.load_state_dict(state)
            assert loader.state_dict() == state
