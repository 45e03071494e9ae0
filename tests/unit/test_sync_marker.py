"""The sync marker, file ``heart``: two alternating slots; a torn one is ignored, and two bad ones are refused."""

from pathlib import Path

import pytest

from tenantq.errors import StoreDamaged
from tenantq.store.interface import Beat
from tenantq.store.sync_marker import _SLOT, _SLOT_BYTES, SyncMarkerFile, read_beat

BOOT = b"b" * 16
MANIFEST = (5, 1_234)
WHOLE = _SLOT.size + 4  # a slot and its checksum


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a sync marker."""
    return tmp_path / "heart"


def beats(path: Path, *numbers: int) -> None:
    """Write beats with these sequence numbers."""
    marker = SyncMarkerFile(path)
    for n in numbers:
        marker.beat(Beat(n, 100 + n, 200 + n, 300 + n, BOOT, False, *MANIFEST))
    marker.close()


def corrupt(path: Path, at: int) -> None:
    """Flip a byte."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0xFF
    path.write_bytes(raw)


def test_a_missing_marker_is_none(path: Path) -> None:
    """Reading does not create it."""
    assert read_beat(path) is None
    assert not path.exists()


def test_a_new_marker_has_no_beat(path: Path) -> None:
    """It is valid all the same."""
    beats(path)
    assert path.exists()
    assert read_beat(path) is None


def test_the_newest_beat_is_read_with_every_field(path: Path) -> None:
    """Also by the next writer, which continues the sequence."""
    beats(path, 1, 2, 3)
    last = read_beat(path)
    assert last is not None
    assert (last.seq, last.engine_ms, last.wall_ms, last.monotonic_ms) == (3, 103, 203, 303)
    assert (last.boot_id, last.clean) == (BOOT, False)
    assert (last.manifest_number, last.manifest_bytes) == MANIFEST
    marker = SyncMarkerFile(path)
    assert marker.last == last
    marker.beat(Beat(4, 1, 2, 3, BOOT, True, *MANIFEST))
    marker.close()
    last = read_beat(path)
    assert last is not None
    assert (last.seq, last.clean) == (4, True)


def test_a_torn_newest_slot_falls_back_to_the_other(path: Path) -> None:
    """Wherever it is torn, the value is older but valid."""
    for at in range(WHOLE):
        path.unlink(missing_ok=True)
        beats(path, 1, 2, 3)  # the third is in slot 1
        corrupt(path, _SLOT_BYTES + at)
        last = read_beat(path)
        assert last is not None
        assert last.seq == 2


def test_a_torn_older_slot_does_not_matter(path: Path) -> None:
    """The newest slot is complete."""
    beats(path, 1, 2, 3)
    corrupt(path, 5)
    last = read_beat(path)
    assert last is not None
    assert last.seq == 3


def test_two_bad_slots_are_refused(path: Path) -> None:
    """It would be unknown whether acknowledged work is missing."""
    beats(path, 1, 2)
    corrupt(path, 3)
    corrupt(path, _SLOT_BYTES + 3)
    with pytest.raises(StoreDamaged, match="heart"):
        read_beat(path)
    with pytest.raises(StoreDamaged, match="heart"):
        SyncMarkerFile(path)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_truncated_or_zeroed_file_is_refused(path: Path, number: int) -> None:
    """At any length, or with a slot of zeros: a value older than the last sync is never returned."""
    beats(path, *range(1, number + 1))
    whole = path.read_bytes()
    half = bytes(_SLOT_BYTES)
    damaged = [whole[:length] for length in (0, 1, 30, WHOLE, _SLOT_BYTES, _SLOT_BYTES + 30)] + [
        half + half,
        whole + b"x",
    ]
    damaged += [whole[:_SLOT_BYTES] + half, half + whole[_SLOT_BYTES:]]
    for raw in damaged:
        path.write_bytes(raw)
        with pytest.raises(StoreDamaged, match="heart"):
            read_beat(path)
        with pytest.raises(StoreDamaged, match="heart"):
            SyncMarkerFile(path)


def test_garbage_is_refused(path: Path) -> None:
    """With and without the right size."""
    for garbage in (b"x", b"\xff" * 2 * _SLOT_BYTES, b"hello" * 100):
        path.write_bytes(garbage)
        with pytest.raises(StoreDamaged):
            read_beat(path)
