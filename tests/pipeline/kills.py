"""Kill the pipeline's commands repeatedly at random times: the result must equal that of an uninterrupted run.

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


class KillRun:
    """A journal, and the lakes that commands build from it."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self._chance = root, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.took: dict[str, float] = {}  # duration of an uninterrupted command in seconds
        self.expected: dict[str, dict[str, str]] = {}  # its result
        (root / "journal").mkdir()
        write_history(DirectoryTarget(root / "journal"), seed=seed, rounds=20, every_ms=150 * MINUTE)

    def run_uninterrupted(self) -> None:
        """Record the result and the duration of each command."""
        for name in ("run", "archive", "erase"):
            begun = time.monotonic()
            self._end(name, "uninterrupted", self._begin(name, "uninterrupted"))
            self.took[name] = time.monotonic() - begun
            self.expected[name] = self._result("uninterrupted")
        self.took["stream"], self.expected["stream"] = self.took["run"], self.expected["run"]

    def run_interrupted(self, lake: str, kills: int) -> None:
        """Run the commands on a lake, killing each up to ``kills`` times, and compare the result of each."""
        for name in (self._chance.choice(("run", "stream")), "archive", "erase"):
            for _ in range(self._chance.randint(1, kills)):
                process = self._begin(name, lake)
                try:
                    process.wait(self.took[name] * self._chance.uniform(0.15, 1.0))
                except subprocess.TimeoutExpired:
                    self._kill(name, process)
                else:
                    self._end(name, lake, process)
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

    def _kill(self, name: str, process: subprocess.Popen[str]) -> None:
        """Kill the command alone or with its children; in both cases all of them must end soon."""
        started = descendants(process.pid)
        if self._chance.random() < 0.5:
            process.kill()  # Java continues for a moment and must do no harm
        else:
            kill_tree(process.pid)
        process.communicate()
        self.kills[name] += 1
        print(f"killed {name}, {self.kills.total()} in total", flush=True)
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
        f"{kill_run.kills.total()} kills ({each}) on {number} lakes in {time.monotonic() - begun:.0f} s, seed {given.seed}: "
        "every file has the rows of an uninterrupted run"
    )


if __name__ == "__main__":
    main()
