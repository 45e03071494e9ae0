"""Whether a Redis server keeps what it confirms: asked of every server before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from redis import exceptions

from tenantq.errors import Invalid, StoreFailed

if TYPE_CHECKING:
    from tenantq.store.redis.link import SlotLink
    from tenantq.store.redis.settings import RedisSettings

OLDEST: Final = (7, 0)
_WAITAOF_SINCE: Final = (7, 2)


class DurabilityCheck:
    """Looks at a server; afterwards ``waits_for_aof`` tells whether a sync has to ask for the disk."""

    def __init__(self, settings: RedisSettings, durability: Literal["fsync", "os"]) -> None:
        self._settings = settings
        self._durability = durability
        self.waits_for_aof = False
        self.saves = False  # whether the server writes a snapshot file now and then

    def __call__(self, link: SlotLink) -> None:
        """Raise Invalid unless the server that ``link`` is connected to keeps what it confirms, as the settings want it."""
        version = _version(link)
        if version < OLDEST:
            raise Invalid(
                f"store {link.address}: Redis {version[0]}.{version[1]} is too old; {OLDEST[0]}.{OLDEST[1]} or later, or Valkey"
            )
        found = self._configuration(link)
        if found is None:
            self.waits_for_aof = self._settings.fsync == "waitaof" and self._durability == "fsync"
            return
        self.saves = bool(found.get("save"))
        policy = found.get("maxmemory-policy", "noeviction")
        if policy != "noeviction":
            raise Invalid(
                f"store {link.address}: maxmemory-policy is {policy}, which throws messages away; set noeviction"
            )
        self.waits_for_aof = False
        if self._durability == "os" or (found.get("appendonly") == "yes" and found.get("appendfsync") == "always"):
            return
        if found.get("appendonly") == "yes" and version >= _WAITAOF_SINCE:
            self.waits_for_aof = True
            return
        raise Invalid(
            f"store {link.address}: appendonly is {found.get('appendonly')} and appendfsync {found.get('appendfsync')}, so that what"
            ' is confirmed may not be on the disk; set appendonly yes and appendfsync always, or let durability be "os"'
        )

    def _configuration(self, link: SlotLink) -> dict[str, str] | None:
        """Return what the server is set to; None: it does not tell, and the settings vouch for it."""
        try:
            flat = link.call("CONFIG", "GET", "appendonly", "appendfsync", "maxmemory-policy", "save")
        except StoreFailed as error:
            if self._settings.fsync != "look" or self._durability == "os":
                return None
            raise Invalid(
                f"store {link.address}: CONFIG GET is refused, so it cannot be told whether what is confirmed is on the disk; say it"
                ' with redis.fsync ("always" or "waitaof"), or let durability be "os"'
            ) from error
        except exceptions.RedisError as error:  # pragma: no cover  # link names every other failure
            raise StoreFailed(f"store {link.address}: {error}") from error
        words = [word.decode() for word in flat]
        return dict(zip(words[::2], words[1::2], strict=True))


def _version(link: SlotLink) -> tuple[int, int]:
    text: bytes = link.call("INFO", "server")
    for line in text.splitlines():
        if line.startswith(b"redis_version:"):  # Valkey says here with which Redis it goes
            major, minor, *_ = line.partition(b":")[2].split(b".")
            return int(major), int(minor)
    return OLDEST
