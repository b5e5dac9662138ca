"""Loaders begin and end: garbage, forks, threads, the interpreter's exit, and what programs keep."""

import contextlib
import gc
import os
import queue
import threading
from collections import deque
from pathlib import Path
from typing import Any

import forebay
import harness
import pytest
from harness import flat, ids_of

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def make(root: Path, name: str = "wide", batch: int = 8, **changes: Any) -> forebay.DataLoader:
    settings: dict[str, Any] = {"shuffle": True, "output": "numpy", **changes}
    return forebay.DataLoader(name, batch, root=root, **settings)


def in_use() -> tuple[int, int]:
    """Reader threads and descriptors of this process."""
    gc.collect()
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("forebay-read") for name in names), len(os.listdir("/proc/self/fd"))


def guards(root: Path, name: str = "wide") -> int:
    return len(list((root / "topics" / "public" / "default" / name / "guards").glob("*.guard")))


# Garbage


def test_a_dropped_loader_leaves_nothing_behind(root: Path) -> None:
    """google/grain#1021, libffcv/ffcv#345: what is never closed leaks threads and buffers."""
    next(iter(make(root)))  # what stays once, stays
    before, held = in_use(), guards(root)
    loader = make(root)
    batches = iter(loader)
    next(batches)
    assert in_use() > before
    assert guards(root) == held + 1
    del loader
    assert ids_of(next(batches)), "an iterator keeps its loader"
    del batches
    assert in_use() == before
    assert guards(root) == held


def test_batches_outlive_their_loader(root: Path) -> None:
    before = in_use()
    loader = make(root)
    kept = [batch for _, batch in zip(range(5), loader, strict=False)]
    wanted = [ids_of(batch) for batch in kept]
    loader.close()
    del loader
    gc.collect()
    for batch in kept:
        batch["x"] += 0  # still writable, and there
    assert [ids_of(batch) for batch in kept] == wanted
    view = kept[2]["x"][3, 5:]
    del kept, batch
    assert view.tolist() == harness.x_of([wanted[2][3]], 8192)[0, 5:].tolist()
    del view
    assert in_use() == before


def test_thousands_of_loaders_leave_threads_and_descriptors_as_they_were(root: Path) -> None:
    next(iter(make(root, "small")))  # what stays once, stays
    before, held = in_use(), guards(root, "small")
    for number in range(1200):
        loader = make(root, "small", 40)
        if number % 6 == 0:
            iterator = iter(loader)
            for _ in range(number % 4):
                next(iterator)
            del iterator
        if number % 2 == 0:
            loader.close()
    del loader
    assert in_use() == before
    assert guards(root, "small") == held


def test_thousands_of_iterations_of_one_loader(root: Path) -> None:
    with make(root, "small", 40) as loader:
        next(iter(loader))
        before = in_use()
        for number in range(1000):
            for _, _ in zip(range(number % 3), loader, strict=False):
                pass
        assert in_use() == before
        assert len(harness.batches_of(loader)) == 8


def test_a_loader_in_a_cycle_is_collected(root: Path) -> None:
    before = in_use()
    loader: Any = make(root, transform=lambda batch, rng: batch)
    batches = iter(loader)
    loader.myself, loader.kept = loader, [batches, next(batches)]
    del loader, batches
    assert in_use() == before


# What programs keep


def test_keeping_all_batches_keeps_them_intact(root: Path) -> None:
    """scitix/InstantTensor#9, libffcv/ffcv#37, BVLC/caffe PR 2998: the ring is smaller than what the user keeps."""
    for depth in (1, 8):
        with make(root, depth=depth, read_ahead_steps=1, reader_threads=1) as loader:
            kept = [*loader, *loader]
            assert loader.stats()["overflow_batches"] > 0
            assert loader.stats()["overflow_bytes"] > 0
            assert sorted(flat(ids_of(batch) for batch in kept)) == sorted([*range(400)] * 2)
            del kept
            assert loader.stats()["leased_slots"] == 0
            assert loader.stats()["overflow_bytes"] == 0


def test_keeping_more_than_there_is_memory_for_says_so_and_loses_nothing(root: Path) -> None:
    with make(root, overflow_bytes=300_000, read_ahead_steps=1) as loader:
        batches = iter(loader)
        kept: list[Any] = []

        def keep() -> None:
            for batch in batches:
                kept.append(batch)

        for _ in range(2):
            with pytest.raises(forebay.NoSpaceError, match="slots_held="):
                keep()
        seen = flat(ids_of(batch) for batch in kept)
        assert loader.state_dict()["cursor"]["n"] == len(seen)
        kept.clear()
        seen += flat(ids_of(batch) for batch in batches)
        assert sorted(seen) == list(range(400))


