"""confluent-kafka (librdkafka) as a copier; see README.md."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from copier_protocol import (
    ARGUMENTS,
    BOOTSTRAP,
    CHANCE,
    GROUP,
    INPUT,
    MAX_RECORDS,
    OUTPUT,
    PARTITIONS,
    STOPPED,
    TIMEOUT_MS,
    Attempt,
    Record,
    die,
    now,
    tell,
    tell_assigned,
)

CALL_SECONDS = 10.0
# librdkafka does not heed the timeout of send_offsets_to_transaction, and may wait for ever for a group coordinator
# that is no longer in the metadata (confluentinc/librdkafka#5456, #5511): then only another process helps.
HOPELESS_SECONDS = 15.0
# Commits offsets after the transaction instead of in it, and may die between: to see whether that is noticed.
CARELESS = ARGUMENTS["careless"] == "yes"
COMMON = {
    "bootstrap.servers": BOOTSTRAP,
    "log_level": 2,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2000,
    "socket.timeout.ms": 10_000,
}


def give_up() -> None:
    tell("trouble", what="ends: send_offsets_to_transaction does not return")
    os._exit(3)


class Copier:
    def __init__(self) -> None:
        self.producer = Producer(
            {
                **COMMON,
                "transactional.id": ARGUMENTS["transactional_id"],
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 2,
            }
        )
        self._insist(self.producer.init_transactions)
        tell("ready")
        self.collected: list[Record] = []
        settings = {"isolation.level": "read_committed", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        if ARGUMENTS["group_protocol"] == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
        self.consumer = Consumer({**COMMON, **settings, "group.id": GROUP, "fetch.wait.max.ms": 100})
        if PARTITIONS:
            self.consumer.assign([TopicPartition(INPUT, each) for each in PARTITIONS])
            tell_assigned(dict.fromkeys(PARTITIONS))
        else:
            self.consumer.subscribe([INPUT], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        # With an incremental protocol these are the new ones only; the others go on, which is no less true.
        tell_assigned({each.partition: None for each in partitions})

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """What was got and is not copied yet is someone else's now."""
        taken = {each.partition for each in partitions}
        self.collected = [record for record in self.collected if record[0] not in taken]
        tell_assigned({})

    @staticmethod
    def _insist(call: Callable[..., object], *arguments: object) -> None:
        """As long as the client library says that it may be tried again."""
        while True:
            try:
                call(*arguments, CALL_SECONDS)
                return
            except KafkaException as problem:
                if not problem.args[0].retriable():
                    raise
                tell("trouble", what=f"late: {call.__name__}: {problem.args[0].name()} {problem.args[0].str()}")

    def collect(self) -> tuple[list[Record], float]:
        """Up to so many records, or what has come in a short time."""
        self.collected = []
        since = now()
        while len(self.collected) < MAX_RECORDS and now() - since < 0.2:
            message = self.consumer.poll(0.05)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.collected.append((message.partition(), message.offset(), (message.value() or b"").decode()))
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
        return self.collected, since

    def copy(self, records: list[Record], since: float) -> None:
        attempt = Attempt(records, since)
        try:
            self.producer.begin_transaction()
            attempt.at("begun")
            for partition, _, value in records:
                self.producer.produce(OUTPUT, attempt.copy_of(value), partition=partition)
            attempt.at("sending")
            if self.producer.flush(CALL_SECONDS) == 0:
                attempt.at("sent")
            offsets = [TopicPartition(INPUT, partition, offset) for partition, offset in attempt.offsets.items()]
            attempt.tell_offsets()
            if not CARELESS:
                self._send_offsets(offsets)
            attempt.at("offsets")
            if not attempt.aborts:
                attempt.tell_committing()
                self._insist(self.producer.commit_transaction)
                attempt.tell_committed()
                if CARELESS:
                    if CHANCE.random() < 0.1:
                        die()
                    self.consumer.commit(offsets=offsets, asynchronous=False)
                return
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
            tell("trouble", what=f"{attempt.name} has to abort: {problem.args[0].name()} {problem.args[0].str()}")
        self._insist(self.producer.abort_transaction)
        attempt.tell_aborted()
        for partition, offset in attempt.starts.items():
            self.consumer.seek(TopicPartition(INPUT, partition, offset))

    def _send_offsets(self, offsets: list[TopicPartition]) -> None:
        hangs = threading.Timer(HOPELESS_SECONDS, give_up)
        hangs.start()
        try:
            metadata = self.consumer.consumer_group_metadata()
            self._insist(self.producer.send_offsets_to_transaction, offsets, metadata)
        finally:
            hangs.cancel()

    def run(self) -> None:
        while not STOPPED.is_set():
            records, since = self.collect()
            if records:
                self.copy(records, since)
        self.consumer.close()


try:
    Copier().run()
except KafkaException as problem:
    tell("trouble", what=f"ends: {problem.args[0].name()} {problem.args[0].str()}")
    sys.exit(3)
