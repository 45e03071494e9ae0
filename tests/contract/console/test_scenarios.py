"""The three console scenarios work from start to end over a real server, and the docs show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.console.scenarios import IMAGES, SCENARIOS, record

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.command import Served

PICTURE_BYTES_MAX = 150_000


@pytest.mark.parametrize("name", SCENARIOS)
async def test_scenario_works_and_its_picture_is_current(
    scenario_served: Served, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step shows what the user needs for the next one, and the picture in the docs has the same steps."""
    monkeypatch.chdir(tmp_path)
    strip = await record(scenario_served, name)
    picture = (IMAGES / f"console-{name}.svg").read_text()
    assert len(picture) < PICTURE_BYTES_MAX, "record smaller screens"
    missing = [one for one in strip.captions if one.replace("&", "&amp;") not in picture]
    assert not missing, "the picture is old: run python -m tests.contract.console.scenarios"
