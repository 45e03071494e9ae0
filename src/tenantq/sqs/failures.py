"""The errors of Amazon SQS, and their mapping from tenantq's errors."""

from typing import Final

import msgspec

from tenantq import errors
from tenantq.errors import TenantqError

_MODEL: Final = "com.amazonaws.sqs#"
_COMMON: Final = "com.amazon.coral.service#"


class FailureKind(msgspec.Struct, frozen=True):
    """One kind of error: its name over JSON, its code and status over the Query protocol, and the status over JSON."""

    type: str
    code: str
    status: int = 400
    json_status: int = 400

    @property
    def sender_fault(self) -> bool:
        """Whether the sender is at fault."""
        return self.status < 500

    @property
    def fault(self) -> str:
        """The side that is at fault, as protocols name it."""
        return "Sender" if self.sender_fault else "Receiver"


def _modelled(name: str, code: str | None = None, status: int = 400, json_status: int = 400) -> FailureKind:
    return FailureKind(_MODEL + name, code or name, status, json_status)


def _prefixed(name: str, status: int = 400) -> FailureKind:
    return FailureKind(_MODEL + name, f"AWS.SimpleQueueService.{name}", status, status)


def _common(name: str, status: int = 400, type: str | None = None) -> FailureKind:
    return FailureKind(_COMMON + (type or name), name, status, status)


BATCH_IDS_NOT_DISTINCT: Final = _prefixed("BatchEntryIdsNotDistinct")
BATCH_TOO_LONG: Final = _prefixed("BatchRequestTooLong")
EMPTY_BATCH: Final = _prefixed("EmptyBatchRequest")
INVALID_ADDRESS: Final = _modelled("InvalidAddress", status=404)
INVALID_ATTRIBUTE_NAME: Final = _modelled("InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE: Final = _modelled("InvalidAttributeValue")
INVALID_BATCH_ID: Final = _prefixed("InvalidBatchEntryId")
INVALID_CONTENTS: Final = _modelled("InvalidMessageContents")
KMS_ACCESS_DENIED: Final = _modelled("KmsAccessDenied", "KMS.AccessDeniedException")
KMS_DISABLED: Final = _modelled("KmsDisabled", "KMS.DisabledException")
KMS_INVALID_STATE: Final = _modelled("KmsInvalidState", "KMS.InvalidStateException")
KMS_THROTTLED: Final = _modelled("KmsThrottled", "KMS.ThrottlingException")
OVER_LIMIT: Final = _modelled("OverLimit", status=403)
PURGE_IN_PROGRESS: Final = _prefixed("PurgeQueueInProgress", status=403)
DELETED_RECENTLY: Final = _prefixed("QueueDeletedRecently")
NO_SUCH_QUEUE: Final = _modelled("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
NAME_EXISTS: Final = _modelled("QueueNameExists", "QueueAlreadyExists")
INVALID_RECEIPT: Final = _modelled("ReceiptHandleIsInvalid", status=404)
THROTTLED: Final = _modelled("RequestThrottled", status=403)
NO_SUCH_RESOURCE: Final = _modelled("ResourceNotFoundException", status=404, json_status=404)
TOO_MANY_ENTRIES: Final = _prefixed("TooManyEntriesInBatchRequest")
UNSUPPORTED: Final = _prefixed("UnsupportedOperation")

INVALID_VALUE: Final = _common("InvalidParameterValue", type="InvalidParameterValueException")
MISSING: Final = _common("MissingParameter", type="MissingRequiredParameterException")
INVALID_ACTION: Final = _common("InvalidAction", type="InvalidActionException")
MALFORMED: Final = _common("SerializationException")
DENIED: Final = _common("AccessDenied", 403, "AccessDeniedException")
NO_CREDENTIAL: Final = _common("MissingAuthenticationToken", 403, "MissingAuthenticationTokenException")
UNAVAILABLE: Final = _common("ServiceUnavailable", 503, "ServiceUnavailableException")
INTERNAL: Final = _common("InternalFailure", 500)

_SIGNATURES: Final = {
    "IncompleteSignature": _common("IncompleteSignature", 400, "IncompleteSignatureException"),
    "InvalidClientTokenId": _common("InvalidClientTokenId", 403, "UnrecognizedClientException"),
    "SignatureDoesNotMatch": _common("SignatureDoesNotMatch", 403, "InvalidSignatureException"),
}

_KINDS: Final[tuple[tuple[type[TenantqError], FailureKind], ...]] = (  # the first match counts
    (errors.Unauthenticated, _SIGNATURES["InvalidClientTokenId"]),
    (errors.Forbidden, DENIED),
    (errors.RateLimited, THROTTLED),
    (errors.QuotaExceeded, OVER_LIMIT),
    (errors.NotFound, NO_SUCH_QUEUE),
    (errors.Draining, NO_SUCH_QUEUE),
    (errors.Invalid, INVALID_VALUE),
    (errors.TooLarge, INVALID_VALUE),
    (errors.LeaseLost, INVALID_RECEIPT),
    (errors.KmsDenied, KMS_ACCESS_DENIED),
    (errors.KeyDisabled, KMS_DISABLED),
    (errors.KmsError, KMS_INVALID_STATE),
    (errors.KmsUnavailable, KMS_THROTTLED),
    (errors.Erased, KMS_INVALID_STATE),
    (errors.Conflict, UNSUPPORTED),
    (errors.Busy, THROTTLED),
    (errors.Unavailable, UNAVAILABLE),
)


class SqsFailure(TenantqError, code="invalid", status=422):
    """An error that Amazon SQS defines."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_of(error: TenantqError) -> SqsFailure:
    """Return the SQS error for any error."""
    if isinstance(error, SqsFailure):
        return error
    if isinstance(error, errors.SignatureRefused):
        return SqsFailure(_SIGNATURES[error.aws_code], error.message)
    kind = next((kind for above, kind in _KINDS if isinstance(error, above)), INTERNAL)
    return SqsFailure(kind, "The specified queue does not exist." if kind is NO_SUCH_QUEUE else error.message)


def invalid(message: str) -> SqsFailure:
    """Return the error for an invalid request."""
    return SqsFailure(INVALID_VALUE, message)


def invalid_value(name: str, value: object, reason: str) -> SqsFailure:
    """Return the error for an invalid parameter."""
    return invalid(f"Value {str(value)[:200]} for parameter {name} is invalid. Reason: {reason}")


def checked_number(name: str, value: int, low: int, high: int) -> int:
    """Return an optional parameter's value. Raises SqsFailure if it is out of range."""
    if not low <= value <= high:
        raise invalid_value(name, value, f"Must be between {low} and {high}, if provided.")
    return value


def invalid_for_type(name: str, value: object) -> SqsFailure:
    """Return the error for a parameter that queues of this type, standard or FIFO, do not have."""
    return invalid_value(name, value, "The request include parameter that is not valid for this queue type.")


def missing(name: str) -> SqsFailure:
    """Return the error for a missing parameter."""
    return SqsFailure(MISSING, f"The request must contain the parameter {name}.")


def invalid_receipt(handle: str) -> SqsFailure:
    """Return the error for an unknown receipt handle."""
    return SqsFailure(INVALID_RECEIPT, f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.')
