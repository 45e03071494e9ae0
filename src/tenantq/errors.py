"""Every error tenantq raises, in one tree.

    TenantqError
    ├── Unauthenticated      unauthenticated   no credential, or one that is not valid
    │   └── SignatureRefused                   a signed request does not carry the signature it should
    ├── Forbidden            forbidden     the credential does not allow this
    │   └── Suspended                      the tenant is suspended: no new work is taken or handed out
    ├── Limited                            a limit is reached; the text and fields say which, and when to come back
    │   ├── RateLimited      rate_limited  too many operations or bytes a second
    │   └── QuotaExceeded    quota_exceeded  a quota is used up
    ├── Invalid              invalid       an argument is out of range or malformed
    ├── TooLarge             too_large     a body, batch or attribute set is over its limit
    ├── NotFound             not_found     no such tenant, queue, message or result
    ├── Conflict             conflict      the name or idempotency key is taken by something else
    │   └── LegalHold        legal_hold    the tenant is under legal hold: nothing of it may be deleted
    ├── Draining             draining      the queue is being deleted
    ├── LeaseLost            lease_lost    the receipt is not the message's current lease
    ├── KmsError             key_refused   the key management does not do what the tenant's encryption needs
    │   ├── KmsDenied                      this server may not use the key
    │   └── KeyDisabled                    the key is disabled, deleted or does not exist
    ├── SealBroken           seal_broken   encrypted bytes do not open: changed, or moved from elsewhere
    ├── Erased               erased        the tenant's data keys were destroyed: nothing of it can be read again
    ├── BadAnswer                          a client got an answer that is too large, or that it does not understand
    └── Unavailable          unavailable   the shard cannot take this work now
        ├── JournalBehind                  too much of the journal waits for its export
        ├── Busy                           the tenant's waiting line is full
        ├── Closed                         the shard, or the client, is closing or closed
        ├── ShardDown                      the shard that has the tenant does not run just now
        ├── ConnectionFailed               the server was not reached, or the connection broke before its answer
        ├── TimedOut                       no answer came in time
        ├── KmsUnavailable                 the key management is out of reach, or throttles
        └── StoreFailed                    a write or sync failed: nothing of the round is confirmed
            ├── StoreLocked                another process has the data directory
            ├── StoreFormat                the directory is of another version, or no tenantq store
            ├── StoreDamaged               stored bytes are missing or changed
            └── DiskFull                   free space is below the reserve

An error's default text is its docstring. ``code`` is stable and part of the public interface.
"""

from __future__ import annotations

import inspect


class TenantqError(Exception):
    """Something went wrong in tenantq."""

    code = "internal"
    status = 500
    maybe_done = False  # set by a client: an earlier try may have arrived, and what it asked for may have happened

    def __init__(
        self,
        message: str = "",
        *,
        tenant: str | None = None,
        queue: str | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))
        self.tenant = tenant
        self.queue = queue
        self.id = id

    @property
    def message(self) -> str:
        """The text a user reads: what is wrong and what to do."""
        return str(self.args[0])


class Unauthenticated(TenantqError):
    """No credential was given, or it is not valid: unknown, expired, revoked or malformed. Get a new one."""

    code = "unauthenticated"
    status = 401


