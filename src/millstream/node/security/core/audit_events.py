"""Audit events as JSON documents, with a stable schema (docs/audit.md), and the redaction of secrets in requests.

The fields of a request are copied, except secrets: keys, salts, passwords, and values of settings that are passwords or
unknown. Lists and texts are cut, so that an event stays small.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millstream.config.catalog import TOPIC_SETTINGS, broker_setting
from millstream.config.group_config import GROUP_SETTINGS
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.server.service import Peer

VERSION = 1
HIDDEN = "(hidden)"
LONGEST_REPORT = 16 << 10
"""Characters in the document of an event that a gateway reports."""
_LONGEST_LIST = 100
_LONGEST_TEXT = 500
_DEEPEST = 6
_ID_BYTES = 16
_SECRET_FIELDS = frozenset({"salt", "salted_password", "hmac", "auth_bytes", "password", "secret"})
_NAMES = ("name", "resource_name", "topic_name", "topic", "group_id", "user", "feature", "partition_index")
_AUTHORIZATION = "AUTHORIZATION_FAILED"
_SURROGATES = re.compile("[\ud800-\udfff]")
"""JSON can have halves of characters; UTF-8 cannot."""


def event(kind: str, result: str, peer: Peer, node_id: int, now_ms: int, **more: Any) -> dict[str, Any]:
    """An event; `more` are the fields of its kind."""
    return {
        "version": VERSION,
        "time_ms": now_ms,
        "node": node_id,
        "kind": kind,
        "result": result,
        "principal": str(peer.principal),
        "address": peer.host,
        "listener": peer.listener,
        "client_id": peer.client_id[:_LONGEST_TEXT],
        **{name: value for name, value in more.items() if value not in ("", None)},
    }


class InvalidEventError(ValueError):
    """A document of a gateway that is no event."""


def reported_event(text: str) -> dict[str, Any]:
    """An event of a gateway, from its JSON document; InvalidEventError if it is none. Every field is checked, because
    a reader of the topic must be able to rely on their meaning."""
    if len(text) > LONGEST_REPORT:
        raise InvalidEventError(f"an event has {len(text)} characters; the limit is {LONGEST_REPORT}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidEventError("an event is not a JSON document") from None
    if not isinstance(document, dict):
        raise InvalidEventError("an event is not a JSON object")
    for name in ("kind", "result", "principal", "address", "time_ms"):
        if name not in document:
            raise InvalidEventError(f"an event has no field {name}")
    for name, value in document.items():
        check = _REPORTED_FIELDS.get(name)
        if check is None:
            raise InvalidEventError(f"an event has an unknown field {name[:_LONGEST_TEXT]!r}")
        if not check(value):
            raise InvalidEventError(f"the field {name} of an event has a wrong value")
    return document


def gateway_event(document: Mapping[str, Any], peer: Peer, node_id: int) -> dict[str, Any]:
    """The event of a gateway for the topic. The field `gateway` says who reported it; events of the brokers themselves
    never have it, so none of them can be forged."""
    more = dict(document)
    head = {name: more.pop(name) for name in ("time_ms", "kind", "result", "principal", "address")}
    gateway = {"principal": str(peer.principal), "address": peer.host, "listener": peer.listener}
    if "dropped_before" in more:
        gateway["dropped_before"] = more.pop("dropped_before")
    return {
        "version": VERSION,
        "time_ms": head.pop("time_ms"),
        "node": node_id,
        **head,
        "gateway": gateway,
        **more,
    }


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and not _SURROGATES.search(value)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _LONGEST_LIST and all(_is_text(each) for each in value)


_REPORTED_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "kind": lambda value: value in ("authentication", "authorization", "administration"),
    "result": lambda value: value in ("success", "failure", "denied", "masked"),
    "principal": lambda value: _is_text(value) and value.startswith("User:"),
    "address": _is_text,
    "time_ms": _is_number,
    "mechanism": _is_text,
    "reason": _is_text,
    "api": _is_text,
    "resource": _is_text,
    "resource_type": _is_text,
    "resource_name": _is_text,
    "request": _are_texts,
    "error": _is_number,
    "repeated": _is_number,
    "dropped_before": _is_number,
}


def encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def request_document(request: Any, deepest: int = _DEEPEST) -> Any:
    """The fields of a request without its secrets."""
    if isinstance(request, Message):
        fields = {name: getattr(request, name) for name in request.__slots__ if not name.startswith("_")}
    elif isinstance(request, Mapping):
        fields = dict(request)
    elif isinstance(request, list | tuple):
        shown = [request_document(each, deepest - 1) for each in request[:_LONGEST_LIST]]
        return [*shown, f"… {len(request)} in all"] if len(request) > _LONGEST_LIST else shown
    else:
        return _plain(request)
    if deepest <= 0:
        return "…"
    hides_value = "value" in fields and _is_secret_setting(fields.get("name") or fields.get("key"))
    return {
        name: HIDDEN
        if name in _SECRET_FIELDS or (name == "value" and hides_value and value is not None)
        else request_document(value, deepest - 1)
        for name, value in fields.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex() if len(value) == _ID_BYTES else f"({len(value)} bytes)"
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}…"
    return value if isinstance(value, bool | int | float) or value is None else str(value)[:_LONGEST_TEXT]


def _is_secret_setting(name: Any) -> bool:
    """Whether the value of a setting is hidden: a password, or a name that is not known, as in Kafka."""
    if not isinstance(name, str):
        return False  # an entity of a quota, and the like
    if name in TOPIC_SETTINGS or name in GROUP_SETTINGS:
        return False
    if name.endswith(("_byte_rate", "_percentage", "_rate")):  # quotas have keys and values too
        return False
    setting = broker_setting(name)
    return setting is None or setting.sensitive


def errors_of(response: Any) -> list[dict[str, Any]]:
    """The errors in a response: name of the resource, and Kafka's name of the error."""
    return list(_errors(response, None))[:_LONGEST_LIST]


def _errors(response: Any, name: Any) -> Iterator[dict[str, Any]]:
    if isinstance(response, Message):
        fields = {each: getattr(response, each) for each in response.__slots__}
    elif isinstance(response, Mapping):
        fields = dict(response)
    elif isinstance(response, list | tuple):
        for each in response:
            yield from _errors(each, name)
        return
    else:
        return
    own = next((fields[each] for each in _NAMES if fields.get(each) not in (None, "")), name)
    code = fields.get("error_code", 0)
    if code:
        yield {"name": _plain(own), "error": _error_name(int(code))}
    for value in fields.values():
        if isinstance(value, list | tuple | Mapping | Message):
            yield from _errors(value, own)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def result_of(errors: list[dict[str, Any]]) -> str:
    """`success`, `denied` (each error is a refusal by the authorizer) or `failure`."""
    if not errors:
        return "success"
    return "denied" if all(each["error"].endswith(_AUTHORIZATION) for each in errors) else "failure"
