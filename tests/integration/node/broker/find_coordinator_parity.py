"""FindCoordinator of Apache Kafka and of Millstream: the same requests, the responses as lines of text.

    python -m tests.integration.node.broker.find_coordinator_parity HOST:PORT   # prints what a broker responds

The broker must have `SETTINGS`. `test_find_coordinator_parity` compares the lines with those of Apache Kafka 4.3.1.
"""

import sys

from millstream.formats.model.errors import ErrorCode
from tests.waiting import until
from tests.wire import Wire

SETTINGS = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
_GROUP, _TRANSACTION, _SHARE, _UNKNOWN = 0, 1, 2, 9
_KEYS = {_GROUP: "g", _TRANSACTION: "t", _SHARE: "not a share key", _UNKNOWN: "x"}
_FIRST_WITH_TYPES, _FIRST_WITH_KEYS, _LAST = 1, 4, 6


def lines(address: str) -> list[str]:
    """A line for each version and type of coordinator: error, text, and whether there is a node."""
    with Wire(address) as wire:
        for kind in (_GROUP, _TRANSACTION):
            asked = {"key_type": kind, "coordinator_keys": [_KEYS[kind]]}
            until(lambda: not wire.call("find_coordinator", _LAST, **asked).coordinators[0].error_code)  # noqa: B023
        return [
            f"v{version} type {kind}: {_row(wire, version, kind)}"
            for version in range(_LAST + 1)
            for kind in (_KEYS if version >= _FIRST_WITH_TYPES else (_GROUP,))
        ]


def _row(wire: Wire, version: int, kind: int) -> str:
    if version < _FIRST_WITH_KEYS:
        row = wire.call("find_coordinator", version, key=_KEYS[kind], key_type=kind)
    else:
        (row,) = wire.call("find_coordinator", version, key_type=kind, coordinator_keys=[_KEYS[kind]]).coordinators
    text = repr(row.error_message) if version >= _FIRST_WITH_TYPES else "no text"
    nowhere = (row.node_id, row.host, row.port) == (-1, "", -1)
    return f"{ErrorCode(row.error_code).name}, {text}, {'nowhere' if nowhere else 'a broker'}"


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1])))
