"""What a broker makes of the records of `_schemas`."""

import json
from typing import Any

import pytest

from millstream.node.data.schema_validation import SchemaIds


def key(kind: str, subject: str, **more: object) -> bytes:
    return json.dumps({"keytype": kind, "subject": subject, "magic": 0, **more}).encode()


def put(ids: SchemaIds, subject: str, version: int, schema_id: int, **more: Any) -> None:
    value = {"subject": subject, "version": version, "id": schema_id, "schema": '"int"', **more}
    ids.apply(key("SCHEMA", subject, version=version), json.dumps(value).encode())


def test_versions_come_and_go() -> None:
    ids = SchemaIds()
    put(ids, "t-value", 1, 7)
    put(ids, "t-value", 2, 9)
    put(ids, ":.:u-value", 1, 7)
    put(ids, ":.other:t-value", 1, 50)
    assert ids.of("t-value") == {7, 9} and ids.of("u-value") == {7} and ids.of("nobody") == set()
    put(ids, "t-value", 1, 7, deleted=True)
    assert ids.of("t-value") == {9}
    put(ids, "t-value", 1, 7, deleted=False)
    assert ids.of("t-value") == {7, 9}
    ids.apply(key("SCHEMA", "t-value", version=2), None)
    assert ids.of("t-value") == {7}
    put(ids, "t-value", 3, 11)
    ids.apply(key("DELETE_SUBJECT", "t-value"), b'{"subject":"t-value","version":2}')
    assert ids.of("t-value") == {11}
    ids.apply(key("DELETE_SUBJECT", "t-value"), b'{"subject":"t-value","version":3}')
    assert ids.of("t-value") == set()


def test_what_is_no_schema_changes_nothing() -> None:
    ids = SchemaIds()
    ids.apply(b'{"keytype":"NOOP","magic":0}', b'{"millstream.highest.ids":{".":3}}')
    ids.apply(key("CONFIG", "t-value"), b'{"compatibilityLevel":"NONE"}')
    ids.apply(key("DELETE_SUBJECT", "t-value"), None)
    assert ids.of("t-value") == set()
    for bad in (None, b"", b"[]", b"{", b'{"keytype":"SCHEMA"}'):
        with pytest.raises((ValueError, KeyError, TypeError)):
            ids.apply(bad, b"{}")
