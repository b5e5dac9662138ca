"""The command that the wheel installs, from the outside: what it prints, and how it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import forebay
import harness
import pytest

np = pytest.importorskip("numpy")


def command() -> list[str]:
    """The entry point beside this interpreter, or the module that it calls."""
    beside = Path(sys.executable).with_name("forebay")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "forebay._cli"]


def forebay_(
    *arguments: str | os.PathLike[str], cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "FOREBAY_ROOT"}
    return subprocess.run(
        [*command(), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=cwd,
        env={**inherited, **environment},
    )


def test_an_interrupt_while_it_is_imported_ends_it_quietly() -> None:
    code = (
        "import importlib.metadata, os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'forebay._forebay':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "entry, = importlib.metadata.entry_points(group='console_scripts', name='forebay')\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "sys.exit(entry.load()())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=False)
    # What a shell shows as 130.
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", id=np.arange(40), x=np.ones((40, 3), "f4"))
    np.savez(tmp_path / "b.npz", id=np.arange(40, 60), x=np.ones((20, 3), "f4"))
    return tmp_path


def test_ingest_then_show_then_plan(files: Path) -> None:
    root = files / "root"
    done = forebay_("ingest", files / "a.npz", files / "b.npz", "--topic", "t", "--root", root, "--json")
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 60), done.stderr
    again = forebay_("ingest", files / "*.npz", "--topic", "t", "--root", root, "--json")
    assert again.returncode == 0
    listed = forebay_("topic", "ls", "--json", FOREBAY_ROOT=str(root))
    assert listed.returncode == 0
    assert [(topic["topic"], topic["rows"]) for topic in json.loads(listed.stdout)] == [("t", 60)]
    shown = forebay_("topic", "show", "t", "--root", root)
    assert shown.returncode == 0
    assert "float32[3]" in shown.stdout
    assert forebay_("topic", "tail", "t", "-n", "2", "--root", root).stdout.count("\n") >= 2
    assert forebay_("topic", "verify", "t", "--root", root).returncode == 0
    planned = forebay_("plan", "t", "--global-batch-size", "12", "--world-size", "3", "--root", root, "--json")
    assert planned.returncode == 0, planned.stderr
    with forebay.DataLoader("t", 12, root=root, shuffle=True) as loader:
        assert loader.samples == 60, "a file is stored once"
        said = json.loads(planned.stdout)
        ours = loader.plan()
        assert {name: find(said, name) for name in ("lanes", "chunk", "pool")} == {
            name: ours[name] for name in ("lanes", "chunk", "pool")
        }, "a loader uses the numbers that the plan shows"


def find(value: object, name: str) -> object:
    """The first value of that name, however deep."""
    if isinstance(value, dict):
        for key, inner in value.items():
            found = inner if key == name else find(inner, name)
            if found is not None and not isinstance(found, dict):
                return found
    return None


def test_exit_codes_say_what_to_do(files: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    harness.cli("ingest", files / "a.npz", "--topic", "t", "--root", root, "-q")
    (tmp_path / "torn.npz").write_bytes((files / "a.npz").read_bytes()[:-30])
    np.save(tmp_path / "complex.npy", np.zeros(3, "c8"))
    np.savez(tmp_path / "other.npz", id=np.arange(3), y=np.ones(3))
    at = ("--root", root)
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (2, "Usage", ()),
        (2, "unrecognized", ("frobnicate",)),
        (2, "required", ("ingest", *at)),
        (3, "torn-away.npz", ("ingest", tmp_path / "torn-away.npz", "--topic", "t", *at)),
        (2, "complex", ("ingest", tmp_path / "complex.npy", "--topic", "c", *at)),
        (3, "x", ("ingest", tmp_path / "other.npz", "--topic", "t", *at)),
        (2, "topic", ("ingest", files / "a.npz", "--topic", "a//b", *at)),
        (3, "no such topic", ("topic", "show", "tt", *at)),
        (3, "tt", ("topic", "rm", "tt", "--yes", *at)),
        (4, "exists", ("topic", "create", "t", "--schema", "id:int64", *at)),
        (2, "int65", ("topic", "create", "u", "--schema", "id:int65", *at)),
        (3, "root=", ("topic", "show", "t", "--root", tmp_path / "nowhere")),
        (3, "tt", ("plan", "tt", "--global-batch-size", "8", *at)),
        (2, "divide", ("plan", "t", "--global-batch-size", "8", "--world-size", "3", *at)),
        (2, "global-batch-size", ("plan", "t", *at)),
    ]
    for code, text, arguments in cases:
        done = forebay_(*map(str, arguments))
        assert (done.returncode, text in done.stderr) == (code, True), (arguments, done.returncode, done.stderr)
        assert done.stdout == ""
    torn = forebay_("ingest", tmp_path / "torn.npz", "--topic", "t", *at)
    assert torn.returncode in (2, 7)
    assert "torn.npz" in torn.stderr
    assert forebay_("topic", "rm", "t", "--yes", *at).returncode == 0
    assert forebay_("topic", "show", "t", *at).returncode == 3


def test_a_topic_in_use_is_not_removed(files: Path) -> None:
    root = files / "root"
    harness.cli("ingest", files / "a.npz", "--topic", "t", "--root", root, "-q")
    with forebay.DataLoader("t", 4, root=root) as loader:
        refused = forebay_("topic", "rm", "t", "--yes", "--root", root)
        assert refused.returncode == 6
        assert "try: " in refused.stderr
        assert len(list(loader)) == 10
    assert forebay_("topic", "rm", "t", "--yes", "--root", root).returncode == 0


def test_damage_is_found_by_verify(files: Path) -> None:
    root = files / "root"
    harness.make_topic(root, "t", [200], width=64, segment_bytes="4KiB")
    (segment,) = harness.sealed_segments(root, "t")
    harness.damage(segment, harness.x_of([150], 64).tobytes())
    done = forebay_("topic", "verify", "t", "--root", root)
    assert done.returncode == 7
    assert str(segment) in done.stdout + done.stderr


def test_version_and_help() -> None:
    assert forebay_("--version").stdout.strip() == f"forebay {forebay.__version__}"
    for arguments in (["--help"], ["ingest", "--help"], ["topic", "--help"], ["plan", "--help"]):
        done = forebay_(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: " in done.stdout


def test_output_that_nobody_reads_is_no_error(files: Path) -> None:
    harness.cli("ingest", files / "a.npz", "--topic", "t", "--root", files / "root", "-q")
    program = subprocess.Popen(
        [*command(), "topic", "tail", "t", "-n", "40", "--root", str(files / "root")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    program.stdout.close()
    _, complaint = program.communicate()
    assert (program.returncode, complaint) == (0, b"")


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_an_ingest_that_is_ended_goes_on_and_stores_each_record_once(kill: signal.Signals, tmp_path: Path) -> None:
    """Ended when so and so much is on disk, four times in a row; whether it was ready by then does not matter."""
    for number in range(8):
        np.savez(tmp_path / f"{number}.npz", id=np.arange(number * 500, number * 500 + 500), x=np.ones((500, 256)))
    arguments = ["ingest", *(f"{number}.npz" for number in range(8)), "--topic", "t", "--root", "r"]
    for part in range(4):
        program = subprocess.Popen(
            [*command(), *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while program.poll() is None and on_disk(tmp_path / "r") < part * 2_000_000 + 1:
            pass
        program.send_signal(kill)
        _, complaint = program.communicate()
        assert program.returncode in (0, -kill, 130), complaint
    assert forebay_(*arguments, cwd=tmp_path).returncode == 0
    with forebay.DataLoader("t", 500, root=tmp_path / "r", columns=["id"], output="numpy") as loader:
        assert sorted(one for batch in loader for one in batch["id"].tolist()) == list(range(4000))
    assert forebay_("topic", "verify", "t", "--root", tmp_path / "r").returncode == 0


def on_disk(root: Path) -> int:
    """Bytes of the topic's segments."""
    with contextlib.suppress(FileNotFoundError):  # made or renamed meanwhile
        return sum(path.stat().st_size for path in (root / "topics/public/default/t/p0000").iterdir())
    return 0
