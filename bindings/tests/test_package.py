"""What importing the package costs, and what it shows."""

import re
import signal
import subprocess
import sys
from collections.abc import Sequence

import forebay
import pytest
from forebay import _arguments, _cli, _forebay


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    return done.stdout


def test_import_brings_in_no_framework() -> None:
    heavy = {"torch", "numpy", "pyarrow", "polars", "jax", "asyncio", "multiprocessing", "difflib"}
    loaded = python("import sys, forebay; print(*{name.partition('.')[0] for name in sys.modules})")
    assert not heavy & set(loaded.split())


def test_public_names_are_there() -> None:
    for name in forebay.__all__:
        assert hasattr(forebay, name)
    assert re.fullmatch(r"\d+\.\d+\.\d+", forebay.__version__)


def test_habits_are_not_parameters_of_ours() -> None:
    ours = {"batch_size", "shuffle", "drop_last", "timeout", "seed", "device"}
    assert not ours & set(_arguments.HABITS)


def test_the_command_hands_on_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[str]] = []

    def run_cli(argv: Sequence[str]) -> int:
        seen.append(argv)
        return 3

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["forebay", "topic", "ls"])
    monkeypatch.setattr(_forebay, "run_cli", run_cli)
    try:
        assert _cli.main() == 3
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [["topic", "ls"]]
