"""The JSON protocol: a target header, a JSON object each way."""

from typing import Any, Final, TypeVar

import msgspec

from tenantq.http.reply import Reply
from tenantq.sqs.failures import MALFORMED, SqsFailure
from tenantq.sqs.requests import Parameters

_P = TypeVar("_P", bound=Parameters)

KIND: Final = b"application/x-amz-json-1.0"
TARGET: Final = b"AmazonSQS."
_encode = msgspec.json.Encoder().encode
_decoders: dict[type[Parameters], msgspec.json.Decoder[Any]] = {}


class JsonProtocol:
    """Reads requests and writes replies of the JSON protocol, which current clients use."""

    def __init__(self, body: bytes, request_id: str) -> None:
        self._body = body
        self._headers = b"x-amzn-RequestId: %b\r\n" % request_id.encode()

    def read(self, kind: type[_P]) -> _P:
        """Return the parameters. Raises SqsFailure if they are malformed."""
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
        try:
            parameters: _P = decoder.decode(self._body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SqsFailure(MALFORMED, f"The request is not understood: {error}") from error
        return parameters

    def answer(self, action: str, result: dict[str, Any] | None) -> Reply:  # noqa: ARG002  # the other protocol names it
        """Return the reply to a successful action; ``result`` None means an empty reply."""
        return Reply(_encode(result) if result is not None else b"{}", 200, KIND, self._headers)

    def refuse(self, failure: SqsFailure) -> Reply:
        """Return the reply to a failed action."""
        kind = failure.kind
        headers = self._headers + f"x-amzn-query-error: {kind.code};{kind.fault}\r\n".encode()
        return Reply(_encode({"__type": kind.type, "message": failure.message}), kind.json_status, KIND, headers)
