"""What is required of the queues of a tenant that is spread over shards: a queue and its dead letters stay together."""

from collections.abc import Iterable, Iterator

from tenantq.domain.config import TenantConfig
from tenantq.domain.names import dead_letter_name
from tenantq.domain.placement import placement_group
from tenantq.engine.part_state import BLOCK_IDS
from tenantq.engine.queue_state import TenantState
from tenantq.errors import Conflict, Invalid

_LEVELS = 3  # of dead letters of dead letters whose names are not cut short


def check_queue(tenant: TenantState, name: str, dead_letter: str | None) -> None:
    """Raise Invalid if a queue of a spread tenant may not have this name or these dead letters."""
    if tenant.part is None:
        return
    problem = _problem(name, dead_letter)
    if problem:
        raise Invalid(problem, tenant=tenant.name, queue=name)


def check_config(tenant: TenantState, config: TenantConfig) -> None:
    """Raise Invalid if a spread tenant may not have these settings."""
    name = config.defaults.dead_letter
    if tenant.part is not None and name is not None:
        raise Invalid(_together(f"defaults.dead_letter: cannot be set ({name!r})"), tenant=tenant.name)


def check_redrive(tenant: TenantState, letters: str, to: str | None) -> None:
    """Raise Invalid if the dead letters of a queue cannot be moved to another one within one shard."""
    if tenant.part is not None and to is not None and placement_group(to) != placement_group(letters):
        raise Invalid(_together(f"to: queue {to!r} may be on another shard"), tenant=tenant.name, queue=letters)


def check_spreadable(tenant: TenantState) -> None:
    """Raise Conflict if a tenant cannot be spread over shards as it is."""
    tenant.check_not_erasing()
    if tenant.next_queue_id >= BLOCK_IDS:
        raise Conflict("the tenant has created too many queues to be spread over shards", tenant=tenant.name)
    queues = ((one.name, one.config.dead_letter) for one in tenant.queues.values() if not one.system_made)
    wrong = next(_problems(queues), None)
    if wrong is None and tenant.config.defaults.dead_letter is not None:
        wrong = _together("defaults.dead_letter: must not be set"), None
    if wrong is not None:
        raise Conflict(wrong[0], tenant=tenant.name, queue=wrong[1])


def _problems(queues: Iterable[tuple[str, str | None]]) -> Iterator[tuple[str, str | None]]:
    return ((text, name) for name, dead_letter in queues if (text := _problem(name, dead_letter)))


def _problem(name: str, dead_letter: str | None) -> str:
    group = placement_group(name)
    if dead_letter is not None and placement_group(dead_letter) != group:
        return _together(f"dead_letter: must be {dead_letter_name(name)!r} or not set ({dead_letter!r})")
    letters = name
    for _ in range(_LEVELS):
        letters = dead_letter_name(letters)
        if placement_group(letters) != group:
            return _together(f"queue: the name is too long ({len(name)} characters)")
    return ""


def _together(text: str) -> str:
    return f"{text}. The queues of this tenant are spread over shards, and a queue and its dead letters must be on one."
