"""What a reader is told of aborted transactions, for slices of all sizes at all offsets: enough always, and not much
more than that."""

import random

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.records.record import read_batches
from millstream.node.storage.log.log_reader import aborted_among
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append
from tests.unit.node.storage.transactional import end, write

CONFIG = LogConfig(segment_bytes=6000, index_interval_bytes=300)


def filled(log: PartitionLog, chance: random.Random) -> list[tuple[int, bytes]]:
    """Writes transactions of several producers into each other; returns offset and value of what is committed."""
    sequences = dict.fromkeys(range(1, 6), 0)
    pending: dict[int, list[tuple[int, bytes]]] = {}
    committed = []
    for number in range(600):
        producer = chance.randrange(1, 6)
        value = b"%d" % number * chance.randrange(1, 8)
        if chance.random() < 0.1:
            offset = log.log_end_offset
            append(log, value)
            committed.append((offset, value))
        elif producer in pending and chance.random() < 0.4:
            records = pending.pop(producer)
            if chance.random() < 0.5:
                end(log, producer, committed=True)
                committed += records
            else:
                end(log, producer, committed=False)
        else:
            offset = write(log, producer, sequences[producer], value)
            sequences[producer] += 1
            pending.setdefault(producer, []).append((offset, value))
    for producer in pending:
        end(log, producer, committed=False)
    return sorted(committed)


def visible(data: bytes, aborted: list[tuple[int, int]], offset: int) -> list[tuple[int, bytes]]:
    coming = sorted((first, producer) for producer, first in aborted)
    undone: set[int] = set()
    found = []
    for header, records in read_batches(data):
        while coming and coming[0][0] <= header.last_offset:
            undone.add(coming.pop(0)[1])
        if header.is_control:
            undone.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in undone):
            found += [(each.offset, each.value or b"") for each in records if each.offset >= offset]
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("restarted", [False, True])
def test_nothing_aborted_is_shown_and_nothing_committed_left_out(node: Node, seed: int, restarted: bool) -> None:
    chance = random.Random(seed)
    log = node.log(CONFIG)
    expected = filled(log, chance)
    if restarted:
        node.restart(clean=bool(seed % 2))
        log = node.log(CONFIG)
    total = len(log.aborted_transactions(0, log.log_end_offset))
    assert len(log.segments) > 4 and total > 50
    told = 0
    offsets = list(range(0, log.log_end_offset, 3))
    chance.shuffle(offsets)
    for offset in offsets:
        records = log.read(offset, chance.choice((1, 200, 800, 3000)), up_to=log.log_end_offset, at_least_one=True)
        aborted = aborted_among(log, records, offset, log.log_end_offset)
        records.prepare()
        data = records.read()
        reached = max(header.last_offset for header, _ in read_batches(data))
        assert visible(data, aborted, offset) == [each for each in expected if offset <= each[0] <= reached]
        told += len(aborted)
    assert told / len(offsets) < total / 2, "most of what was aborted is no matter of most readers"


def test_an_empty_read_names_no_aborted_transactions(node: Node) -> None:
    log = node.log(CONFIG)
    write(log, 1, 0)
    end(log, 1, committed=False)
    records = log.read(2, 100, up_to=2, at_least_one=True)
    assert aborted_among(log, records, 2, 2) == []
