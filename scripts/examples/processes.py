"""Other programs, started and watched by this one; none outlives it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
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

    def wait_for_lines(self, file: Path, lines: int) -> bool:
        """Waits until it has written so many lines to a file; False if it ended before."""
        found, since = 0, time.monotonic()
        while self.popen.poll() is None:
            now = file.read_bytes().count(b"\n") if file.exists() else 0
            if now >= lines:
                return True
            if now > found:
                found, since = now, time.monotonic()
            elif time.monotonic() - since > SILENCE_MAX_S:
                raise ProcessError(f"a process hangs: lines={found} file={file} output={self.output}")
            time.sleep(POLL_S)
        return False

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
