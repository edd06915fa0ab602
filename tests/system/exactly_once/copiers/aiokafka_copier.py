"""aiokafka as a copier: the oldest requests of transactions that a client in use still speaks; see README.md.

Its offsets go without the group's generation, so it copies assigned partitions under a transactional id of their own,
as was done before KIP-447. After any error it ends: the next process begins again from what is committed.
"""

from __future__ import annotations

import asyncio
import os
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from copier_protocol import (
    ARGUMENTS,
    BOOTSTRAP,
    GROUP,
    INPUT,
    MAX_RECORDS,
    OUTPUT,
    PARTITIONS,
    STOPPED,
    TIMEOUT_MS,
    Attempt,
    Record,
    now,
    tell,
    tell_assigned,
)


async def begin_reading(consumer: AIOKafkaConsumer) -> None:
    """From what is committed: the last transaction of this id is over by now."""
    places = [TopicPartition(INPUT, partition) for partition in PARTITIONS]
    consumer.assign(places)
    positions: dict[int, int | None] = {}
    for place in places:
        offset = await consumer.committed(place) or 0
        consumer.seek(place, offset)
        positions[place.partition] = offset
    tell_assigned(positions)


async def copy(producer: AIOKafkaProducer, consumer: AIOKafkaConsumer, records: list[Record], since: float) -> None:
    attempt = Attempt(records, since)
    await producer.begin_transaction()
    attempt.at("begun")
    under_way = [
        await producer.send(OUTPUT, attempt.copy_of(value), partition=partition) for partition, _, value in records
    ]
    attempt.at("sending")
    await asyncio.gather(*under_way)
    attempt.at("sent")
    offsets = {TopicPartition(INPUT, partition): offset for partition, offset in attempt.offsets.items()}
    attempt.tell_offsets()
    await producer.send_offsets_to_transaction(offsets, GROUP)
    attempt.at("offsets")
    if not attempt.aborts:
        attempt.tell_committing()
        await producer.commit_transaction()
        attempt.tell_committed()
        return
    await producer.abort_transaction()
    attempt.tell_aborted()
    for partition, offset in attempt.starts.items():
        consumer.seek(TopicPartition(INPUT, partition), offset)


async def main() -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=BOOTSTRAP,
        transactional_id=ARGUMENTS["transactional_id"],
        transaction_timeout_ms=TIMEOUT_MS,
        linger_ms=2,
        metadata_max_age_ms=2000,
    )
    consumer = AIOKafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        metadata_max_age_ms=2000,
        fetch_max_wait_ms=100,
    )
    await producer.start()
    # It gets its producer id with the first transaction, and with the id the end of its predecessor's last one.
    await producer.begin_transaction()
    await producer.abort_transaction()
    tell("ready")
    await consumer.start()
    await begin_reading(consumer)
    while not STOPPED.is_set():
        since = now()
        batches = await consumer.getmany(timeout_ms=200, max_records=MAX_RECORDS)
        records = [
            (place.partition, each.offset, each.value.decode()) for place, found in batches.items() for each in found
        ]
        if records:
            await copy(producer, consumer, records, since)
    await consumer.stop()
    await producer.stop()


try:
    asyncio.run(main())
except Exception as problem:
    tell("trouble", what=f"ends: {problem!r}")
    sys.stdout.flush()
    os._exit(3)
