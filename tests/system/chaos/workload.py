"""The clients: idempotent producers, consumers with and without a group, a reader of end offsets. All write history.

One topic, whose every partition gets a steady stream of unique numbers from every producer. One producer is forgetful:
every few seconds it is thrown away with all that is under way, as by a crash, and another takes its place, so that many
outcomes are unknown. (A short timeout would not do: librdkafka then begins a new epoch and sends what was under way
again, which may be in the log already. Nor would a producer without retries: it still sends again what a leader that
resigns has appended and refused.) What a client must never be told, such as a fatal error of an idempotent producer or
an offset out of range, is noted in `problems`.
"""

import math
import random
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.simulator.history import Recorder, Seen, Send
from tests.system.chaos.summary import EndedLogin

Connection = Mapping[str, Any]
"""Settings of librdkafka: the servers, and how clients of a secured cluster authenticate."""
TOPIC = "chaos"
GROUP = "chaos-group"
NO_GROUP = "unused"
"""librdkafka wants a group also of consumers that assign themselves partitions."""

_CLIENT_SETTINGS: dict[str, Any] = {
    "log_level": 2,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    # A leader that is cut off does not say so; only asking for metadata does.
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 3_000,
}
_MESSAGE_TIMEOUT_SECONDS = 120
_PRODUCER_SETTINGS: dict[str, Any] = {
    **_CLIENT_SETTINGS,
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "request.timeout.ms": 5_000,
    "message.timeout.ms": _MESSAGE_TIMEOUT_SECONDS * 1000,
}
_CONSUMER_SETTINGS: dict[str, Any] = {
    **_CLIENT_SETTINGS,
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 200,
}
_NEVER_SENT = (KafkaError._QUEUE_FULL, KafkaError.MSG_SIZE_TOO_LARGE)
_REFUSALS = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_CONNECTION_ENDED = "Local: Broker transport failure"
"""In librdkafka's text of an error: no response came. A node that refuses a login sends a response."""
_POLL_SECONDS = 0.2
RATE = 150.0


def partition_name(partition: int) -> str:
    return f"{TOPIC}-{partition}"


