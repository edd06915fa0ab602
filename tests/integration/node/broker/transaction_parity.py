"""Conversations with a broker about transactions, written down: the same requests to Kafka and to Millstream.

A script asks through a `Talk`, which notes each response field by field. What differs from run to run (producer ids,
times, ports, names) gets a name of its own. What Apache Kafka responded is in `transaction_parity.golden`:

    python -m tests.integration.node.broker.transaction_parity HOST:PORT   # prints what a broker responds
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message, Structure, response_schema
from millstream.formats.records.record import read_batches
from tests import wire as wires
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Closed, Wire

SETTINGS = {
    "num.partitions": 2,
    "auto.create.topics.enable": "false",
    "offset.metadata.max.bytes": 64,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
}
"""What a broker must be set to, to be asked."""
PASSING = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    )
)
_PRODUCERS = ("producer_id", "ongoing_txn_producer_id")
_TIMES = ("last_timestamp", "transaction_start_time_ms", "log_append_time_ms", "timestamp")
_UNSAID = (
    "error_message",
    "batch_index_error_message",
    "throttle_time_ms",
    "port",
    "host",
    "node_id",
    "leader_id",
    "session_id",
    "node_endpoints",
)
_UNSAID_OF_PRODUCE = ("log_append_time_ms", "log_start_offset")
"""Kafka tells them of refused batches and of repeated ones, Millstream of those that it took."""
_CODES = ("error_code", "partition_error_code")


class Talk:
    """One conversation, in names that no other has."""

    def __init__(self, address: str, name: str, *, version: int) -> None:
        self.address = address
        self.version = version
        """The cluster's transaction.version."""
        self._prefix = f"{name}-{time.time_ns():x}"
        self._wire = Wire(address, TIMEOUT_SECONDS)
        self._producers: dict[int, str] = {}
        self._topic_ids: dict[str, Any] = {}
        self.lines: list[str] = []

    def close(self) -> None:
        self._wire.close()

    def name(self, text: str) -> str:
        return f"{self._prefix}.{text}"

    def topic(self, text: str = "topic", partitions: int = 2, **configs: str) -> str:
        name = self.name(text)
        self._topic_ids[name] = self._wire.create_topic(name, partitions, **configs)
        until = time.monotonic() + TIMEOUT_SECONDS
        while self._wire.fetch(name).error_code and time.monotonic() < until:
            time.sleep(0.05)
        return name

    def group(self, text: str = "group") -> str:
        """The name of a group whose coordinator is ready."""
        name = self.name(text)
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            (found,) = self._wire.call("find_coordinator", 6, key_type=0, coordinator_keys=[name]).coordinators
            if (
                not found.error_code
                and not self._wire.call(
                    "offset_fetch", 9, groups=[{"group_id": name, "topics": None}], require_stable=False
                )
                .groups[0]
                .error_code
            ):
                break
            time.sleep(0.1)
        return name

    def topic_id(self, topic: str) -> Any:
        return self._topic_ids[topic]

    # Asking

    def call(self, api: str, version: int, **fields: Any) -> Message:
        """Asks without noting it down."""
        return self._wire.call(api, version, **fields)

    def ask(self, label: str, api: str, version: int, **fields: Any) -> Message | None:
        """Asks once, and notes the response."""
        try:
            response = self._wire.call(api, version, **fields)
        except (Closed, TimeoutError) as error:
            self._wire.close()
            self._wire = Wire(self.address, TIMEOUT_SECONDS)
            self.note(label, "there is no response" if isinstance(error, TimeoutError) else "the connection is closed")
            return None
        self.note(label, self.shown(response, api, version))
        return response

    def ask_until_settled(self, label: str, api: str, version: int, **fields: Any) -> Message:
        """Asks until what passes by itself has passed, and notes the last response."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            response = self._wire.call(api, version, **fields)
            if not (_codes(response) & PASSING) or time.monotonic() > until:
                self.note(label, self.shown(response, api, version))
                return response
            time.sleep(0.05)

    def note(self, label: str, text: str) -> None:
        self.lines.append(f"{label}: {text}".replace(self._prefix + ".", ""))

    def settle(self, transactional_id: str) -> None:
        """Waits until the last transaction of that id has its markers."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            response = self._wire.call("describe_transactions", 0, transactional_ids=[transactional_id])
            if not response.transaction_states[0].transaction_state.startswith("Prepare"):
                return
            time.sleep(0.02)

    def until_aborted(self, transactional_id: str) -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            response = self._wire.call("describe_transactions", 0, transactional_ids=[transactional_id])
            if response.transaction_states[0].transaction_state == "CompleteAbort":
                return
            time.sleep(0.05)

    # What it looks like

    def producer(self, producer_id: int) -> str:
        if producer_id < 0:
            return str(producer_id)
        return self._producers.setdefault(producer_id, f"P{len(self._producers) + 1}")

    def shown(self, response: Message, api: str, version: int) -> str:
        return self._message(response, response_schema(api).root, version)

    def _message(self, message: Message, structure: Structure, version: int) -> str:
        said = []
        for field in structure.fields:
            value = getattr(message, field.name)
            if version not in field.versions or field.name in _UNSAID or (version in field.tagged and _is_unset(value)):
                continue
            if structure.name == "produce.partition_responses" and field.name in _UNSAID_OF_PRODUCE:
                continue
            if field.name in _CODES:
                said.append(ErrorCode(value).name)
            elif field.name == "partitions" and str(getattr(message, "topic", "")).startswith("__"):
                said.append("partitions=some")  # which of them depends on a name's hash
            elif field.children is None:
                said.append(f"{field.name}={self._value(value, field.name)}")
            elif isinstance(value, list):
                rows = ", ".join(self._message(each, field.children, version) for each in _in_order(value))
                said.append(f"{field.name}=[{rows}]")
            else:
                said.append(f"{field.name}={value and self._message(value, field.children, version)}")
        return f"({' '.join(said)})"

    def _value(self, value: Any, name: str) -> str:
        if value is None:
            return "null"
        if name in _PRODUCERS:
            return self.producer(value)
        if name in _TIMES:
            return "then" if value > 0 else str(value)
        if isinstance(value, list):
            return str(sorted(value))
        if name == "topic_id":
            return next((text for text, topic_id in self._topic_ids.items() if topic_id == value), str(value))
        if name == "records":
            return self._batches(value)
        return repr(value) if isinstance(value, str) else str(value)

    def _batches(self, data: bytes) -> str:
        rows = []
        for header, records in read_batches(bytes(data)):
            writer = f"{self.producer(header.producer_id)}/{header.producer_epoch}#{header.base_sequence}"
            if header.is_control:
                kinds = "/".join("commit" if record.key and record.key[3] else "abort" for record in records)
                rows.append(f"{header.base_offset} {writer} {kinds}")
            else:
                kind = "T" if header.is_transactional else "-"
                values = "+".join((record.value or b"").decode() for record in records)
                rows.append(f"{header.base_offset} {writer} {kind} {values}")
        return f"<{'; '.join(rows)}>"


