"""Shows what Forebay is for, on this machine, in a minute or two. `scripts/quickstart` sets up and runs it.

It makes topics of real data, trains an image classifier and a language model, kills each trainer with SIGKILL in the
middle of an epoch, starts it again, and compares the samples with those of a run that nobody disturbed: by ids, in
order, also for two processes that go on from the same checkpoint. It fails if they differ, or if nothing was learned.

All it writes is in one folder, which may be deleted. Topics are kept for the next time; runs are made anew.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import platform
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ledger
from ledger import Entry
from processes import Process, ProcessError, Processes


def shown(path: Path) -> Path:
    """A path as short as it can be from where the user is."""
    path = path.absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


HERE = Path(__file__).resolve().parent
FOREBAY = shown(Path(sys.executable).with_name("forebay"))
"""The command that belongs to this interpreter."""
SEED = 12
"""Draws the steps at which trainers are killed."""
KILLS_MAX = 5
"""Attempts to kill a trainer before it is done."""
METER_S = 0.1
"""Time between two numbers of a line that counts."""
RANKS = 2
"""Processes that go on from a checkpoint together."""


@dataclass(frozen=True)
class Show:
    """One training that is shown: its job in train.py, and by framework its length and the least it must reach."""

    job: str
    title: str
    steps: dict[str, int]
    goal: dict[str, float]

    def told(self, score: float) -> str:
        """A score as people say it."""
        return f"{score:.1%}" if self.job == "digits" else f"{score:.2f}"

    def reached(self, score: float, framework: str) -> bool:
        """Whether that was learning: the share of digits is to be high, the number of bits low."""
        return score >= self.goal[framework] if self.job == "digits" else score <= self.goal[framework]


SHOWS = (
    Show("digits", "Handwritten digits", {"torch": 360, "numpy": 900}, {"torch": 0.94, "numpy": 0.92}),
    Show("text", "The source text of Python's own library", {"torch": 300, "numpy": 300}, {"torch": 3.0, "numpy": 3.4}),
)


class ShowError(Exception):
    """Something is not as promised."""


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-torch", action="store_true", help="models in NumPy; torch is not imported")
    parser.add_argument("--folder", type=Path, default=HERE.parents[1] / ".quickstart", help="where all is written")
    arguments = parser.parse_args()
    folder = shown(arguments.folder)
    # Ends as by Ctrl-C, so that no trainer is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with locked(folder), Processes() as processes:
            started = time.monotonic()
            Quickstart(folder, "numpy" if arguments.no_torch else "torch", processes).run()
    except (ShowError, ProcessError, OSError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is left running, and the next start makes all runs anew", file=sys.stderr)
        return 128 + signal.SIGINT
    heading(f"All as promised, in {time.monotonic() - started:.0f} s. What to try next")
    line("look", f"{FOREBAY} topic show digits --root {folder / 'data'}")
    line("your data", f"{FOREBAY} ingest FILES --topic mine; {shown(HERE / 'train.py')} is a loop to begin with")
    line("every check", f"{shown(HERE.parent / 'test')}{' --no-torch' * arguments.no_torch}")
    return 0


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder, so that two quickstarts do not spoil each other's runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ShowError(f"another quickstart is running: folder={folder}") from None
        yield


class Quickstart:
    """The whole of it, in the order of its methods."""

    def __init__(self, folder: Path, framework: str, processes: Processes) -> None:
        self.files, self.root, self.runs = folder / "files", folder / "data", folder / "runs"
        self.framework, self.processes = framework, processes

    def run(self) -> None:
        """Data, topics, and the trainings."""
        self.make_topics()
        for show in SHOWS:
            heading(show.title)
            self.train(show)

    def make_topics(self) -> None:
        """Data as files, then in topics."""
        heading("Real data that need no download")
        self.prepare()
        heading("From files to topics")
        self.ingest("digits", "digits.npz")
        self.ingest("digits-test", "digits-test.npz")
        self.ingest("text", "shards/*.parquet")
        self.ingest("text-test", "text-test.parquet")

    def prepare(self) -> None:
        """Makes the files, unless they are there already and would be the same."""
        packages = [f"{package} {version(package)}" for package in ("numpy", "pyarrow", "scikit-learn")]
        script = hashlib.sha256((HERE / "prepare.py").read_bytes()).hexdigest()
        made_from = "\n".join([f"Python {platform.python_version()}", *packages, script])
        key = self.files / "made-from"
        if not key.exists() or key.read_text() != made_from:
            for stale in (self.files, self.root):
                shutil.rmtree(stale, ignore_errors=True)
            output = self.files.with_suffix(".txt")
            self.processes.start([sys.executable, str(HERE / "prepare.py"), str(self.files)], output).wait()
            key.write_text(made_from)
        for file in sorted(file for file in self.files.rglob("*") if file.suffix):
            print(f"  {file}  {file.stat().st_size / 1024:,.0f} KiB")

    def ingest(self, topic: str, pattern: str) -> None:
        """Stores files in a topic, each once, however often this is run."""
        command = [
            str(FOREBAY),
            "ingest",
            str(self.files / pattern),
            "--topic",
            topic,
            "--root",
            str(self.root),
            "--quiet",
        ]
        print("$", shlex.join(command), flush=True)
        if (code := subprocess.run(command, check=False).returncode) != 0:
            raise ShowError(f"files could not be stored: topic={topic} exit={code}")

    def train(self, show: Show) -> None:
        """Trains straight through, then with a kill in the middle, and compares."""
        runs, steps = self.runs / show.job, show.steps[self.framework]
        shutil.rmtree(runs, ignore_errors=True)

        self.finish(self.start(show, runs / "straight"), "straight", runs / "straight" / "ledger-1.jsonl", steps)
        straight = ledger.read(runs / "straight" / "ledger-1.jsonl")
        result = read_json(runs / "straight" / "result.json")
        line("model", f"{result['model']}; {result['framework']}")
        line("straight", f"{steps} steps of {result['batch']} samples, to {step_in_epoch(steps, result)}")

        killed = self.kill(show, runs)
        latest = read_json(runs / "latest-when-killed.json")
        saved, state_bytes = latest["step"], len(json.dumps(latest["loader"]))
        line("killed", f"by SIGKILL after step {len(killed)}, {step_in_epoch(len(killed), result)}")
        self.finish(self.start(show, runs / "killed"), "resumed", runs / "killed" / "ledger-2.jsonl", steps - saved)
        resumed = ledger.read(runs / "killed" / "ledger-2.jsonl")
        line(
            "resumed", f"after step {saved}, from the last checkpoint: the model, and {state_bytes} bytes for the data"
        )
        ranks = self.read_by_ranks(show, runs)

        check("ids equal", ledger.difference(straight, straight, 1, steps))
        check("ids equal", ledger.uneven(straight, result["samples_per_epoch"]))
        check("ids equal", ledger.difference(straight, killed, 1, len(killed)))
        check("ids equal", ledger.difference(straight, resumed, saved + 1, steps))
        line("ids equal", f"yes, {samples(straight)} of {samples(straight)}, in the same order, none lost, none twice")
        check(f"as {RANKS} ranks", ledger.difference(straight, ranks, saved + 1, steps))
        line(
            f"as {RANKS} ranks",
            f"yes, {samples(ranks)} of {samples(ranks)} from the checkpoint on, by {RANKS} processes",
        )
        line("losses", compared(straight, killed[:saved] + resumed))
        self.report(show, result, read_json(runs / "killed" / "result.json"))

    def report(self, show: Show, straight: dict[str, Any], killed: dict[str, Any]) -> None:
        """What the training came to, and what feeding it cost."""
        before, after, too = (show.told(score) for score in (straight["before"], straight["after"], killed["after"]))
        what = "accuracy" if show.job == "digits" else "bits a byte"
        line(what, f"{before} before, {after} after, {too} with the kill, on samples never trained on")
        line("speed", f"{straight['samples'] / straight['wall_s']:,.0f} samples/s")
        line("stall", f"{straight['stall_s'] / straight['wall_s']:.1%} of the time was spent waiting for data")
        for name, score in (("straight", straight["after"]), ("killed", killed["after"])):
            if not show.reached(score, self.framework):
                goal = show.told(show.goal[self.framework])
                raise ShowError(f"learned too little: job={show.job} run={name} score={show.told(score)} goal={goal}")

    def start(self, show: Show, run: Path) -> Process:
        """Starts the training program in the folder of a run."""
        run.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / "train.py"), show.job, "--root", str(self.root), "--run", str(run)]
        command += ["--steps", str(show.steps[self.framework]), "--framework", self.framework]
        return self.processes.start(command, run / "output.txt")

    def finish(self, trainer: Process, what: str, file: Path, steps: int) -> None:
        """Waits for a run's good end, with a line that counts its steps."""
        meter = Meter(what, steps)
        trainer.wait_for_lines(file, steps, meter.tell)
        meter.clear()
        trainer.wait()

    def kill(self, show: Show, runs: Path) -> list[Entry]:
        """Starts a run and kills it at a step drawn by lot; returns what it had done by then."""
        run, steps = runs / "killed", show.steps[self.framework]
        drawn = random.Random(f"{SEED} {show.job}").randint(steps // 3, steps // 2)
        for attempt in range(KILLS_MAX):
            shutil.rmtree(run, ignore_errors=True)
            trainer = self.start(show, run)
            # A machine too busy to strike before the end strikes earlier the next time.
            meter = Meter("to be killed", steps)
            in_time = trainer.wait_for_lines(run / "ledger-1.jsonl", drawn >> attempt, meter.tell)
            struck = in_time and trainer.kill() == -signal.SIGKILL
            meter.clear()
            if not struck:
                trainer.wait()
            elif (run / "latest.json").exists():
                shutil.copy(run / "latest.json", runs / "latest-when-killed.json")
                return ledger.read(run / "ledger-1.jsonl")
        raise ShowError(f"the trainer was done each time before it could be killed: attempts={KILLS_MAX}")

    def read_by_ranks(self, show: Show, runs: Path) -> list[Entry]:
        """Goes on from the checkpoint with several ranks at once, each a process, and joins what they read."""
        state, steps = runs / "latest-when-killed.json", show.steps[self.framework]
        command = [sys.executable, str(HERE / "replay.py"), show.job, "--root", str(self.root), "--latest", str(state)]
        command += ["--steps", str(steps), "--world-size", str(RANKS)]
        ledgers = [runs / f"rank-{rank}.jsonl" for rank in range(RANKS)]
        ranks = [
            self.processes.start([*command, "--rank", str(rank), "--ledger", str(file)], file.with_suffix(".txt"))
            for rank, file in enumerate(ledgers)
        ]
        for process in ranks:
            process.wait()
        return ledger.joined([ledger.read(file) for file in ledgers])


class Meter:
    """A line that counts while one waits, on a terminal only."""

    def __init__(self, what: str, steps: int) -> None:
        self.what, self.steps, self.told_at = what, steps, time.monotonic()
        self._show("starting")

    def tell(self, step: int) -> None:
        """Shows a step, not more often than eyes follow."""
        if time.monotonic() - self.told_at > METER_S:
            self.told_at = time.monotonic()
            self._show(f"step {step} of {self.steps}")

    def clear(self) -> None:
        """Leaves the line empty for what is to stand there."""
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)

    def _show(self, text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r  {self.what:<12} {text}\033[K", end="", flush=True)


def check(what: str, difference: str | None) -> None:
    """Goes on only if there is no difference."""
    if difference is not None:
        line(what, "NO")
        raise ShowError(f"not the samples of the straight run: {difference}")


def compared(straight: list[Entry], other: list[Entry]) -> str:
    """How near the losses of two runs are. They may differ in the last bits where sums are made in another order."""
    apart = max(abs((a.loss or 0) - (b.loss or 0)) for a, b in zip(straight, other, strict=True))
    return "equal in every step, to the last bit" if apart == 0 else f"equal within {apart:.1g} in every step"


def step_in_epoch(step: int, result: dict[str, Any]) -> str:
    """Where in its epochs a run is after a step."""
    epoch, inside = divmod(step, result["steps_per_epoch"])
    if inside == 0:
        return f"the end of epoch {epoch:,}"
    return f"step {inside:,} of {result['steps_per_epoch']:,} of epoch {epoch + 1}"


def samples(entries: list[Entry]) -> str:
    """How many samples, as people write numbers."""
    return f"{sum(len(entry.ids) for entry in entries):,}"


def read_json(file: Path) -> dict[str, Any]:
    """A JSON file's content."""
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def heading(text: str) -> None:
    """Begins a part, as the scripts do."""
    print(f"\n==> {text}", flush=True)


def line(what: str, text: str) -> None:
    """One line of a report."""
    print(f"  {what:<12} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