class SignatureRefused(Unauthenticated):
    """The request signature we calculated does not match the signature you provided. Check the key's secret and the signing method."""

    def __init__(
        self,
        message: str = "",
        *,
        aws_code: str = "SignatureDoesNotMatch",
        tenant: str | None = None,
        queue: str | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(message, tenant=tenant, queue=queue, id=id)
        self.aws_code = aws_code  # what clients of signed requests know it as


class Forbidden(TenantqError):
    """The credential does not allow this here. Ask an administrator of the tenant for a grant."""

    code = "forbidden"
    status = 403


class Suspended(Forbidden):
    """The tenant is suspended: it takes no new messages and hands none out. Leased work may finish, unless it is frozen."""


class Limited(TenantqError):
    """A limit is reached. Nothing was changed or used up."""

    code = "rate_limited"
    status = 429

    def __init__(
        self,
        message: str = "",
        *,
        limit: int = 0,
        current: int = 0,
        retry_after_ms: int = 1_000,
        tenant: str | None = None,
        queue: str | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(message, tenant=tenant, queue=queue, id=id)
        self.limit = limit
        self.current = current
        self.retry_after_ms = retry_after_ms  # when trying again may succeed


class RateLimited(Limited):
    """Too many operations or bytes a second. Wait and try again."""


class QuotaExceeded(Limited):
    """A quota is used up. Wait until it resets, make room, or ask for a higher one."""

    code = "quota_exceeded"


class Invalid(TenantqError, ValueError):
    """An argument is out of range or malformed."""

    code = "invalid"
    status = 422


class TooLarge(TenantqError):
    """A body, batch or attribute set is larger than its limit."""

    code = "too_large"
    status = 413


class NotFound(TenantqError):
    """No such tenant, queue, message or result."""

    code = "not_found"
    status = 404


class Conflict(TenantqError):
    """The name or idempotency key already stands for something else."""

    code = "conflict"
    status = 409


class LegalHold(Conflict):
    """The tenant is under legal hold: nothing of it may be deleted. A platform administrator can release the hold."""

    code = "legal_hold"


class Draining(TenantqError):
    """The queue is being deleted: it takes no new messages and hands none out."""

    code = "draining"
    status = 409


class LeaseLost(TenantqError):
    """The receipt is not the message's current lease: it expired, was settled, or never was. Poll again."""

    code = "lease_lost"
    status = 409


class KmsError(TenantqError):
    """The key management refuses what the tenant's encryption needs. Nothing is stored or handed out in plain instead."""

    code = "key_refused"
    status = 409


class KmsDenied(KmsError):
    """The key management does not let this server use the tenant's key. Allow it to encrypt and decrypt with that key."""


class KeyDisabled(KmsError):
    """The tenant's key is disabled, deleted or does not exist. Enable it again, or rewrap to another key while it still works."""


class SealBroken(TenantqError):
    """Encrypted bytes do not open: they were changed, or moved here from another message, queue or tenant."""

    code = "seal_broken"
    status = 500


class Erased(TenantqError):
    """The tenant's data keys were destroyed. What was encrypted with them cannot be read again, by anybody."""

    code = "erased"
    status = 410


class BadAnswer(TenantqError):
    """The answer is too large for this client, or not understood. Ask for less at a time; check the address and the versions."""


class Unavailable(TenantqError):
    """The shard cannot take this work now. Try again later."""

    code = "unavailable"
    status = 503
    retry_after_ms = 0  # set where the server said when trying again may succeed


class JournalBehind(Unavailable):
    """The journal waits for its export, more of it than allowed: no messages are taken until it has caught up. Polls and acks go on."""

    retry_after_ms = 10_000


class Busy(Unavailable):
    """The tenant's waiting line is full. Wait for replies before sending more."""

    retry_after_ms = 1_000


class Closed(Unavailable):
    """The shard is closing or closed."""


class ShardDown(Unavailable):
    """The shard that has the tenant does not run just now, and is started again. Tenants of other shards are served. Try again later."""

    retry_after_ms = 1_000


class ConnectionFailed(Unavailable):
    """The server was not reached, or the connection broke before its answer came. Check the address; try again later."""


class TimedOut(Unavailable):
    """No answer came in time. Allow more time, or try again later."""


class KmsUnavailable(Unavailable):
    """The key management is out of reach or throttles, and no data key is at hand that is fresh enough. Try again later."""

    retry_after_ms = 1_000


class StoreFailed(Unavailable):
    """A write or sync failed: nothing of this round is confirmed. The shard has stopped; restart it when the disk is well."""


class StoreLocked(StoreFailed):
    """Another process has this data directory open. Stop it, or choose another directory."""


class StoreFormat(StoreFailed):
    """The data directory is not a tenantq store of a version this program reads."""


class StoreDamaged(StoreFailed):
    """Stored bytes are missing or changed. Restore from a backup; nothing was altered by this refusal."""


class DiskFull(StoreFailed):
    """Free disk space is below the reserve: writes are refused until there is room. Nothing was changed."""
