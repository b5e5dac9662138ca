"""Other programs, started and watched by this one; none outlives it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

POLL_S = 0.001
"""How often a file that another process writes is looked at."""
SILENCE_MAX_S = 300.0
"""A process that takes longer for its next line hangs."""
LAST_WORDS = 15
"""Lines told of a process that failed."""


class ProcessError(Exception):
    """A process failed or hangs; the text ends with its last words."""


@dataclass
class Process:
    """A started program; what it says goes to a file."""

    popen: subprocess.Popen[bytes]
    output: Path

    def wait(self) -> None:
        """Waits for its good end."""
        if self.popen.wait() != 0:
            words = self.output.read_text(errors="replace").strip().splitlines()[-LAST_WORDS:]
            about = f"a process failed: exit={self.popen.returncode} output={self.output}"
            raise ProcessError("\n  ".join([about, *words]))

    def wait_for_lines(self, file: Path, lines: int, tell: Callable[[int], None]) -> bool:
        """Waits until it has written so many lines to a file, told one by one; False if it ended before."""
        found, since, opened = 0, time.monotonic(), None
        try:
            while True:
                ended = self.popen.poll() is not None
                if opened is None and file.exists():
                    opened = file.open("rb")
                if opened is not None and (fresh := opened.read().count(b"\n")):
                    found, since = found + fresh, time.monotonic()
                    tell(found)
                if found >= lines or ended:
                    return found >= lines
                if time.monotonic() - since > SILENCE_MAX_S:
                    raise ProcessError(f"a process hangs: lines={found} file={file} output={self.output}")
                time.sleep(POLL_S)
        finally:
            if opened is not None:
                opened.close()

    def kill(self) -> int:
        """SIGKILL: no handler, no clean-up, no last word. Returns the exit code, which tells whether it struck."""
        self.popen.kill()
        return self.popen.wait()


class Processes:
    """Starts programs, and at its end kills what still runs of them."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def start(self, command: Sequence[str], output: Path) -> Process:
        """Starts a program; its output is added to a file."""
        with output.open("ab") as file:
            popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self._started.append(Process(popen, output))
        return self._started[-1]

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            if process.popen.poll() is None:
                process.kill()
