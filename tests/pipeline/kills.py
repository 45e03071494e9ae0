"""Kill the pipeline's commands repeatedly: the result must equal that of an uninterrupted run.

Each kill waits for a step that the command takes on disk, such as the staging or the commit of a table. The steps are those
of the uninterrupted run.

python -m tests.pipeline.kills --kills 20
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tenantq.journal.export_target import DirectoryTarget
from tests.acceptance.command import COMMAND, environment
from tests.pipeline.conftest import rows_digest
from tests.pipeline.journals import MINUTE, write_history
from tests.processes import alive, descendants, kill_tree

LEFT_OVER: Final = ("_staging", "_incoming")
_NOT_FOUND: Final = 3
_MARK: Final = re.compile(r"(\.[0-9a-f]{8}|-[^-/]*)(?=\.parquet$)")
_GONE_S: Final = 30
_POLL_S: Final = 0.002
_DELAYS_S: Final = (0.0, 0.0, 0.01, 0.05)  # from a step to the kill


def steps(lake: Path, cold: Path) -> Counter[str]:
    """Return the steps that commands have taken on a lake and its archive, as files show them, and how often."""
    staged = (path.name for path in lake.glob("_staging/*/*"))
    commits = (path.parts[-3] for path in lake.glob("*/_delta_log/*.json"))
    archived = ("/".join(path.parts[-3:-1]) for path in cold.glob("*/*/*.parquet"))
    certificates = (path.name for path in lake.glob("erasures/*.json"))
    named = {"stage": staged, "commit": commits, "archive": archived, "certify": certificates}
    return Counter(f"{kind} {name}" for kind, names in named.items() for name in names)


class KillRun:
    """A journal, and the lakes that commands build from it."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self._chance = root, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.missed: Counter[str] = (
            Counter()
        )  # kills that were too late, because the command did not take the step again
        self.steps: dict[str, list[str]] = {}  # of an uninterrupted command, in their order
        self.expected: dict[str, dict[str, str]] = {}  # its result
        (root / "journal").mkdir()
        write_history(DirectoryTarget(root / "journal"), seed=seed, rounds=20, every_ms=150 * MINUTE)

    def run_uninterrupted(self) -> None:
        """Record the result and the steps of each command."""
        for name in ("run", "archive", "erase"):
            before, seen = self._steps("uninterrupted"), dict[str, None]()
            process = self._begin(name, "uninterrupted")
            while process.poll() is None:
                seen |= dict.fromkeys(self._steps("uninterrupted") - before)
                time.sleep(_POLL_S)
            self._end(name, "uninterrupted", process)
            self.steps[name] = list(seen)
            self.expected[name] = self._result("uninterrupted")
        self.steps["stream"], self.expected["stream"] = self.steps["run"], self.expected["run"]

    def run_interrupted(self, lake: str, kills: int) -> None:
        """Run the commands on a lake, killing each up to ``kills`` times, and compare the result of each."""
        for name in (self._chance.choice(("run", "stream")), "archive", "erase"):
            for _ in range(self._chance.randint(1, kills)):
                first, before = self._chance.randrange(len(self.steps[name])), self._steps(lake)
                process = self._begin(name, lake)
                step = self._await_step(self.steps[name][first:], lake, before, process)
                if not step:  # an earlier kill came after these steps
                    self._end(name, lake, process)
                    self.missed[name] += 1
                    break
                self._kill(name, step, process)
            self._end(name, lake, self._begin(name, lake))
            if self._result(lake) != self.expected[name]:
                differing = dict(self._result(lake).items() ^ self.expected[name].items())
                sys.exit(f"{lake}: after {name} it differs from an uninterrupted run: {sorted(differing)}")

    def _begin(self, name: str, lake: str) -> subprocess.Popen[str]:
        journal = ("--journal", str(self._root / "journal"))
        given = {
            "run": journal,
            "stream": (*journal, "--files-per-batch", "7"),
            "archive": ("--to", str(self._root / f"{lake}-cold"), "--older-than", "1d"),
            "erase": ("--tenant", "umbrella", "--yes", "--reason", "a test of erasure"),
        }[name]
        command = [COMMAND, "pipeline", name, "--lake", str(self._root / lake), "--master", "local[2]", *given]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
        )

    def _steps(self, lake: str) -> Counter[str]:
        return steps(self._root / lake, self._root / f"{lake}-cold")

    def _await_step(self, wanted: list[str], lake: str, before: Counter[str], process: subprocess.Popen[str]) -> str:
        """Wait until a command takes a wanted step that it had not taken ``before``; return it, or "" if the command ends."""
        while process.poll() is None:
            taken = self._steps(lake) - before
            step = next((one for one in wanted if taken[one]), "")
            time.sleep(self._chance.choice(_DELAYS_S) if step else _POLL_S)
            if step and process.poll() is None:
                return step
        return ""

    def _kill(self, name: str, step: str, process: subprocess.Popen[str]) -> None:
        """Kill the command alone or with its children; in both cases all of them must end soon."""
        started = descendants(process.pid)
        if self._chance.random() < 0.5:
            process.kill()  # Java continues for a moment and must do no harm
        else:
            kill_tree(process.pid)
        process.communicate()
        self.kills[name] += 1
        print(f"killed {name} at {step}, {self.kills.total()} in total", flush=True)
        end = time.monotonic() + _GONE_S
        while alive(started):
            if time.monotonic() > end:
                sys.exit(f"{name} was killed, and its children are still running: {alive(started)}")
            time.sleep(0.1)

    def _end(self, name: str, lake: str, process: subprocess.Popen[str]) -> None:
        """Let a command run to its end. An erasure killed after its last step has nothing left to erase."""
        _, said = process.communicate()
        done = name == "erase" and process.returncode == _NOT_FOUND and self.kills["erase"]
        if (process.returncode or said) and not done:
            sys.exit(f"{lake}: {name} ended with exit code {process.returncode}: {said}")

    def _result(self, lake: str) -> dict[str, str]:
        """Return a digest of the rows in each file of the lake and of cold storage, and exit if anything is left over."""
        place, cold = self._root / lake, self._root / f"{lake}-cold"
        left = [name for name in LEFT_OVER if (place / name).exists()]
        left += [str(path) for path in place.rglob(".*") if "_checkpoint" not in path.parts]
        if left:
            sys.exit(f"{lake}: left over: {left}")
        files = [path for path in (*place.glob("[a-z]*/**/*.parquet"), *cold.rglob("*.parquet")) if path.is_file()]
        found: dict[str, str] = {}
        for path in sorted(files):
            name = path.relative_to(self._root).as_posix().removeprefix(lake)
            name = _MARK.sub("", name)  # the mark of the erasure that replaced an archived file
            found[name] = f"{found.get(name, '')} {rows_digest(path)}"
        certificates = sorted(path.name for path in (place / "erasures").glob("*.json"))
        return {**found, "certificates": ", ".join(certificates)}


def main() -> None:
    """Kill as often as asked, on one lake after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        kill_run = KillRun(Path(place), given.seed)
        kill_run.run_uninterrupted()
        number = 0
        while kill_run.kills.total() < given.kills:
            number += 1
            kill_run.run_interrupted(f"lake{number}", kills=4)
    each = ", ".join(f"{name} {count}" for name, count in sorted(kill_run.kills.items()))
    print(
        f"{kill_run.kills.total()} kills ({each}), {kill_run.missed.total()} too late, on {number} lakes in "
        f"{time.monotonic() - begun:.0f} s, seed {given.seed}: every file has the rows of an uninterrupted run"
    )


if __name__ == "__main__":
    main()
