"""The SQS endpoint: detects the protocol, authenticates the caller, runs the action and renders the reply."""

import asyncio
import logging
from typing import Final
from urllib.parse import quote

import msgspec

from tenantq.errors import SignatureRefused, TenantqError, Unauthenticated
from tenantq.gates.signature import SignedRequest
from tenantq.http.body_item_count import check_item_count
from tenantq.http.call_wait import CallWait
from tenantq.http.problem import HttpError, problem_reply
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.reply import Reply
from tenantq.http.request import Request
from tenantq.http.request_head import RequestHead
from tenantq.runtime.clock import Clock
from tenantq.runtime.loop_slices import SLICE_BYTES
from tenantq.service.call import Call
from tenantq.service.problems import fault, forget_frames
from tenantq.service.service import Service
from tenantq.sqs.actions.table import ACTIONS
from tenantq.sqs.addresses import QueueAddress, is_queue_name, number_of
from tenantq.sqs.cooldowns import Cooldowns
from tenantq.sqs.credential import signed_request
from tenantq.sqs.failures import INVALID_ACTION, NO_CREDENTIAL, SqsFailure, failure_of
from tenantq.sqs.json_protocol import TARGET, JsonProtocol
from tenantq.sqs.query_protocol import KIND, QueryProtocol, parse_form
from tenantq.sqs.receipt_handles import ReceiptHandles
from tenantq.sqs.sqs_call import EndpointState, SqsCall
from tenantq.sqs.xml_text import is_legal

log = logging.getLogger("tenantq.sqs")

REGION_DEFAULT: Final = "us-east-1"
"""Region in the ARNs for callers that did not sign."""

TRACE_HEADER_CHARS_MAX: Final = 1_024
"""Longer X-Amzn-Trace-Id headers are not kept with messages."""

_ITEMS_MAX: Final = 5_000  # of a request: ten entries with all their attributes are far fewer
_FORM: Final = b"application/x-www-form-urlencoded"
_OF_NO_QUEUE: Final = frozenset(("CreateQueue", "ListQueues"))
_QUEUE_PATH: Final = "/{account}/{queue}"


class SqsEndpoint:
    """Serves Amazon SQS on the paths of an HTTP listener."""

    def __init__(self, service: Service, clock: Clock, purges: Cooldowns, deletions: Cooldowns) -> None:
        handles = ReceiptHandles(service.admission.keys.key_for("receipt handles of Amazon SQS"))
        self._state = EndpointState(service, clock, handles, purges, deletions)

    def routes(self) -> tuple[ProtocolRoute, ...]:
        """Return the routes: the root, and the URLs of queues."""
        calls = (("GET", "/"), ("POST", "/"), ("GET", _QUEUE_PATH), ("POST", _QUEUE_PATH))
        return tuple(ProtocolRoute(*call, self.serve) for call in calls)

    async def serve(self, request: Request, wait: CallWait) -> Reply:
        """Answer one request."""
        head, request_id = request.head, request.call.request_id
        protocol: JsonProtocol | QueryProtocol = JsonProtocol(request.body, request_id)
        try:
            if len(request.body) > SLICE_BYTES:
                await check_item_count(request.body, _ITEMS_MAX)
            target = head.headers.get(b"x-amz-target")
            if target is not None:
                action = target.removeprefix(TARGET).decode("latin-1") if target.startswith(TARGET) else ""
            else:
                accepts_json = head.headers.get(b"accept", b"").lower() == b"application/json"
                protocol = QueryProtocol({}, request_id, as_json=accepts_json)
                form = await _form(head, request)
                if form is None:
                    return _nothing_here(request)
                protocol = QueryProtocol(form, request_id, as_json=accepts_json)
                action = _action(form, request)
            result = await self._act(action, protocol, request, head, wait)
            return protocol.answer(action, result)
        except TenantqError as error:
            forget_frames(error)
            return protocol.refuse(failure_of(error))
        except Exception:
            log.exception("internal error in request %s", request_id)
            return protocol.refuse(failure_of(fault()))

    async def _act(
        self, action: str, protocol: JsonProtocol | QueryProtocol, request: Request, head: RequestHead, wait: CallWait
    ) -> dict[str, object] | None:
        known = ACTIONS.get(action)
        if len(request.body) > SLICE_BYTES:  # its hash takes milliseconds
            signed = await asyncio.to_thread(signed_request, head, request.body)
        else:
            signed = signed_request(head, request.body)
        call = await self._sign_in(request.call, signed, known[1] if known is not None else "login")
        request.call = call
        if known is None:
            await self._state.service.access.log_in(call)
            raise _no_such_action(action)
        sqs_call = SqsCall(
            state=self._state,
            call=call,
            action=known[1],
            protocol=protocol,
            wait=wait,
            base_url=_base_url(head),
            region=signed.region if isinstance(signed, SignedRequest) else REGION_DEFAULT,
            path=_path_address(request),
            is_closing=request.context.is_closing,
            trace_header=_trace_header(head),
        )
        try:
            return await known[0](sqs_call)
        except Unauthenticated as error:
            if signed is None:
                raise SqsFailure(
                    NO_CREDENTIAL, "The request must be signed with an API key's id and secret (Signature Version 4)."
                ) from error
            raise

    async def _sign_in(self, call: Call, signed: SignedRequest | SignatureRefused | None, action: str) -> Call:
        """Return the call with the signature's credential. Without a signature, a certificate may still authenticate it."""
        if signed is None:
            return msgspec.structs.replace(call, bearer=None)
        lookup = self._state.service.sqs_lookup
        if isinstance(signed, SignatureRefused):
            lookup.note_unsigned(call, action, signed)
            raise signed
        return msgspec.structs.replace(call, bearer=await lookup.sign_in(call, signed, action))


