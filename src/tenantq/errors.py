"""Every error that tenantq raises, in one tree.

    TenantqError
    ├── Unauthenticated      unauthenticated   the credential is missing or invalid
    │   └── SignatureRefused                   the signature of a signed request is wrong
    ├── Forbidden            forbidden         the credential does not allow the action
    │   ├── Suspended                          the tenant or queue is suspended
    │   └── KeySuspended     key_suspended     the API key is suspended because of an alert
    ├── Limited                                a limit is reached; the fields say which, and when to retry
    │   ├── RateLimited      rate_limited      too many operations or bytes per second
    │   └── QuotaExceeded    quota_exceeded    a quota is used up
    ├── Invalid              invalid           an argument is out of range or malformed
    ├── TooLarge             too_large         a body, batch or attribute set exceeds its limit
    ├── NotFound             not_found         the tenant, queue, message or result does not exist
    ├── Conflict             conflict          the name or idempotency key is already in use
    │   ├── LegalHold        legal_hold        the tenant is under legal hold: nothing of it may be deleted
    │   └── WrongRegion      wrong_region      the tenant does not allow the region of the server that was called
    ├── Draining             draining          the queue is being deleted
    ├── LeaseLost            lease_lost        the receipt does not belong to the current lease
    ├── KmsError             key_refused       the key management service refuses a call
    │   ├── KmsDenied                          this server may not use the key
    │   └── KeyDisabled                        the key is disabled, deleted or does not exist
    ├── DecryptionFailed     seal_broken       encrypted bytes cannot be decrypted: changed, or moved here from another place
    ├── Erased               erased            the tenant's data keys were destroyed
    ├── QueueDamaged         queue_damaged     stored rows of the queue cannot be read; other queues work
    ├── BadAnswer                              a client cannot read a reply
    └── Unavailable          unavailable       the shard cannot do this now
        ├── JournalBehind                      too much of the journal waits for its export
        ├── Busy                               the tenant has too many operations waiting
        ├── Closed                             the shard or the client is closing or closed
        ├── ShardDown                          the tenant's shard is not running
        │   └── TenantMoved                    the tenant is moving to another shard
        ├── ConnectionFailed                   the server was not reached, or the connection broke before the reply
        ├── TimedOut                           no reply arrived in time
        ├── KmsUnavailable                     the key management service is unreachable, or throttles
        └── StoreFailed                        a write or sync failed; nothing of the round is confirmed
            ├── StoreLocked                    another process uses the data directory
            ├── StoreFormat                    the directory is not a store of a supported version
            ├── StoreDamaged                   stored bytes are missing or changed
            │   └── RowsDamaged                of one queue
            └── DiskFull                       free space is below the reserve

The default text of an error is its docstring. ``code`` is stable and part of the public interface.
"""

from __future__ import annotations

import copy
import inspect
from typing import Self


class TenantqError(Exception):
    """Something went wrong in tenantq."""

    code = "internal"  # for clients
    status = 500  # of HTTP
    maybe_done = False  # set by a client: an earlier attempt may have reached the server and taken effect

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        """Set the code and the status of a class. Without them it has those of its base."""
        cls.code, cls.status = code or cls.code, status or cls.status

    def __init__(
        self, message: str = "", *, tenant: str | None = None, queue: str | None = None, id: str | None = None
    ) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))
        self.tenant = tenant
        self.queue = queue
        self.id = id

    @property
    def message(self) -> str:
        """The text a user reads: what is wrong and what to do."""
        return str(self.args[0])

    def copy(self) -> Self:
        """Return a copy for another caller. A shared exception would collect the tracebacks of all its callers."""
        again = copy.copy(self)
        again.__cause__ = self.__cause__
        if hasattr(self, "__notes__"):
            again.__notes__ = list(self.__notes__)
        return again


class Unauthenticated(TenantqError, code="unauthenticated", status=401):
    """The credential is missing or invalid: unknown, expired, revoked or malformed. Get a new one."""


class SignatureRefused(Unauthenticated):
    """The request signature we calculated does not match the signature you provided. Check the key's secret and the signing method."""

    def __init__(self, message: str = "", *, aws_code: str = "SignatureDoesNotMatch", **where: str | None) -> None:
        super().__init__(message, **where)
        self.aws_code = aws_code  # for clients of Amazon SQS


class Forbidden(TenantqError, code="forbidden", status=403):
    """The credential does not allow this here. Ask an administrator of the tenant for a grant."""


class Suspended(Forbidden):
    """The tenant is suspended: adds and polls are refused. Leased messages can be acked or nacked, except in mode freeze."""


class KeySuspended(Forbidden, code="key_suspended"):
    """The API key is suspended because of an alert. A platform administrator can release it."""


class Limited(TenantqError, code="rate_limited", status=429):
    """A limit is reached. Nothing was changed or consumed."""

    def __init__(
        self, message: str = "", *, limit: int = 0, current: int = 0, retry_after_ms: int = 1_000, **where: str | None
    ) -> None:
        super().__init__(message, **where)
        self.limit = limit
        self.current = current
        self.retry_after_ms = retry_after_ms  # when a retry may succeed


