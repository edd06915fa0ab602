"""Records without a key for compacted topics: what Kafka and Millstream are asked; see `transaction_parity`."""

from typing import Any

from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from tests.integration.node.broker.transaction_parity import Client, Talk
from tests.wire import now_ms

KEYS = "-k--k"
"""A letter is a key, a dash is none."""


def batch(keys: str = KEYS, **options: Any) -> bytes:
    records = [Record(None if key == "-" else key.encode(), b"value", timestamp=now_ms()) for key in keys]
    return bytes(build_batch(records, **options))


def rows(**batches: bytes) -> list[dict[str, Any]]:
    """The topics of a Produce request, each with a batch for its partition 0."""
    return [{"name": name, "partition_data": [{"index": 0, "records": data}]} for name, data in batches.items()]


def keyless(talk: Talk) -> None:
    """Which records are refused, in all versions and codecs, and what becomes of the others."""
    policies = {"compact": {}, "both": {"cleanup_policy": "compact,delete"}, "gzip": {"compression_type": "gzip"}}
    policies["stamped"] = {"message_timestamp_type": "LogAppendTime"}
    topics = {
        text: talk.topic(text, 2, **({"cleanup_policy": "compact"} | configs)) for text, configs in policies.items()
    }
    plain = talk.topic("plain")

    def ask(label: str, data: bytes, topic: str = topics["compact"], version: int = 12, acks: int = -1) -> None:
        rows_of = rows(**{topic: data})
        talk.ask(label, "produce", version, acks=acks, timeout_ms=9000, topic_data=rows_of)

    for version in range(3, 13):
        ask(f"v{version} some", batch(), version=version)
    for codec in Codec:
        ask(f"{codec.name} some", batch(codec=codec))
    ask("all", batch("---"))
    ask("one", batch("-"))
    ask("first", batch("-kk"))
    ask("last", batch("kk-"))
    ask("many", batch("k" + "-" * 900))
    ask("acks 1", batch(), acks=1)
    for text, topic in topics.items():
        ask(text, batch(), topic)
        ask(f"{text}, all keyed", batch("kk"), topic)
    ask("another policy", batch(), plain)
    parts = [{"index": index, "records": batch(keys)} for index, keys in enumerate(("k-", "k"))]
    several = [{"name": topics["compact"], "partition_data": parts}]
    talk.ask("several", "produce", 12, acks=-1, timeout_ms=9000, topic_data=several)
    _of_producers(talk, topics["compact"])


def _of_producers(talk: Talk, topic: str) -> None:
    """What is refused has no sequence."""
    producer_id = talk.call("init_producer_id", 4, transactional_id=None, transaction_timeout_ms=0).producer_id
    who: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0}
    for keys, sequence in (("k-", 0), ("kk", 0), ("k-", 2), ("k", 2), ("k-", 7), ("k-", 0)):
        rows_of = rows(**{topic: batch(keys, base_sequence=sequence, **who)})
        talk.ask(f"{keys} at {sequence}", "produce", 12, acks=-1, timeout_ms=9000, topic_data=rows_of)
    client = Client(talk, adds=True)
    who = {"producer_id": client.id, "producer_epoch": client.epoch, "transactional": True}
    for keys, sequence in (("k-", 0), ("kk", 0)):
        data = batch(keys, base_sequence=sequence, **who)
        talk.ask(f"{keys} in a transaction", "produce", 12, **client.producing(topic, data))
    talk.ask("described", "describe_transactions", 0, transactional_ids=[client.name])
    client.end(committed=True)