async def _form(head: RequestHead, request: Request) -> dict[str, str] | None:
    """Return the parameters of the Query protocol, or None for other requests."""
    raw = head.target.partition(b"?")[2]
    kind = head.headers.get(b"content-type", b"").lower()
    given = b"&".join(part for part in (raw, request.body if kind.startswith(_FORM) else b"") if part)
    if not given:
        return None
    form = await asyncio.to_thread(parse_form, given) if len(given) > SLICE_BYTES else parse_form(given)
    return form if "Action" in form else None


def _action(form: dict[str, str], request: Request) -> str:
    """Return the action. Actions without a queue are not valid at the URL of a queue."""
    action = form["Action"]
    if request.name and action in _OF_NO_QUEUE:
        raise _no_such_action(action)
    return action


def _no_such_action(action: str) -> SqsFailure:
    return SqsFailure(INVALID_ACTION, f"The action {action[:80]} is not valid for this endpoint.")


def _path_address(request: Request) -> QueueAddress | None:
    number = number_of(request.name) if request.name else None
    if number is None or not is_queue_name(request.queue):
        return None
    return QueueAddress(number, request.queue)


def _base_url(head: RequestHead) -> str:
    """Return the base URL that the client used: from its Host header, with https if the connection or a proxy uses TLS."""
    host = head.headers.get(b"host", b"localhost").decode("latin-1")
    secure = head.is_secure or head.headers.get(b"x-forwarded-proto", b"").lower() == b"https"
    return f"{'https' if secure else 'http'}://{quote(host, safe='.:[]')}"


def _trace_header(head: RequestHead) -> str:
    """Return the trace header of the request, or an empty text if it is missing or not legal in a message."""
    text = head.headers.get(b"x-amzn-trace-id", b"").decode("latin-1")
    return text if is_legal(text) and len(text) <= TRACE_HEADER_CHARS_MAX else ""


def _nothing_here(request: Request) -> Reply:
    """Return the reply to a request without an action: an SQS error at the URL of a queue, a problem document otherwise."""
    if _path_address(request) is not None:
        return Reply(b"<UnknownOperationException/>", 404, KIND)
    refusal = HttpError(404, "not_found", "unknown path. GET /docs lists all paths.")
    return problem_reply(refusal, request.call.request_id)
