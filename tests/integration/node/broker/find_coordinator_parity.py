"""FindCoordinator of Apache Kafka and of Millstream: the same requests, the responses as lines of text.

    python -m tests.integration.node.broker.find_coordinator_parity HOST:PORT   # prints what a broker responds

The broker must have `SETTINGS`. `test_find_coordinator_parity` compares the lines with those of Apache Kafka 4.3.1.
"""

import sys

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from tests.waiting import until
from tests.wire import Wire

SETTINGS = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
_GROUP, _TRANSACTION, _SHARE, _UNKNOWN = 0, 1, 2, 9
_KEYS = {_GROUP: "g", _TRANSACTION: "t", _SHARE: "not a share key", _UNKNOWN: "x"}
_FIRST_WITH_TYPES, _FIRST_WITH_KEYS, _LAST = 1, 4, 6


def lines(address: str, *, texts_of_failures: bool = False) -> list[str]:
    """A line for each version and type of coordinator: error, error_message, and whether there is a node.

    `texts_of_failures`: also the error_message of failures, which differs on purpose. Kafka has none, or one that does
    not name the mistake.
    """
    with Wire(address) as wire:
        for kind in (_GROUP, _TRANSACTION):
            until(lambda: _row(wire, _LAST, kind).error_code == 0)  # noqa: B023
        return [
            f"v{version} type {kind}: {_line(_row(wire, version, kind), version, texts_of_failures)}"
            for version in range(_LAST + 1)
            for kind in (_KEYS if version >= _FIRST_WITH_TYPES else (_GROUP,))
        ]


def _row(wire: Wire, version: int, kind: int) -> Message:
    if version < _FIRST_WITH_KEYS:
        return wire.call("find_coordinator", version, key=_KEYS[kind], key_type=kind)
    (row,) = wire.call("find_coordinator", version, key_type=kind, coordinator_keys=[_KEYS[kind]]).coordinators
    assert isinstance(row, Message) and row.key == _KEYS[kind]
    return row


def _line(row: Message, version: int, texts_of_failures: bool) -> str:
    shown = version >= _FIRST_WITH_TYPES and (texts_of_failures or row.error_code == 0)
    nowhere = (row.node_id, row.host, row.port) == (-1, "", -1)
    text = f", {row.error_message!r}" if shown else ""
    return f"{ErrorCode(row.error_code).name}{text}, {'nowhere' if nowhere else 'a broker'}"


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1], texts_of_failures=True)))
