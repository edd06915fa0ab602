"""Tables back into topics: every row once, in order per key, also after a crash in the middle."""

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

import millstream.lake.ordered_records as ordered_rows
from millstream.client import connect
from millstream.client.errors import MillstreamError
from millstream.lake import backfill
from millstream.lake.backfill import Backfill
from millstream.lake.errors import LakeError, LakeOptionError
from millstream.lake.options import parse_options
from millstream.testing import EmbeddedBroker
from tests.system.lake.conftest import BEGIN, opened, records, written
from tests.waiting import TIMEOUT_SECONDS


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_rows, "WINDOW_ROWS", 20)
    monkeypatch.setattr(backfill, "TRANSACTION_ROWS", 30)


def _create(bootstrap: str, topic: str, partitions: int = 3) -> None:
    with connect(bootstrap) as client:
        client.create_topic(topic, partitions=partitions, config={"retention.ms": -1})


def _records(bootstrap: str, topic: str) -> list[Any]:
    """All that readers of committed records see."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "any", "enable.partition.eof": True})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Any] = []
        ended: set[int | None] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            if message.error():
                ended.add(message.partition())
            else:
                found.append(message)
        return found
    finally:
        consumer.close()


def _work(path: Path, bootstrap: str, topic: str, **more: Any) -> Backfill:
    return Backfill(table=parse_options({"path": str(path)}), bootstrap=bootstrap, topic=topic, **more)


def _filled(path: Path, table_format: str) -> None:
    table = opened(path, table_format)
    # Not in order, and mixed by optimize.
    for start in (50, 0, 100):
        table.commit(written(table, records(start, 50), records(start, 50, partition=1)), None, replace=False)
    table.optimize(128 << 20, (), lambda _now, _total: None)
    table.commit(written(table, records(150, 10)), None, replace=False)


def _check(found: list[Any]) -> None:
    by_key: dict[bytes, list[int]] = defaultdict(list)
    partitions: dict[bytes, set[int]] = defaultdict(set)
    for message in found:
        by_key[message.key()].append(int(message.value()[1:]))
        partitions[message.key()].add(message.partition())
    assert sum(map(len, by_key.values())) == 310
    assert all(len(where) == 1 for where in partitions.values())
    for offsets in by_key.values():
        # Partition 0 first, then partition 1, each in the order of its offsets.
        cut = offsets.index(min(offsets), 1)
        assert offsets[:cut] == sorted(set(offsets[:cut])) and offsets[cut:] == sorted(set(offsets[cut:]))


def test_every_row_once_in_order(tmp_path: Path, table_format: str, bootstrap: str) -> None:
    _filled(tmp_path / "t", table_format)
    topic = f"all-{table_format}"
    _create(bootstrap, topic)
    work = _work(tmp_path / "t", bootstrap, topic)
    seen: list[tuple[int, int]] = []
    result = backfill.run(work, progress=lambda now, total: seen.append((now, total)))
    assert (result.rows, result.order, result.was_done, result.warning) == (310, "offset", False, None)
    assert seen[-1] == (310, 310) and len(seen) > 3
    found = _records(bootstrap, topic)
    _check(found)
    assert {message.timestamp()[1] for message in found} >= {int(BEGIN.timestamp() * 1000)}
    again = backfill.run(work)
    assert again.was_done and again.rows == 0 and again.rows_before == 310
    assert len(_records(bootstrap, topic)) == 310
    assert backfill.run(work, restart=True).rows == 310
    assert len(_records(bootstrap, topic)) == 620


def test_what_was_read_is_known_whatever_topics_are_called(tmp_path: Path) -> None:
    table = opened(tmp_path / "t", "delta")
    table.commit(written(table, *(records(0, 5, topic=each) for each in ("a", "a-b", "a.b"))), None, replace=False)
    windows = list(ordered_rows.read_in_order(table, by_time=False, columns=["topic", "offset"]))
    for done, window in enumerate(windows, 1):
        rest = ordered_rows.read_in_order(table, by_time=False, columns=["topic", "offset"], start=window.then)
        found = [
            row for each in (*windows[:done], *rest) for row in map(tuple, map(dict.values, each.rows.to_pylist()))
        ]
        assert sorted(found) == [(topic, offset) for topic in ("a", "a-b", "a.b") for offset in range(5)]


@pytest.mark.parametrize("crash_at", [1, 3])
def test_it_goes_on_after_a_crash(
    tmp_path: Path, bootstrap: str, crash_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(tmp_path / "t", "delta")
    topic = f"crash-{crash_at}"
    _create(bootstrap, topic)
    work = _work(tmp_path / "t", bootstrap, topic)
    sends = 0
    real = backfill._Sender._call

    def dying(self: Any, call: Any, *arguments: Any) -> Any:
        nonlocal sends
        if getattr(call, "__name__", "") == "commit_transaction":
            sends += 1
            if sends == crash_at:
                raise RuntimeError("killed")
        return real(self, call, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(backfill._Sender, "_call", dying)
        patch.setattr(backfill._Sender, "_give_up", lambda _self: None)  # the transaction stays open
        with pytest.raises(RuntimeError, match="killed"):
            backfill.run(work)
    result = backfill.run(work)
    assert result.rows + result.rows_before == 310
    assert (result.rows_before > 0) == (crash_at > 1)
    _check(_records(bootstrap, topic))


def test_a_range_of_time_and_another_key(tmp_path: Path, table_format: str, bootstrap: str) -> None:
    rows = pa.record_batch(
        {
            "customer": pa.array(["a", "b", "a", "b", "a"]),
            "amount": pa.array([1, 2, 3, 4, 5]),
            "timestamp": pa.array(
                [BEGIN + timedelta(hours=hour) for hour in (3, 1, 1, 2, 0)], pa.timestamp("us", "UTC")
            ),
        }
    )
    table = opened(tmp_path / "t", table_format, rows.schema)
    for start in (0, 2):
        table.commit(written(table, rows.slice(start, 3 if start else 2)), None, replace=False)
    topic = f"range-{table_format}"
    _create(bootstrap, topic)
    work = _work(
        tmp_path / "t",
        bootstrap,
        topic,
        key="customer",
        begin=BEGIN,
        end=BEGIN + timedelta(hours=3),
        value_format="json",
    )
    assert backfill.run(work).order == "timestamp"
    by_key: dict[bytes, list[Any]] = defaultdict(list)
    for message in _records(bootstrap, topic):
        by_key[message.key()].append(json.loads(message.value()))
    assert by_key == {
        b"a": [{"customer": "a", "amount": 5}, {"customer": "a", "amount": 3}],
        b"b": [{"customer": "b", "amount": 2}, {"customer": "b", "amount": 4}],
    }


def test_what_cannot_be_done_is_said(tmp_path: Path, bootstrap: str) -> None:
    table = opened(tmp_path / "t", "delta")
    table.commit(written(table, records(0, 1)), None, replace=False)
    _create(bootstrap, "errors")
    for changes, kind, message in (
        ({"key": "nope"}, LakeOptionError, "no column nope for the key"),
        ({"value_format": "xml"}, LakeOptionError, "choose json or raw"),
        ({"order": "random"}, LakeOptionError, "choose one of offset, timestamp"),
        ({"begin": BEGIN, "end": BEGIN}, LakeOptionError, "is not before"),
        ({"bootstrap": "localhost:1"}, MillstreamError, "localhost:1"),
    ):
        with pytest.raises(kind, match=message):
            backfill.run(Backfill(**{**vars(_work(tmp_path / "t", bootstrap, "errors")), **changes}))
    with connect(bootstrap) as client:
        client.create_topic("short-lived", config={"retention.ms": 86_400_000})
    assert "keeps records for 1 day" in (backfill.run(_work(tmp_path / "t", bootstrap, "short-lived")).warning or "")
    table.commit(
        written(table, records(5, 1).set_column(4, "offset", pa.array([None], pa.int64()))), None, replace=False
    )
    with pytest.raises(LakeError, match=r"1 rows .* have no offset"):
        backfill.run(_work(tmp_path / "t", bootstrap, "errors"))
