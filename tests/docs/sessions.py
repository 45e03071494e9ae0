"""Runs the console sessions of a page: every command in one shell, compared with what the page shows.

In the output on a page, ``…`` in a line matches any text, and a line of ``…`` any lines. Columns may be aligned
differently. A command without output on the page may print anything, but must succeed; one whose page shows an
error (``tenantq: …``) may fail.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = r"^\$ ((?:.*(?:\\|do)\n)*.*)"
_ADDRESS = "127.0.0.1:7070"
_MARK = "=-=-= "


class Step(NamedTuple):
    """A command, or a file to save, with the output that the page shows."""

    command: str
    shown: str
    file: str = ""


def steps(page: str) -> list[Step]:
    """Return the commands and files of a page, in order."""
    found: list[Step] = []
    for language, title, text in _BLOCK.findall(page):
        if language == "console":
            for command, shown in re.findall(COMMAND + r"\n((?:(?!\$ ).*\n?)*)", text, re.MULTILINE):
                found.append(Step(command, shown))
        elif title:
            found.append(Step(text, "", title))
    return found


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return [text for found, _, text in _BLOCK.findall(page) if found == language]


def run_session(todo: list[Step], directory: Path, variables: dict[str, str], seconds: float) -> list[str]:
    """Run all steps in one shell and return what differs from the page."""
    script = ["set -m", *(_line(step) for step in todo)]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=seconds, check=False, cwd=directory, env=variables,
    )  # fmt: skip
    commands = [step for step in todo if not step.file]
    outputs = re.findall(rf"{_MARK}(\d+)\n(.*?)\n{_MARK}exit (\d+)\n", done.stdout, re.DOTALL)
    assert len(outputs) == len(commands), done.stdout
    address = variables["TENANTQ_HTTP"]
    return [
        f"$ {step.command}\n{printed}\nexit {code}; the page shows:\n{step.shown}"
        for step, (_, printed, code) in zip(commands, outputs, strict=True)
        if not fits(step.shown.replace(_ADDRESS, address), printed, int(code))
    ]


def _line(step: Step) -> str:
    if step.file:
        return f"cat > {step.file} <<'END OF FILE'\n{step.command}END OF FILE"
    command = step.command
    if command.endswith("&"):  # a server: the reader waits until it is ready
        command += '\nuntil curl -sf "http://$TENANTQ_HTTP/readyz" >/dev/null; do sleep 0.1; done; sleep 0.2'
    if command.startswith("kill"):
        command += "; wait"
    return f"echo; echo '{_MARK}0'\n{command}\ncode=$?; echo; echo '{_MARK}exit' $code"


def fits(shown: str, printed: str, code: int) -> bool:
    """Return whether the output of a command matches the page."""
    if code and "tenantq: " not in shown:
        return False
    if not shown.strip():
        return True
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    pattern = ""
    for line in (" ".join(line.split()) for line in shown.splitlines() if line.strip()):
        pattern += "(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
