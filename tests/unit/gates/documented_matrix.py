"""The matrix of roles and actions in docs/reference/access.md."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "access.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, with the header row first."""
    section = DOCUMENT.split(f"\n{heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if " | " in line and not line.startswith(("| --", "--"))]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def _documented() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for role, text in rows("## Roles")[1:]:
        names = [name.strip().strip("`") for name in text.split(",")]
        found[role] = set().union(*found.values()) if names[0] == "All above" else set()
        found[role] |= {name for name in names if name != "All above"}
    return found


DOCUMENTED = _documented()
