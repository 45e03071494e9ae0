"""The Query protocol: form parameters with numbered names, XML answers, or JSON if the client accepts only that."""

import base64
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from tenantq.http.reply import Reply
from tenantq.sqs.failures import MALFORMED, NO_SUCH_QUEUE, SqsFailure
from tenantq.sqs.requests import Parameters
from tenantq.sqs.xml_text import escape

_P = TypeVar("_P", bound=Parameters)

KIND: Final = b"text/xml"
JSON_KIND: Final = b"application/json"
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
FIELDS_MAX: Final = 2_000
_DEPTH_MAX: Final = 8
_NO_SUCH_QUEUE: Final = "The specified queue does not exist for this wsdl version."

_LISTS: Final = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
}
_MAPS: Final = {
    "Attribute": ("Attributes", "Name"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
    "Tag": ("Tags", "Key"),
}
_GATHERED: Final = frozenset((*_LISTS, *_LISTS.values(), *_MAPS, *(shown for shown, _ in _MAPS.values())))
_NUMBER_DIGITS_MAX: Final = 6
_SHOWN_LISTS: Final = {
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
_SHOWN_MAPS: Final = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "Tags": ("Tag", "Key"),
}


def parse_form(raw: bytes) -> dict[str, str]:
    """Return the parameters of a form or query. The last of repeated ones counts."""
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except (ValueError, UnicodeDecodeError) as error:
        raise SqsFailure(MALFORMED, f"The parameters are not a form in UTF-8: {error}") from error
    return dict(pairs)


class QueryProtocol:
    """Reads requests and writes replies of the Query protocol, which older clients use."""

    def __init__(self, form: dict[str, str], request_id: str, *, as_json: bool = False) -> None:
        self._form = form
        self._as_json = as_json
        self._request_id = request_id
        self._headers = b"x-amzn-RequestId: %b\r\n" % request_id.encode()

    def read(self, kind: type[_P]) -> _P:
        """Return the parameters. Raises SqsFailure if they are malformed."""
        try:
            return msgspec.convert(_named(_tree(self._form)), kind, strict=False)
        except msgspec.ValidationError as error:
            raise SqsFailure(MALFORMED, f"The request is not understood: {error}") from error

    def answer(self, action: str, result: dict[str, Any] | None) -> Reply:
        """Return the reply to a successful action; ``result`` None means an empty reply."""
        if self._as_json:
            reply = {"ResponseMetadata": {"RequestId": self._request_id}}
            if result is not None:
                reply = {f"{action}Result": _listed(result), **reply}
            return Reply(msgspec.json.encode({f"{action}Response": reply}), 200, JSON_KIND, self._headers)
        inner = ""
        if result is not None:
            parts: list[str] = []
            _write(parts, action, result)
            inner = f"<{action}Result>{''.join(parts)}</{action}Result>" if parts else f"<{action}Result/>"
        text = (
            f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{inner}'
            f"<ResponseMetadata><RequestId>{escape(self._request_id)}</RequestId></ResponseMetadata></{action}Response>"
        )
        return Reply(text.encode(), 200, KIND, self._headers)

    def refuse(self, failure: SqsFailure) -> Reply:
        """Return the reply to a failed action."""
        kind = failure.kind
        message = failure.message if kind is not NO_SUCH_QUEUE else _NO_SUCH_QUEUE
        if self._as_json:
            error = {"Type": kind.fault, "Code": kind.code, "Message": message, "Detail": None}
            body = msgspec.json.encode({"Error": error, "RequestId": self._request_id})
            return Reply(body, kind.status, JSON_KIND, self._headers)
        text = (
            f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{kind.fault}</Type><Code>{kind.code}</Code>'
            f"<Message>{escape(message)}</Message><Detail/></Error>"
            f"<RequestId>{escape(self._request_id)}</RequestId></ErrorResponse>"
        )
        return Reply(text.encode(), kind.status, KIND, self._headers)


# ---- reading ----


def _tree(form: dict[str, str]) -> dict[str, Any]:
    """Return parameters such as ``A.1.B=x`` as nested mappings."""
    root: dict[str, Any] = {}
    for name, value in form.items():
        *path, last = name.split(".")
        if len(path) >= _DEPTH_MAX:
            raise SqsFailure(MALFORMED, f"The parameter {name[:80]} is nested too deeply.")
        place = root
        for step in path:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                raise SqsFailure(MALFORMED, f"The parameter {name[:80]} is given as a value and as a list.")
            place = inner
        if isinstance(place.get(last), dict):
            raise SqsFailure(MALFORMED, f"The parameter {name[:80]} is given as a value and as a list.")
        place[last] = value
    return root


def _named(tree: Any) -> Any:
    """Return a mapping with the names of the JSON protocol."""
    if not isinstance(tree, dict):
        return tree
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if value == "" and name in _GATHERED:
            continue  # how an empty list or mapping is written
        if name in _LISTS:
            found[_LISTS[name]] = [_named(one) for one in _numbered(value)]
        elif name in _MAPS:
            shown, key = _MAPS[name]
            found[shown] = dict(_pairs(value, key))
        else:
            found[name] = _named(value)
    return found


def _numbered(value: Any) -> list[Any]:
    """Return the values under 1, 2, 3 … in order, or a single value without a number."""
    if isinstance(value, dict) and value and all(_is_number(step) for step in value):
        return [value[step] for step in sorted(value, key=int)]
    return [value]


def _is_number(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) <= _NUMBER_DIGITS_MAX


def _pairs(value: Any, key: str) -> list[tuple[str, Any]]:
    pairs = []
    for one in _numbered(value):
        if not isinstance(one, dict) or not isinstance(one.get(key), str):
            raise SqsFailure(MALFORMED, f"Each of a mapping's entries needs a {key}.")
        pairs.append((one[key], one.get("Value", "")))
    return pairs


# ---- writing ----


def _write(parts: list[str], action: str, value: dict[str, Any]) -> None:
    for name, inner in value.items():
        if name in _SHOWN_MAPS and isinstance(inner, dict):
            shown, key = _SHOWN_MAPS[name]
            for one, what in inner.items():
                parts.append(f"<{shown}><{key}>{escape(one)}</{key}>")
                _write_one(parts, action, "Value", what)
                parts.append(f"</{shown}>")
        elif isinstance(inner, list):
            shown = f"{action}ResultEntry" if name == "Successful" else _SHOWN_LISTS[name]
            for one in inner:
                _write_one(parts, action, shown, one)
        else:
            _write_one(parts, action, name, inner)


def _listed(value: Any) -> Any:
    """Return a result as the JSON form of this protocol has it: mappings of attributes and tags are lists of pairs."""
    if isinstance(value, list):
        return [_listed(one) for one in value]
    if not isinstance(value, dict):
        return value
    listed: dict[str, Any] = {}
    for name, inner in value.items():
        if name in _SHOWN_MAPS and isinstance(inner, dict):
            key = _SHOWN_MAPS[name][1]
            listed[name] = [{key: one, "Value": _listed(what)} for one, what in inner.items()]
        else:
            listed["messages" if name == "Messages" else name] = _listed(inner)
    return listed


def _write_one(parts: list[str], action: str, name: str, value: Any) -> None:
    parts.append(f"<{name}>")
    if isinstance(value, dict):
        _write(parts, action, value)
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, bytes):
        parts.append(base64.b64encode(value).decode())
    else:
        parts.append(escape(str(value)))
    parts.append(f"</{name}>")
