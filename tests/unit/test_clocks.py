"""Clocks and the shard's timeline."""

import pytest

from tenantq.engine.shard_clock import ShardClock
from tenantq.runtime.clock import ManualClock, SystemClock


def test_timers_fire_in_order_at_their_time() -> None:
    """Each sees the clock at its own time."""
    clock = ManualClock(monotonic_ms=0)
    fired: list[tuple[str, int]] = []
    clock.call_later(20, lambda: fired.append(("b", clock.monotonic_ms())))
    clock.call_later(10, lambda: fired.append(("a", clock.monotonic_ms())))
    clock.call_later(20, lambda: fired.append(("c", clock.monotonic_ms())))
    clock.advance(9)
    assert fired == []
    clock.advance(11)
    assert fired == [("a", 10), ("b", 20), ("c", 20)]
    assert clock.monotonic_ms() == 20


def test_a_cancelled_timer_never_fires_and_a_timer_may_set_another() -> None:
    """Within one advance."""
    clock = ManualClock(monotonic_ms=0)
    fired: list[int] = []
    clock.call_later(5, lambda: fired.append(-1)).cancel()

    def again() -> None:
        clock.call_later(5, lambda: fired.append(clock.monotonic_ms()))

    clock.call_later(5, again)
    clock.advance(10)
    assert fired == [10]


def test_a_jump_moves_the_wall_clock_only() -> None:
    """In both directions."""
    clock = ManualClock(wall_ms=1_000, monotonic_ms=50)
    clock.jump_wall(-300)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (700, 50)
    clock.advance(10)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (710, 60)


def test_a_reboot_restarts_monotonic_time_with_a_new_boot_id() -> None:
    """Timers of the old boot are gone."""
    clock = ManualClock()
    before = clock.boot_id()
    clock.call_later(1, lambda: pytest.fail("a timer outlived its boot"))
    clock.reboot()
    clock.advance(10)
    assert clock.boot_id() != before
    assert len(clock.boot_id()) == 16


def test_the_system_clocks_move_and_the_boot_id_stays() -> None:
    """A sanity check of real readings."""
    clock = SystemClock()
    assert clock.wall_ms() > 1_600_000_000_000
    assert 0 <= clock.monotonic_ms() <= clock.monotonic_ms()
    assert clock.boot_id() == clock.boot_id()
    assert len(clock.boot_id()) == 16


def test_a_new_timeline_is_anchored_to_the_wall_clock() -> None:
    """From then on only elapsed time moves it."""
    clock = ManualClock(wall_ms=5_000)
    shard_clock = ShardClock(clock, None, 0)
    assert (shard_clock.now_ms(), shard_clock.wall_offset_ms()) == (5_000, 0)
    clock.advance(100)
    clock.jump_wall(-3_000)
    assert (shard_clock.now_ms(), shard_clock.wall_offset_ms()) == (5_100, -3_000)
    assert shard_clock.now_ms() + shard_clock.wall_offset_ms() == clock.wall_ms()


def test_small_differences_between_clock_readings_are_ignored() -> None:
    """Clocks are read one after the other, so a millisecond or two is ignored. A larger or accumulated difference counts in full."""
    clock = ManualClock(wall_ms=5_000)
    shard_clock = ShardClock(clock, None, 0)
    offsets = []
    for jump in (1, 1, -4, 1, 2):
        clock.jump_wall(jump)
        offsets.append(shard_clock.wall_offset_ms())
    assert offsets == [0, 0, 0, 0, 0]
    clock.jump_wall(2)
    assert shard_clock.wall_offset_ms() == 3


@pytest.mark.parametrize("jump", [-3_600_000, 0, 3_600_000])
def test_a_restart_in_the_same_boot_follows_the_monotonic_clock(jump: int) -> None:
    """The wall clock may have changed meanwhile."""
    clock = ManualClock()
    first = ShardClock(clock, None, 0)
    last, then = first.beat(1), first.now_ms()
    clock.advance(700)
    clock.jump_wall(jump)
    assert ShardClock(clock, last, 0).now_ms() == then + 700


def test_after_a_reboot_time_follows_the_wall_clock_without_earlier_corrections() -> None:
    """A correction made before the reboot does not count as elapsed time."""
    clock = ManualClock()
    first = ShardClock(clock, None, 0)
    clock.jump_wall(50_000)
    last, then = first.beat(1), first.now_ms()
    clock.advance(700)
    clock.reboot()
    assert ShardClock(clock, last, 0).now_ms() == then + 700


def test_time_never_goes_back_after_a_reboot() -> None:
    """Although the wall clock went back by a day."""
    clock = ManualClock()
    first = ShardClock(clock, None, 0)
    last, then = first.beat(1), first.now_ms()
    clock.reboot()
    clock.jump_wall(-86_400_000)
    assert ShardClock(clock, last, 0).now_ms() == then


def test_time_is_never_before_the_newest_journal_record() -> None:
    """The sync marker may be older than it."""
    clock = ManualClock()
    first = ShardClock(clock, None, 0)
    last, then = first.beat(1), first.now_ms()
    assert ShardClock(clock, last, then + 500).now_ms() == then + 500
    assert ShardClock(clock, None, clock.wall_ms() + 9).now_ms() == clock.wall_ms() + 9


def test_an_unknown_boot_id_never_matches() -> None:
    """Zeros mean unknown, so the wall clock decides."""
    clock = ManualClock()
    clock._boot_id = bytes(16)
    first = ShardClock(clock, None, 0)
    last, then = first.beat(1), first.now_ms()
    clock._monotonic_ms += 99_999  # another boot whose monotonic clock happens to be ahead
    clock._wall_ms += 10
    assert ShardClock(clock, last, 0).now_ms() == then + 10


def test_a_monotonic_clock_that_went_back_is_another_boot() -> None:
    """Although the boot ID is the same."""
    clock = ManualClock()
    first = ShardClock(clock, None, 0)
    last, then = first.beat(1), first.now_ms()
    clock._monotonic_ms -= 500
    clock._wall_ms += 40
    assert ShardClock(clock, last, 0).now_ms() == then + 40