def test_fifty_thousand_kept_columns_need_no_descriptors(root: Path) -> None:
    """pytorch#973, #11201: keeping batches in a list runs out of descriptors."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import forebay, harness\n"
        "loader = forebay.DataLoader('small', 1, root=sys.argv[1], output='numpy')\n"
        "kept = [batch for _ in range(80) for batch in loader]\n"
        "wide = list(forebay.DataLoader('wide', 8, root=sys.argv[1], output='numpy', shuffle=True))\n"
        "assert len(kept) == 80 * 317\n"
        "assert sorted(harness.flat(map(harness.ids_of, wide))) == list(range(400))\n"
        "assert len({int(batch['id'][0]) for batch in kept}) == 317\n"
    )
    done = harness.python(code, root, harness.TESTS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("batch", [40, 50, 57, 67, 80, 100, 133])
def test_views_kept_over_an_epochs_edge_stay_what_they_were(batch: int, root: Path) -> None:
    """facebookresearch/spdl#1636: at an iteration's edge the pool takes back what the consumer still holds.

    Epochs of 3 to 10 steps around a slab of about as many slots, and a consumer that looks late.
    """
    kept: deque[tuple[list[int], Any]] = deque()
    with make(root, batch=batch, read_ahead_steps=1, lanes=4, chunk=5, pool=2, columns=["id", "x"]) as loader:
        for _ in range(6):
            seen = []
            for made in loader:
                ids = made["id"].tolist()
                kept.append((ids, made))
                seen += ids
                del made
                if len(kept) > 4:
                    wanted, late = kept.popleft()
                    assert ids_of(late) == wanted
                    late["x"][:] = 0
                    del late
            assert sorted(seen) == list(range(400))
        assert loader.stats()["slots"] <= 40
    for wanted, late in kept:
        assert ids_of(late) == wanted


@pytest.mark.parametrize("name", ["small", "wide"])
def test_what_is_written_to_a_batch_is_seen_by_no_other(name: str, root: Path) -> None:
    """litData PR 887: shared writable views leak to peers, read-only ones break in-place code."""
    with make(root, name) as one, make(root, name) as two:
        for _ in range(2):
            for a, b in zip(one, two, strict=True):
                wanted = ids_of(a)
                a["x"][:] = 0xFFFF
                a["id"][:] = -1
                assert ids_of(b) == wanted
                b["x"] += 1
    with make(root, name) as three:
        assert sorted(flat(harness.batches_of(three))) == list(range(three.samples))


def test_batches_are_given_back_by_other_threads(root: Path) -> None:
    with make(root) as loader:
        handed: queue.Queue[Any] = queue.Queue(3)
        seen: list[int] = []

        def consume() -> None:
            while (batch := handed.get()) is not None:
                seen.extend(ids_of(batch))
                del batch

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            for batch in loader:
                handed.put(batch)
                del batch
        for _ in threads:
            handed.put(None)
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted([*range(400)] * 3)
        assert loader.stats()["leased_slots"] == 0


def test_a_loader_goes_on_when_there_are_descriptors_again(root: Path) -> None:
    """Whatever it was that could not be opened: slab, ring or file."""
    code = (
        "import os, resource, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import forebay, harness\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "failed = 0\n"
        "for more in range(14):\n"
        "    settings = {'root': sys.argv[1], 'reader': sys.argv[3], 'output': 'numpy', 'shuffle': True}\n"
        "    loader = forebay.DataLoader('wide', 8, **settings)\n"
        "    state = loader.state_dict()\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1 + more, hard))\n"
        "    try:\n"
        "        for _ in range(2):\n"
        "            try:\n"
        "                next(iter(loader))\n"
        "            except forebay.Error:\n"
        "                failed += 1\n"
        "                assert loader.state_dict() == state\n"
        "    finally:\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "    loader.load_state_dict(state)\n"
        "    assert sorted(harness.flat(map(harness.ids_of, loader))) == list(range(400)), more\n"
        "    loader.close()\n"
        "assert failed >= 4, failed\n"
    )
    for reader in ("auto", "preadv"):
        done = harness.python(code, root, harness.TESTS, reader)
        assert (done.returncode, done.stderr) == (0, "")


# Threads


def test_threads_share_an_iterator(root: Path) -> None:
    """Each batch goes to one of them; states and counts can be asked for meanwhile."""
    with make(root, "small", 3) as loader:
        for epoch in range(3):
            batches = iter(loader)
            seen: list[int] = []
            done = threading.Event()

            def ask(number: int, batches: Any = batches, seen: Any = seen, done: Any = done) -> None:
                if number > 0:
                    for batch in batches:
                        seen.extend(ids_of(batch))
                    done.set()
                while not done.is_set():
                    cursor = loader.state_dict()["cursor"]
                    assert cursor["n"] % 3 == 0 or cursor["n"] == 317
                    assert loader.stats()["batches"] <= 106 * 3

            harness.in_threads(5, ask)
            assert sorted(seen) == list(range(317))
            assert loader.state_dict()["cursor"] == {"epoch": epoch, "n": 317}


def test_threads_that_begin_at_once_share_nothing_and_do_not_deadlock(root: Path) -> None:
    """The last iterator made before the first batch is the one that counts."""
    for _ in range(10):
        loader = make(root, "small", 10)
        begun: list[Any] = []
        refused: list[str] = []
        ids: list[list[int]] = []

        def begin(
            number: int, loader: Any = loader, begun: Any = begun, refused: Any = refused, ids: Any = ids
        ) -> None:
            loader.state_dict()
            try:
                batches = iter(loader)
                begun.append(batches)
                ids.append(ids_of(next(batches)))
            except (forebay.InvalidError, forebay.ClosedError) as error:
                refused.append(str(error))
                loader.stats()

        harness.in_threads(8, begin)
        assert len(ids) == 1
        assert all("iterated already" in text or "this iterator is over" in text for text in refused)
        for batches in begun:
            with contextlib.suppress(forebay.ClosedError):
                ids += [ids_of(batch) for batch in batches]
        assert sorted(flat(ids)) == list(range(317))
        loader.close()


def test_a_thread_that_moves_the_loader_ends_the_others_iteration(root: Path) -> None:
    """Whoever iterates gets an error or batches of his own iteration, never one of another."""
    with make(root, "even", 10, shuffle=False) as loader:
        states = []
        for n in (0, 120):
            state = loader.state_dict()
            state["cursor"]["n"] = n
            states.append(state)
        stop = threading.Event()

        def move(number: int) -> None:
            for turn in range(200):
                loader.load_state_dict(states[turn % 2])
            stop.set()

        def train(number: int) -> None:
            while not stop.is_set():
                try:
                    last = None
                    for batch in iter(loader):
                        first = int(batch["id"][0])
                        assert last is None or first == last + 10
                        last = first
                except (forebay.ClosedError, forebay.InvalidError):
                    pass

        harness.in_threads(3, lambda number: move(number) if number == 0 else train(number))


def test_close_from_another_thread_ends_a_waiting_next(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    root = tmp_path / "root"
    harness.make_topic(root, "slow", [100] * 3, block_bytes="512", segment_bytes="4KiB")
    loader = forebay.DataLoader("slow", 10, root=root, output="numpy")
    with harness.stuck(harness.sealed_segments(root, "slow")[1]):
        batches = iter(loader)
        loader_closed = threading.Thread(target=loader.close)
        late = threading.Timer(0.1, loader_closed.start)
        late.start()
        with pytest.raises(forebay.ClosedError):
            deque(batches)
        late.join()
    loader_closed.join()


# Forks


def test_a_forked_child_is_refused_and_disturbs_nobody(root: Path) -> None:
    """lancedb/lance#3640, #2204, #2405: made before the fork, used after: hangs."""
    loader = make(root)
    batches = iter(loader)
    kept = [next(batches) for _ in range(3)]
    wanted = [ids_of(batch) for batch in kept]
    state = loader.state_dict()

    def child() -> None:
        for use in (
            lambda: next(batches),
            lambda: iter(loader),
            lambda: len(loader),
            loader.state_dict,
            loader.stats,
            lambda: loader.load_state_dict(state),
            lambda: loader.set_epoch(1),
        ):
            with pytest.raises(forebay.ClosedError):
                use()
        assert [ids_of(batch) for batch in kept] == wanted, "what the parent held can be read"
        kept.clear()
        loader.close()

    for _ in range(5):
        assert harness.forked(child) == 0
    assert [ids_of(batch) for batch in kept] == wanted
    seen = flat(wanted) + flat(ids_of(batch) for batch in batches)
    assert sorted(seen) == list(range(400))
    held = guards(root)
    loader.close()
    assert guards(root) == held - 1


