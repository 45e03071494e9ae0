"""The real commands as processes: what they say when they cannot."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import COMMAND, environment

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 240


def begin(*arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start a command of the pipeline."""
    return subprocess.Popen(
        [COMMAND, "pipeline", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "--journal", "{tmp}/none", "--lake", "{tmp}/lake"), 2, "is no directory"),
        (("run", "--journal", "{tmp}", "--lake", "{tmp}/file"), 2, "is a file"),
        (("run", "--journal", "{tmp}", "--lake", "s3://lake"), 2, "s3:// is not supported"),
        (("run", "--journal", "{tmp}", "--lake", "{tmp}/lake", "--from", "2026-02-01", "--to", "2026-01-01"), 2, "is after --to"),
        (("run", "--journal", "{tmp}", "--lake", "{tmp}/lake", "--prices", "{tmp}/gap.toml"), 2, "a gap between 5 and 9"),
        (("run", "--journal", "{tmp}", "--lake", "{tmp}/lake"), 6, "needs Java 17 or later"),
        (("stream", "--journal", "{tmp}", "--lake", "{tmp}/lake", "--every", "10"), 2, "must be 1s or more"),
        (("archive", "--lake", "{tmp}/lake", "--to", "{tmp}/cold", "--older-than", "5h"), 2, "whole days"),
        (("erase", "--lake", "{tmp}/lake", "--tenant", "acme"), 2, "give --yes and --reason"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    """Told before Spark starts, where that can be; without Java there is no Spark."""
    (tmp_path / "manifest").mkdir()
    (tmp_path / "file").write_text("")
    tiers = '[{ from = "0", upto = "5", price = "1" }, { from = "9", price = "1" }]'
    (tmp_path / "gap.toml").write_text(f'[[items]]\nname = "Ops"\nmetric = "operations"\ntiers = {tiers}\n')
    with begin(*(one.format(tmp=tmp_path) for one in arguments), PATH=str(tmp_path), JAVA_HOME="") as process:
        output, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (code, "")
    assert said in complaints
    assert complaints.count("\n") == 1