def _in_order(rows: list[Message]) -> list[Message]:
    """Partitions and producers in the order of their numbers: Kafka gives them in any."""
    for name in ("partition_index", "index", "producer_id"):
        if rows and hasattr(rows[0], name):
            return sorted(rows, key=lambda row: int(getattr(row, name)))
    return rows


def _is_unset(value: Any) -> bool:
    """Whether a tagged field was left out: all of these are structures of -1s, or empty."""
    return not value or all(getattr(value, name) == -1 for name in value.__slots__)


def _codes(message: Message) -> set[int]:
    found: set[int] = set()
    for field in message.__slots__:
        value = getattr(message, field)
        if field in _CODES:
            found.add(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Message):
                    found |= _codes(each)
    return found


# What producers do

Script = Callable[[Talk], None]


class Client:
    """A transactional producer of either kind; `adds` as in transaction version 2."""

    def __init__(self, talk: Talk, text: str = "id", *, adds: bool, timeout_ms: int = 60_000) -> None:
        self.talk = talk
        self.adds = adds
        self.name = talk.name(text)
        until = time.monotonic() + TIMEOUT_SECONDS
        while talk.call("find_coordinator", 6, key_type=1, coordinator_keys=[self.name]).coordinators[0].error_code:
            assert time.monotonic() < until
            time.sleep(0.1)
        self.id, self.epoch = -1, -1
        self.sequence: dict[tuple[str, int], int] = {}
        self.timeout_ms = timeout_ms
        self.begin()
        self.begin()  # so that there is an earlier epoch

    def begin(self) -> None:
        response = self.talk.ask_until_settled(
            f"{self.name} begins",
            "init_producer_id",
            5 if self.adds else 4,
            transactional_id=self.name,
            transaction_timeout_ms=self.timeout_ms,
        )
        self.id, self.epoch = response.producer_id, response.producer_epoch
        self.sequence.clear()

    @property
    def who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    def adding(self, topic: str, *partitions: int, **changed: Any) -> dict[str, Any]:
        """The fields of AddPartitionsToTxn up to version 3."""
        fields = {f"v3_and_below_{name}": value for name, value in (self.who | changed).items()}
        return fields | {"v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}]}

    def batch(self, *values: str, **changed: Any) -> bytes:
        options = {"producer_id": self.id, "producer_epoch": self.epoch, "base_sequence": 0, "transactional": True}
        return wires.batch(*(value.encode() for value in values), **(options | changed))

    def producing(self, topic: str, batch: bytes, partition: int = 0, **changed: Any) -> dict[str, Any]:
        data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        return {"transactional_id": self.name, "acks": -1, "timeout_ms": 10_000, "topic_data": data} | changed

    def put(self, topic: str, *values: str, partition: int = 0) -> None:
        """A batch, in order, as such a client sends it."""
        if not self.adds:
            self.talk.ask_until_settled(
                f"{self.name} adds", "add_partitions_to_txn", 3, **self.adding(topic, partition)
            )
        first = self.sequence.get((topic, partition), 0)
        self.sequence[topic, partition] = first + len(values)
        batch = self.batch(*values, base_sequence=first)
        version = 12 if self.adds else 10
        label = f"{self.name} puts {' '.join(values)}"
        self.talk.ask_until_settled(label, "produce", version, **self.producing(topic, batch, partition))

    def end(self, *, committed: bool) -> None:
        label = f"{self.name} {'commits' if committed else 'aborts'}"
        response = self.talk.ask_until_settled(label, "end_txn", 5 if self.adds else 3, committed=committed, **self.who)
        if self.adds and not response.error_code:
            self.id, self.epoch = response.producer_id, response.producer_epoch
            self.sequence.clear()
        self.talk.settle(self.name)


def run(address: str, name: str, script: Script, version: int) -> list[str]:
    talk = Talk(address, name, version=version)
    try:
        script(talk)
    finally:
        talk.close()
    return talk.lines


def main(address: str, *wanted: str) -> None:
    from tests.integration.node.broker.transaction_parity_scripts import SCRIPTS

    with Wire(address) as wire:
        for version, scripts in SCRIPTS.items():
            set_version(wire, version)
            for script in scripts:
                name = script.__name__
                if not wanted or name in wanted:
                    print(f"== {name} {version}")
                    for line in run(address, name, script, version):
                        print(line)
                    sys.stdout.flush()


def set_version(wire: Wire, version: int) -> None:
    """Sets the cluster's transaction.version and waits until the broker has heard of it."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < until:
        response = wire.call("api_versions", 3, client_software_name="t", client_software_version="1")
        levels = {row.name: row.max_version_level for row in response.finalized_features or ()}
        if levels.get("transaction.version", 0) == version:
            return
        kind = 1 if levels.get("transaction.version", 0) < version else 2
        updates = [{"feature": "transaction.version", "max_version_level": version, "upgrade_type": kind}]
        wire.call("update_features", 2, timeout_ms=10_000, feature_updates=updates, validate_only=False)
        time.sleep(0.2)
    raise AssertionError(f"transaction.version did not become {version}")


if __name__ == "__main__":
    main(*sys.argv[1:])
