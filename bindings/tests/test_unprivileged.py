"""Training as an unprivileged user on topics that belong to somebody else.

As root the program is started, imports what it needs, and becomes nobody before it touches a topic: interpreters may
live where nobody cannot look.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest

pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

NOBODY = (
    "import os, resource, sys\n"
    "import forebay, numpy\n"
    "sys.path.insert(0, sys.argv[2])\n"
    "import harness\n"
    "root = sys.argv[1]\n"
    "numpy.from_dlpack(numpy.zeros(1)); import random, concurrent.futures, difflib, inspect\n"
    "resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))\n"
    "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    "assert os.geteuid() == 65534\n"
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A root of topics in a folder that everybody may enter; owned by root, writable by nobody else."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-shared-"))
    folder.chmod(0o755)
    previous = os.umask(0o022)
    try:
        harness.make_topic(folder / "root", "wide", [120, 80], width=8192, block_bytes="256KiB", segment_bytes="1MiB")
        harness.cli("dataset", "pin", "clean", "--topic", "wide", "--root", folder / "root", "-q")
        yield folder / "root"
    finally:
        os.umask(previous)
        shutil.rmtree(folder)


def test_a_version_of_somebody_else_can_be_read_and_none_be_made(shared: Path) -> None:
    before = sorted(path for path in shared.rglob("*"))
    code = NOBODY + (
        "loader = forebay.DataLoader('clean@v1', 100, root=root, shuffle=True, output='numpy')\n"
        "assert sorted(harness.flat(map(harness.ids_of, loader))) == list(range(200))\n"
        "state = loader.state_dict(); loader.load_state_dict(state); loader.close()\n"
        "for words in ['ls', 'show clean', 'verify clean@v1 -q', 'diff clean@v1 clean@latest']:\n"
        "    assert forebay._forebay.run_cli(['dataset', *words.split(), '--root', root]) == 0\n"
        "for words in ['pin clean -q', 'pin new --topic wide -q', 'label clean@v1 prod', 'unpin clean@v1']:\n"
        "    assert forebay._forebay.run_cli(['dataset', *words.split(), '--root', root]) == 5\n"
    )
    done = harness.python(code, shared, harness.TESTS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error:") == 4, done.stderr
    assert sorted(path for path in shared.rglob("*")) == before, "nothing was written"


def test_a_topic_of_somebody_else_can_be_read(shared: Path) -> None:
    """Also when the slab is larger than the memory that may be locked."""
    code = NOBODY + (
        "loader = forebay.DataLoader('wide', 100, root=root, shuffle=True, output='numpy')\n"
        "for _ in range(2):\n"
        "    assert sorted(harness.flat(map(harness.ids_of, loader))) == list(range(200))\n"
        "assert loader.stats()['slab_bytes'] > 8 << 20\n"
        "state = loader.state_dict(); loader.close()\n"
        "loader = forebay.DataLoader('wide', 8, root=root, shuffle=True, output='numpy')\n"
        "loader.load_state_dict(state); next(iter(loader))\n"
        "assert int(forebay.open('wide', root=root, output='numpy')[7]['id']) == 7\n"
    )
    done = harness.python(code, shared, harness.TESTS)
    assert (done.returncode, done.stderr) == (0, "")


def test_its_owner_may_write_and_keep_meanwhile(shared: Path) -> None:
    """What nobody reads cannot be guarded by nobody, but nobody does not disturb it either."""
    code = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "for _ in range(2): next(iter(forebay.DataLoader('wide', 8, root=root)))\n"
    )
    done = harness.python(NOBODY + code, shared, harness.TESTS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing keeps its records from being deleted") == 2, "once for each loader"
    harness.ingest(shared, "wide", [10], width=8192, first=200)
    harness.cli("topic", "verify", "wide", "--root", shared)


@pytest.mark.parametrize("what", ["root", "topic", "partition", "segment", "facts"])
def test_what_may_not_be_read_is_a_permission_error(what: str, shared: Path) -> None:
    topic = shared / "topics" / "public" / "default" / "wide"
    locked = {
        "root": shared,
        "topic": topic,
        "partition": topic / "p0000",
        "segment": harness.sealed_segments(shared, "wide")[0],
        "facts": topic / "topic.json",
    }[what]
    locked.chmod(0)
    code = NOBODY + (
        "try:\n"
        "    for batch in forebay.DataLoader('wide', 8, root=root, output='numpy'): pass\n"
        "except PermissionError as error:\n"
        "    assert isinstance(error, forebay.PermissionError), type(error)\n"
        "    assert 'root=' in str(error) or 'path=' in str(error) or 'file=' in str(error), error\n"
        "    print('refused')\n"
    )
    done = harness.python(code, shared, harness.TESTS)
    locked.chmod(0o755)
    assert (done.stdout, done.returncode, done.stderr) == ("refused\n", 0, "")


def test_writing_to_a_topic_of_somebody_else_is_refused(shared: Path) -> None:
    code = NOBODY + (
        "codes = [forebay._forebay.run_cli(['topic', *arguments, '--root', root]) for arguments in (\n"
        "    ['create', 'mine', '--schema', 'id:int64'], ['rm', 'wide', '--yes'])]\n"
        "assert codes == [5, 5], codes\n"
    )
    done = harness.python(code, shared, harness.TESTS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: ") == 2