class RateLimited(Limited):
    """Too many operations or bytes per second. Wait and retry."""


class QuotaExceeded(Limited, code="quota_exceeded"):
    """A quota is used up. Wait until it resets, free some of it, or ask for a higher one."""

    quota = ""  # its name, where the engine refused the work


class Invalid(TenantqError, ValueError, code="invalid", status=422):
    """An argument is out of range or malformed."""


class TooLarge(TenantqError, code="too_large", status=413):
    """A body, batch or attribute set is larger than its limit."""


class NotFound(TenantqError, code="not_found", status=404):
    """The tenant, queue, message or result does not exist."""


_NAME_SHOWN_CHARS = 80  # of an unknown name, which may be of any length


def no_tenant(name: str) -> NotFound:
    """Return the error for a tenant that does not exist."""
    return NotFound(f"tenant '{name[:_NAME_SHOWN_CHARS]}' does not exist", tenant=name)


def no_queue(name: str, tenant: str | None) -> NotFound:
    """Return the error for a queue that does not exist."""
    return NotFound(f"queue '{name[:_NAME_SHOWN_CHARS]}' does not exist", tenant=tenant, queue=name)


class Conflict(TenantqError, code="conflict", status=409):
    """The name or idempotency key is already in use for something else."""


class LegalHold(Conflict, code="legal_hold"):
    """The tenant is under legal hold: nothing of it may be deleted. A platform administrator can release the hold."""


class WrongRegion(Conflict, code="wrong_region", status=421):
    """The tenant does not allow the region of the server that was called. Call a server in one of its regions."""


class Draining(TenantqError, code="draining", status=409):
    """The queue is being deleted: adds and polls are refused."""


class LeaseLost(TenantqError, code="lease_lost", status=409):
    """The receipt is not the message's current lease: the lease expired, was settled, or never existed. Poll again."""


class KmsError(TenantqError, code="key_refused", status=409):
    """The key management service refuses a call that the tenant's encryption needs. Nothing is stored or delivered in plain text."""


class KmsDenied(KmsError):
    """This server may not use the tenant's key. Allow it to encrypt and decrypt with that key."""


class KeyDisabled(KmsError):
    """The tenant's key is disabled, deleted or does not exist. Enable it, or rewrap to another key while it still works."""


class DecryptionFailed(TenantqError, code="seal_broken", status=500):
    """Encrypted bytes cannot be decrypted: they were changed, or moved here from another message, queue or tenant."""


class Erased(TenantqError, code="erased", status=410):
    """The tenant's data keys were destroyed. Data encrypted with them is unreadable forever."""


class QueueDamaged(TenantqError, code="queue_damaged"):
    """Stored rows of the queue cannot be read, so it is quarantined. Other queues work. Restore the store from a backup."""


class BadAnswer(TenantqError):
    """The reply is too large for this client, or invalid. Request less at a time, or check the address and the versions."""


class Unavailable(TenantqError, code="unavailable", status=503):
    """The shard cannot do this now. Retry later."""

    retry_after_ms = 0  # set if the server said when a retry may succeed


class JournalBehind(Unavailable):
    """Too much of the journal waits for its export. Adds are refused until it has caught up; polls and acks work."""

    retry_after_ms = 10_000


class Busy(Unavailable):
    """The tenant has too many operations waiting. Wait for replies before sending more."""

    retry_after_ms = 1_000


class Closed(Unavailable):
    """The shard is closing or closed."""


class ShardDown(Unavailable):
    """The tenant's shard is restarting. Other shards are not affected. Retry later."""

    retry_after_ms = 1_000


class TenantMoved(ShardDown):
    """The tenant is moving to another shard. Retry later."""


class ConnectionFailed(Unavailable):
    """The server was not reached, or the connection broke before the reply. Check the address, or retry later."""


class TimedOut(Unavailable):
    """No reply arrived in time. Allow more time, or retry later."""


class KmsUnavailable(Unavailable):
    """The key management service is unreachable or throttles, and no recent data key is cached. Retry later."""

    retry_after_ms = 1_000


class StoreFailed(Unavailable):
    """A write or sync failed: nothing of this round is confirmed. The shard has stopped. Fix the disk, then restart it."""


class StoreLocked(StoreFailed):
    """Another process uses this data directory. Stop it, or choose another directory."""


class StoreFormat(StoreFailed):
    """The data directory is not a tenantq store of a supported version."""


class StoreDamaged(StoreFailed):
    """Stored bytes are missing or changed. Restore from a backup. Nothing was changed by this attempt."""


class RowsDamaged(StoreDamaged):
    """Stored rows of one queue are missing or changed. Restore from a backup."""

    prefix = b""  # of the queue's rows


class DiskFull(StoreFailed):
    """Free disk space is below the reserve: writes are refused. Nothing was changed. Free some space."""
