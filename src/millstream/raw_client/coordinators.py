"""Who coordinates a group or a transactional id, and asking them while they load or move."""

import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client.addresses import Address
from millstream.raw_client.errors import ConnectionLostError, NotYetError, error_code, refusal
from millstream.raw_client.patience import Patience
from millstream.raw_client.pool import ConnectionPool
from millstream.raw_client.routing import Routing


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_PASSING = _MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}


class Coordinators:
    def __init__(self, routing: Routing, pool: ConnectionPool) -> None:
        self._routing = routing
        self._pool = pool
        self._lock = threading.Lock()
        self._known: dict[tuple[str, CoordinatorKind], Address] = {}

    def ask(
        self,
        key: str,
        kind: CoordinatorKind,
        api: str,
        fields: dict[str, Any],
        patience: Patience,
        at_most: int | None = None,
    ) -> Message:
        """One try; NotYetError while the coordinator loads, moves, or is still busy with the last transaction."""
        address = self.find(key, kind, patience)
        try:
            answer = self._pool.ask(address, api, fields, patience, at_most)
        except ConnectionLostError:
            self._routing.note_failure(address)
            self._forget(key, kind)
            raise
        passing = passing_code(answer)
        if passing is not None:
            if passing in _MOVED:
                self._forget(key, kind)
            raise NotYetError(f"the coordinator of {_name(key, kind)}", passing)
        return answer

    def find(self, key: str, kind: CoordinatorKind, patience: Patience) -> Address:
        """Where the coordinator is, as last heard."""
        known = self._known.get((key, kind))
        if known is not None:
            return known
        # Old versions have room for one key, newer ones for several.
        fields = {"key": key, "key_type": int(kind), "coordinator_keys": [key]}
        answer = self._routing.ask_any("find_coordinator", fields, patience)
        row = answer.coordinators[0] if answer.coordinators else answer
        code = error_code(row.error_code)
        if code in _PASSING:
            raise NotYetError(f"the coordinator of {_name(key, kind)}", code)
        if row.error_code:
            raise refusal(_name(key, kind), code)
        found = Address(row.host, row.port)
        with self._lock:
            self._known[key, kind] = found
        return found

    def _forget(self, key: str, kind: CoordinatorKind) -> None:
        with self._lock:
            self._known.pop((key, kind), None)


def passing_code(answer: Message) -> ErrorCode | None:
    """The code in an answer that says: ask again in a moment."""
    return next((code for code in codes_in(answer) if code in _PASSING), None)


def codes_in(answer: Message) -> Iterator[ErrorCode]:
    """Every error code in an answer, however deep."""
    for name in answer.__slots__:
        value = getattr(answer, name)
        if name == "error_code":
            yield error_code(value)
        elif isinstance(value, Message):
            yield from codes_in(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Message):
                    yield from codes_in(each)


def _name(key: str, kind: CoordinatorKind) -> str:
    return f"transactional id {key!r}" if kind is CoordinatorKind.TRANSACTION else f"group {key!r}"