class Worker(threading.Thread):
    """A client in a thread of its own; what ends it before its time is a problem."""

    def __init__(self, name: str, recorder: Recorder, problems: list[str], seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.recorder = recorder
        self.problems = problems
        self.random = random.Random(f"{seed} {name}")
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except Exception as problem:
            self.problems.append(f"{self.name} ended: {problem!r}")

    @abstractmethod
    def work(self) -> None: ...


class ProducerWorker(Worker):
    """Sends at a steady rate, round and round over the partitions."""

    def __init__(
        self,
        number: int,
        connection: Connection,
        partitions: int,
        rate: float,
        is_forgetful: bool,
        recorder: Recorder,
        problems: list[str],
        seed: int,
    ) -> None:
        super().__init__(f"producer-{number}", recorder, problems, seed)
        self._connection = connection
        self._partitions = partitions
        self._rate = rate
        self._is_forgetful = is_forgetful
        self._next_value = number * 1_000_000_000
        self._fatal: KafkaError | None = None
        self.errors: Counter[str] = Counter()
        """What its sends ended with, other than acknowledgements."""

    def work(self) -> None:
        incarnation = 0
        while not self.ending.is_set():
            incarnation += 1
            name = f"{self.name}.{incarnation}"
            try:
                self._produce(name)
            except KafkaException as problem:
                self.problems.append(f"{name}: {problem.args[0].str()}")

    def _produce(self, producer_name: str) -> None:
        """Until it is time to end, or to be forgotten, or a fatal error has come."""
        self._fatal = None
        settings = {**_PRODUCER_SETTINGS, "error_cb": self._on_error}
        producer = Producer({**self._connection, **settings})
        due = time.monotonic()
        until = due + self.random.uniform(2, 8) if self._is_forgetful else math.inf
        while not self.ending.is_set() and self._fatal is None and due < until:
            partition = self._next_value % self._partitions
            self._send(producer, producer_name, partition)
            due = max(due + 1 / self._rate, time.monotonic() - 0.5)
            producer.poll(max(0.0, due - time.monotonic()))
        if self._fatal is not None:
            self.problems.append(f"{producer_name} got a fatal error: {self._fatal.str()}")
        if self._is_forgetful:
            producer.purge()
            producer.poll(0)
        elif left := producer.flush(_MESSAGE_TIMEOUT_SECONDS + 15):
            self.problems.append(f"{producer_name} could not tell the outcome of {left} sends")

    def _send(self, producer: Producer, producer_name: str, partition: int) -> None:
        value = self._next_value
        self._next_value += 1
        operation = self.recorder.send(producer_name, partition_name(partition), value)
        try:
            producer.produce(TOPIC, b"%d" % value, partition=partition, on_delivery=self._delivery(operation))
        except (BufferError, KafkaException):
            self.recorder.failed(operation)
            producer.poll(_POLL_SECONDS)

    def _delivery(self, operation: Send) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                self.recorder.acked(operation, offset if offset is not None and offset >= 0 else None)
                return
            self.errors[error.name()] += 1
            note_refusal(self.name, error, self.problems)
            if error.code() in _NEVER_SENT:
                self.recorder.failed(operation)

        return delivered

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error
        self._connection["error_cb"](error)


class AssignedConsumer(Worker):
    """Reads every partition without a group, and now and then goes back to somewhere and reads again."""

    def __init__(
        self,
        number: int,
        connection: Connection,
        partitions: int,
        recorder: Recorder,
        problems: list[str],
        seed: int,
        goes_back: int = 2000,
    ) -> None:
        """`goes_back`: by how many records at most it goes back."""
        super().__init__(f"consumer-{number}", recorder, problems, seed)
        self._goes_back = goes_back
        self._connection = connection
        self._partitions = partitions

    def work(self) -> None:
        consumer = assigning_consumer(self._connection)
        reached = [0] * self._partitions
        positions = list(reached)
        try:
            while not self.ending.is_set():
                self.recorder.assigned(self.name, {partition_name(p): at for p, at in enumerate(positions)})
                consumer.assign([TopicPartition(TOPIC, p, at) for p, at in enumerate(positions)])
                until = time.monotonic() + self.random.uniform(3, 12)
                while time.monotonic() < until and not self.ending.is_set():
                    for seen in poll(consumer, self.name, self.recorder, self.problems):
                        partition = int(seen.partition.rpartition("-")[2])
                        reached[partition] = max(reached[partition], seen.offset + 1)
                # The last stretch again: that is where a log might have been rewritten.
                positions = [max(0, at - self.random.randint(0, self._goes_back)) for at in reached]
        finally:
            consumer.close()


class GroupConsumer(Worker):
    """A member of the group: commits what it got, and now and then leaves and comes back."""

    def __init__(self, number: int, connection: Connection, recorder: Recorder, problems: list[str], seed: int) -> None:
        super().__init__(f"member-{number}", recorder, problems, seed)
        self._connection = connection
        self._positions: dict[int, int] = {}

    def work(self) -> None:
        membership = 0
        while not self.ending.is_set():
            membership += 1
            self._be_member(f"{self.name}.{membership}")

    def _be_member(self, name: str) -> None:
        settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
        consumer = Consumer({**self._connection, **_CONSUMER_SETTINGS, **settings})
        self._positions = {}

        def on_assign(_: Consumer, given: list[TopicPartition]) -> None:
            self._take_over(consumer, name, [each.partition for each in given])

        def on_revoke(_: Consumer, taken: list[TopicPartition]) -> None:
            self._commit(consumer, name)
            self._positions = {}
            self.recorder.assigned(name, {}, GROUP)

        def on_lost(_: Consumer, taken: list[TopicPartition]) -> None:
            self._positions = {}
            self.recorder.assigned(name, {}, GROUP)

        consumer.subscribe([TOPIC], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        until = time.monotonic() + self.random.uniform(10, 30)
        commit_at = time.monotonic() + 1
        try:
            while time.monotonic() < until and not self.ending.is_set():
                for seen in poll(consumer, name, self.recorder, self.problems):
                    self._positions[int(seen.partition.rpartition("-")[2])] = seen.offset + 1
                if time.monotonic() > commit_at:
                    self._commit(consumer, name)
                    commit_at = time.monotonic() + self.random.uniform(0.1, 1.5)
        finally:
            consumer.close()

    def _take_over(self, consumer: Consumer, name: str, partitions: list[int]) -> None:
        wanted = [TopicPartition(TOPIC, partition) for partition in partitions]
        invoked_at = self.recorder.now()
        try:
            found = consumer.committed(wanted, timeout=10) if wanted else []
        except KafkaException as problem:
            note_refusal(name, problem.args[0], self.problems)
            found = None
        if found is None or any(each.error is not None for each in found):
            self.recorder.assigned(name, {partition_name(p): None for p in partitions}, GROUP)
            consumer.assign(wanted)
            return
        committed = {each.partition: each.offset for each in found if each.offset >= 0}
        told = {partition_name(partition): committed.get(partition) for partition in partitions}
        self.recorder.committed_read(GROUP, invoked_at, told)
        positions = {partition: committed.get(partition, 0) for partition in partitions}
        self.recorder.assigned(name, {partition_name(p): at for p, at in positions.items()}, GROUP)
        consumer.assign([TopicPartition(TOPIC, p, at) for p, at in positions.items()])

    def _commit(self, consumer: Consumer, name: str) -> None:
        if not self._positions:
            return
        offsets = {partition_name(partition): at for partition, at in self._positions.items()}
        operation = self.recorder.commit(name, GROUP, offsets)
        rows = [TopicPartition(TOPIC, partition, at) for partition, at in self._positions.items()]
        try:
            committed = consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException as problem:
            note_refusal(name, problem.args[0], self.problems)
            return
        if committed is not None and all(each.error is None for each in committed):
            self.recorder.committed(operation)


class EndReader(Worker):
    """Asks where the partitions end, over and over."""

    def __init__(
        self, connection: Connection, partitions: int, recorder: Recorder, problems: list[str], seed: int
    ) -> None:
        super().__init__("ends", recorder, problems, seed)
        self._connection = connection
        self._partitions = partitions

    def work(self) -> None:
        consumer = assigning_consumer(self._connection)
        try:
            while not self.ending.wait(self.random.uniform(0.05, 0.3)):
                partition = self.random.randrange(self._partitions)
                read_end(consumer, self.name, partition, self.recorder)
        finally:
            consumer.close()


def assigning_consumer(connection: Connection) -> Consumer:
    # A position beyond the end means that records have gone: it must be heard of, not reset.
    settings = {"group.id": NO_GROUP, "auto.offset.reset": "error"}
    return Consumer({**connection, **_CONSUMER_SETTINGS, **settings})


def poll(consumer: Consumer, name: str, recorder: Recorder, problems: list[str]) -> list[Seen]:
    """One poll, written down."""
    invoked_at = recorder.now()
    records = []
    for message in consumer.consume(500, _POLL_SECONDS):
        if (error := message.error()) is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                problems.append(f"{name}: {error.str()}")
            note_refusal(name, error, problems)
            continue
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and value is not None
        records.append(Seen(partition_name(partition), offset, int(value)))
    if records:
        recorder.poll(name, invoked_at, records)
    return records


def read_end(consumer: Consumer, name: str, partition: int, recorder: Recorder) -> int | None:
    invoked_at = recorder.now()
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=5, cached=False)
    except KafkaException:
        return None
    recorder.end_read(name, partition_name(partition), invoked_at, end)
    return int(end)


def note_refusal(name: str, error: KafkaError, problems: list[str]) -> None:
    """The clients may do all that they do: a node that says otherwise is wrong."""
    if error.code() in _REFUSALS:
        problems.append(f"{name} was refused: {error.name()} {error.str()}")


class Workload:
    """All clients of a run."""

    def __init__(
        self, connection: Connection, partitions: int, seed: int, rate: float = RATE, *, reads_history: bool = False
    ) -> None:
        """`reads_history`: one consumer reads all records from offset 0, again and again."""
        self.recorder = Recorder()
        self.problems: list[str] = []
        self.partitions = partitions
        self.client_errors: list[tuple[float, str]] = []
        """Errors of connections, as librdkafka tells them to the application, and their times."""
        self.ended_logins: list[EndedLogin] = []
        """Those of them that must belong to a fault of the node."""
        connection = self._connection = {**connection, "error_cb": self._on_error}
        common = (self.recorder, self.problems, seed)
        self._producers = [
            ProducerWorker(1, connection, partitions, rate, False, *common),
            ProducerWorker(2, connection, partitions, rate, False, *common),
            ProducerWorker(3, connection, partitions, rate, True, *common),
        ]
        self._readers: list[Worker] = [
            AssignedConsumer(1, connection, partitions, *common),
            AssignedConsumer(2, connection, partitions, *common),
            GroupConsumer(1, connection, *common),
            GroupConsumer(2, connection, *common),
            EndReader(connection, partitions, *common),
        ]
        if reads_history:
            self._readers.append(AssignedConsumer(3, connection, partitions, *common, goes_back=1 << 60))

    @property
    def errors(self) -> str:
        """What sends ended with, by producer."""
        return "; ".join(
            f"{worker.name}: {', '.join(f'{count:,} {name}' for name, count in worker.errors.most_common())}"
            for worker in self._producers
            if worker.errors
        )

    def _on_error(self, error: KafkaError) -> None:
        at = self.recorder.now()
        self.client_errors.append((at, f"{error.name()} {error.str()}"))
        if error.code() == KafkaError._AUTHENTICATION and _CONNECTION_ENDED in error.str():
            self.ended_logins.append(EndedLogin(at, "a client", error.str()))
        else:
            note_refusal("a client", error, self.problems)

    def start(self) -> None:
        for worker in (*self._producers, *self._readers):
            worker.start()

    def finish(self) -> None:
        """Producers end and learn of all their sends; then readers end; then someone reads all there is."""
        self._end(self._producers)
        self._end(self._readers)
        self._read_to_end()

    def _end(self, workers: Iterable[Worker]) -> None:
        listed = list(workers)
        for worker in listed:
            worker.ending.set()
        for worker in listed:
            worker.join(timeout=150)
            if worker.is_alive():
                self.problems.append(f"{worker.name} does not end")

    def _read_to_end(self, timeout_s: float = 60.0) -> None:
        name = "final"
        consumer = assigning_consumer(self._connection)
        try:
            deadline = time.monotonic() + timeout_s
            ends: dict[str, int] = {}
            while len(ends) < self.partitions and time.monotonic() < deadline:
                for partition in range(self.partitions):
                    if partition_name(partition) not in ends:
                        end = read_end(consumer, name, partition, self.recorder)
                        if end is not None:
                            ends[partition_name(partition)] = end
            self.recorder.assigned(name, {partition_name(p): 0 for p in range(self.partitions)})
            consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(self.partitions)])
            reached = dict.fromkeys(ends, 0)
            while any(reached[each] < end for each, end in ends.items()) and time.monotonic() < deadline:
                for seen in poll(consumer, name, self.recorder, self.problems):
                    reached[seen.partition] = seen.offset + 1
            behind = {each: (reached[each], end) for each, end in ends.items() if reached[each] < end}
            if behind or len(ends) < self.partitions:
                self.problems.append(f"the last read did not reach the end within {timeout_s:.0f} s: {behind}")
        finally:
            consumer.close()
