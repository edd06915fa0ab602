"""The input: transactions over the input topics of all lanes, some aborted, at a steady rate, from one producer."""

import random
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millstream.simulator.history import Recorder, Transaction
from tests.system.exactly_once.lanes import PARTITIONS

_CALL_SECONDS = 10.0
_SETTINGS = {
    "log_level": 2,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2000,
    "socket.timeout.ms": 10_000,
    "linger.ms": 2,
    "transaction.timeout.ms": 20_000,
}


class Feeder(threading.Thread):
    """Ends, with its outcome known wherever it can be, when told to."""

    def __init__(self, bootstrap: str, topics: Sequence[str], seed: int, recorder: Recorder) -> None:
        super().__init__(name="feeder", daemon=True)
        self.ending = threading.Event()
        self.problems: list[str] = []
        self.troubles: list[str] = []
        self._servers = bootstrap
        self._topics = topics
        self._chance = random.Random(f"{seed} feeder")
        self._recorder = recorder
        self._next_value = 0
        self._number = 0
        self._incarnation = 0

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self._incarnation += 1
                self._feed()
        except Exception as problem:
            self.problems.append(f"the feeder ended: {problem!r}")

    def _feed(self) -> None:
        """With one producer, until the end or a fatal error."""
        producer = Producer({"bootstrap.servers": self._servers, "transactional.id": "feeder", **_SETTINGS})
        try:
            self._insist(producer.init_transactions)
            while not self.ending.is_set():
                self._transaction(producer)
                time.sleep(self._chance.uniform(0.0, 0.15))
        except KafkaException as problem:
            # A fatal error; it may happen to a producer whose transaction timed out. The next one begins again.
            self.troubles.append(f"feeder.{self._incarnation}: {problem.args[0].name()} {problem.args[0].str()}")

    def _transaction(self, producer: Producer) -> None:
        self._number += 1
        transaction = self._recorder.begin(f"feeder.{self._incarnation}", f"feeder.{self._number}")
        try:
            producer.begin_transaction()
            for topic in self._topics:
                for _ in range(self._chance.randint(0, 12)):
                    self._send(producer, transaction, topic)
            if self._chance.random() >= 0.15:
                self._recorder.committing(transaction)
                self._insist(producer.commit_transaction)
                self._recorder.ended(transaction, committed=True)
                return
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
            self.troubles.append(f"feeder has to abort: {problem.args[0].name()} {problem.args[0].str()}")
        self._insist(producer.abort_transaction)
        self._recorder.ended(transaction, committed=False)

    def _send(self, producer: Producer, transaction: Transaction, topic: str) -> None:
        self._next_value += 1
        value = f"i{self._next_value}"
        partition = self._chance.randrange(PARTITIONS)
        operation = self._recorder.send(transaction.producer, f"{topic}-{partition}", value, transaction=transaction)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._recorder.acked(operation, message.offset())

        producer.produce(topic, value, partition=partition, on_delivery=delivered)

    @staticmethod
    def _insist(call: Callable[[float], object]) -> None:
        """As long as the client library says that it may be tried again."""
        while True:
            try:
                call(_CALL_SECONDS)
                return
            except KafkaException as problem:
                if not problem.args[0].retriable():
                    raise
