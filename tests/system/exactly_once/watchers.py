"""Those who look on: consumers of either isolation level during the run, and the last look when all is over."""

import random
import threading
import time
from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.simulator.history import Recorder, Seen

_SETTINGS = {
    "log_level": 2,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2000,
    "socket.timeout.ms": 10_000,
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 200,
    # A position beyond the end means that records have gone: it must be heard of, not reset.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
_ASK_SECONDS = 5.0


def consumer_of(bootstrap: str, *, committed_only: bool, group: str = "watchers") -> Consumer:
    level = "read_committed" if committed_only else "read_uncommitted"
    return Consumer({"bootstrap.servers": bootstrap, **_SETTINGS, "group.id": group, "isolation.level": level})


def place(name: str, offset: int | None = None) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition)) if offset is None else TopicPartition(topic, int(partition), offset)


def name_of(found: TopicPartition) -> str:
    return f"{found.topic}-{found.partition}"


class Reader:
    """A consumer of all partitions without a group, whose polls are written down."""

    def __init__(
        self, name: str, bootstrap: str, partitions: Sequence[str], recorder: Recorder, *, committed_only: bool
    ) -> None:
        self.name = name
        self.committed_only = committed_only
        self.reached = dict.fromkeys(partitions, 0)
        """The offset after the last record, or the end where that is known to be beyond it."""
        self.problems: list[str] = []
        self._recorder = recorder
        self._consumer = consumer_of(bootstrap, committed_only=committed_only)

    def start_at(self, positions: dict[str, int]) -> None:
        self._recorder.assigned(self.name, dict(positions), committed_only=self.committed_only)
        self._consumer.assign([place(name, offset) for name, offset in positions.items()])

    def poll(self) -> None:
        invoked_at = self._recorder.now()
        records = []
        for message in self._consumer.consume(500, 0.2):
            name = f"{message.topic()}-{message.partition()}"
            offset, error = message.offset(), message.error()
            if error is None:
                value = message.value()
                assert offset is not None and value is not None
                records.append(Seen(name, offset, value.decode()))
                self.reached[name] = max(self.reached[name], offset + 1)
            elif error.code() == KafkaError._PARTITION_EOF and offset is not None:
                # Markers and aborted records are never delivered: only this tells that they are behind us.
                self.reached[name] = max(self.reached[name], offset)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.problems.append(f"{self.name}: {error.str()}")
        if records:
            self._recorder.poll(self.name, invoked_at, records)

    def end_of(self, name: str) -> int | None:
        """Where the partition ends for this reader, written down; None when no broker responds."""
        invoked_at = self._recorder.now()
        try:
            _, end = self._consumer.get_watermark_offsets(place(name), timeout=_ASK_SECONDS, cached=False)
        except KafkaException:
            return None
        self._recorder.end_read(self.name, name, invoked_at, end, committed_only=self.committed_only)
        return int(end)

    def close(self) -> None:
        self._consumer.close()


class Watcher(threading.Thread):
    """Reads to the end, over and over from somewhere earlier, and asks for ends, until told to stop."""

    def __init__(self, reader: Reader, seed: int) -> None:
        super().__init__(name=reader.name, daemon=True)
        self.ending = threading.Event()
        self.problems = reader.problems
        self._reader = reader
        self._chance = random.Random(f"{seed} {reader.name}")

    def run(self) -> None:
        reader = self._reader
        try:
            reader.start_at(dict(reader.reached))
            back_at = time.monotonic() + 5
            while not self.ending.is_set():
                reader.poll()
                if self._chance.random() < 0.2:
                    reader.end_of(self._chance.choice(sorted(reader.reached)))
                if time.monotonic() > back_at:
                    # The last stretch again: that is where a log might have been rewritten.
                    reader.start_at(
                        {name: max(0, at - self._chance.randint(0, 500)) for name, at in reader.reached.items()}
                    )
                    back_at = time.monotonic() + self._chance.uniform(3, 10)
            reader.close()
        except Exception as problem:
            self.problems.append(f"{reader.name} ended: {problem!r}")


def committed_offsets(
    bootstrap: str, group: str, partitions: Iterable[str], recorder: Recorder
) -> dict[str, int | None] | None:
    """What the group has committed, not while a transaction may still change it; None when no broker responds."""
    consumer = consumer_of(bootstrap, committed_only=True, group=group)
    try:
        invoked_at = recorder.now()
        found = consumer.committed([place(name) for name in partitions], timeout=_ASK_SECONDS)
        if any(each.error is not None for each in found):
            return None
        told = {name_of(each): each.offset if each.offset >= 0 else None for each in found}
        recorder.committed_read(group, invoked_at, told, stable=True)
        return told
    except KafkaException:
        return None
    finally:
        consumer.close()


def read_everything(
    bootstrap: str, partitions: Sequence[str], recorder: Recorder, timeout_s: float = 60.0
) -> list[str]:
    """The last look, with either isolation level: to the end, which must be the same for both when all is decided."""
    problems: list[str] = []
    deadline = time.monotonic() + timeout_s
    readers = [
        Reader("final-committed", bootstrap, partitions, recorder, committed_only=True),
        Reader("final-uncommitted", bootstrap, partitions, recorder, committed_only=False),
    ]
    committed, uncommitted = readers
    waiting = set(partitions)
    ends: dict[str, int] = {}
    while waiting and time.monotonic() < deadline:
        for name in sorted(waiting):
            stable, end = committed.end_of(name), uncommitted.end_of(name)
            if stable is not None and stable == end:
                ends[name] = stable
                waiting.discard(name)
        if waiting:
            time.sleep(0.3)
    if waiting:
        problems.append(f"after {timeout_s:.0f} s a transaction is still open in {', '.join(sorted(waiting))}")
    for reader in readers:
        deadline = time.monotonic() + timeout_s
        reader.start_at(dict.fromkeys(partitions, 0))
        while any(reader.reached[name] < end for name, end in ends.items()) and time.monotonic() < deadline:
            reader.poll()
        behind = {name: (reader.reached[name], end) for name, end in ends.items() if reader.reached[name] < end}
        if behind:
            problems.append(f"{reader.name} did not reach the end within {timeout_s:.0f} s: {behind}")
        problems += reader.problems
        reader.close()
    return problems