def test_a_forked_child_of_a_transforming_loader(root: Path) -> None:
    with make(root, transform=lambda batch, rng: ids_of(batch)) as loader:
        batches = iter(loader)
        first = next(batches)

        def child() -> None:
            with pytest.raises(forebay.ClosedError, match="another process"):
                next(batches)
            with pytest.raises(forebay.ClosedError):
                loader.state_dict()
            loader.close()

        assert harness.forked(child) == 0
        assert sorted(first + flat(batches)) == list(range(400))


def test_a_child_makes_loaders_of_its_own(root: Path) -> None:
    parents = make(root)
    next(iter(parents))
    never_begun = make(root, "small", 10)

    def child() -> None:
        with make(root) as loader:
            assert sorted(flat(harness.batches_of(loader))) == list(range(400))
        assert sorted(flat(harness.batches_of(never_begun))) == list(range(317))

    assert harness.forked(child) == 0
    assert sorted(flat(harness.batches_of(never_begun))) == list(range(317))


def test_a_fork_while_other_threads_read(root: Path) -> None:
    stop = threading.Event()

    def read() -> None:
        with make(root) as loader:
            while not stop.is_set():
                assert sorted(flat(harness.batches_of(loader))) == list(range(400))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with make(root, "small", 10) as loader:
            batches = iter(loader)

            def child() -> None:
                with pytest.raises(forebay.ClosedError):
                    next(batches)

            codes = [harness.forked(child) for _ in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 10


def test_a_child_that_exits_as_programs_do_leaves_its_parent_whole(root: Path) -> None:
    code = (
        "import os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import forebay, harness\n"
        "loader = forebay.DataLoader('wide', 8, root=sys.argv[1], output='numpy', shuffle=True)\n"
        "batches = iter(loader); kept = [next(batches) for _ in range(3)]\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "ids = [one for batch in [*kept, *batches] for one in harness.ids_of(batch)]\n"
        "assert sorted(ids) == list(range(400))\n"
        "os.fork()\n"
    )
    done = harness.python(code, root, harness.TESTS)
    assert (done.returncode, done.stderr) == (0, "")


# The interpreter's exit

EXITS = {
    "a loader that was never begun": "",
    "a live iterator": "batches = iter(loader); next(batches)",
    "an iterator in a builtin": "import builtins; builtins.it = iter(loader); builtins.it.__next__()",
    "batches in use": "import builtins; builtins.kept = [batch for _, batch in zip(range(5), loader)]",
    "a view in use": "import builtins; builtins.view = next(iter(loader))['x'][2:]",
    "a generator around it": "import builtins; builtins.g = (b for b in loader); next(builtins.g)",
    "a reference cycle": "loader.me = loader; loader.it = iter(loader); next(loader.it)",
    "an iterator that transforms": (
        "import builtins\n"
        "loader = forebay.DataLoader('wide', 8, root=sys.argv[1], output='numpy', transform=lambda b, r: b)\n"
        "builtins.it = iter(loader); next(builtins.it)"
    ),
    "a thread within next": (
        "import threading\n"
        "def read():\n"
        "    try:\n"
        "        while True: list(loader)\n"
        "    except forebay.ClosedError: pass\n"
        "thread = threading.Thread(target=read, daemon=True); thread.start()\n"
        "while loader.stats()['batches'] < 5: pass"
    ),
    "an error": "next(iter(loader)); raise SystemExit(0)",
}


@pytest.mark.parametrize("case", EXITS)
def test_the_interpreter_exits_with(case: str, root: Path) -> None:
    code = (
        "import sys, forebay\nloader = forebay.DataLoader('wide', 8, root=sys.argv[1], output='numpy', shuffle=True)\n"
    )
    done = harness.python(code + EXITS[case], root)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_daemon_thread_that_waits_does_not_spoil_the_exit(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    root = tmp_path / "root"
    harness.make_topic(root, "slow", [100] * 3, block_bytes="512", segment_bytes="4KiB")
    code = (
        "import os, sys, threading, forebay\n"
        "loader = forebay.DataLoader('slow', 10, root=sys.argv[1], output='dlpack')\n"
        "os.rename(sys.argv[2], sys.argv[2] + '.aside'); os.mkfifo(sys.argv[2])\n"
        "def read():\n"
        "    try: list(loader)\n"
        "    except forebay.ClosedError: pass\n"
        "thread = threading.Thread(target=read, daemon=True); thread.start()\n"
        "while loader.stats()['stall_ns'] < 100_000_000: pass\n"
    )
    done = harness.python(code, root, harness.sealed_segments(root, "slow")[1])
    assert (done.returncode, done.stderr) == (0, "")
