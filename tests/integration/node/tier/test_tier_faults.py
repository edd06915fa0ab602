"""Tiered storage on a real S3 server, with faults of the store and of the broker at every point of a copy.

All tests compare what consumers read from offset 0 with what was acknowledged: nothing is lost, doubled or skipped.
"""

import json
import os
import re
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.node.runtime.s3_uploads import S3Uploads
from millstream.node.storage.object_store import Upload
from millstream.testing import EmbeddedBroker
from tests.integration.node.tier.tiered_topic import (
    SETTINGS,
    consume,
    local_logs,
    make_tiered,
    produce,
    until_tiered,
    value_of,
)
from tests.s3_server import Faults, FaultyStore, Matches, Request, s3  # noqa: F401  # s3 is a fixture
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire, fetch_fields, values

QUICK = {**SETTINGS, "log.segment.delete.delay.ms": "0"}


def metric(broker: EmbeddedBroker, name: str) -> float:
    with urllib.request.urlopen(f"http://{broker.bootstrap_servers}/metrics", timeout=TIMEOUT_SECONDS) as response:
        page = response.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


def check_everything(broker: EmbeddedBroker, topic: str, count: int, first: int = 0) -> None:
    found = consume(broker.bootstrap_servers, topic, count - first, first=first)
    assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(first, count)]


POINTS: list[tuple[Matches, bool]] = [
    (lambda request: request.is_segment_write, False),
    (lambda request: request.is_segment_write, True),
    (lambda request: request.is_manifest_write, False),
    (lambda request: request.is_manifest_write, True),
]
"""A broker is killed when such a request is under way: before it takes effect, or (True) after that."""


def test_a_broker_that_is_killed_at_any_point_of_a_copy_loses_nothing(s3: FaultyStore, tmp_path: Path) -> None:  # noqa: F811
    settings = {**QUICK, "millstream.tier.url": s3.url}
    with EmbeddedBroker(settings, data_dir=tmp_path / "data") as broker:
        make_tiered(broker.bootstrap_servers, "orders")
        count = 0

        def write() -> None:
            nonlocal count
            produce(broker.bootstrap_servers, "orders", range(count, count + 400))
            count += 400

        for matches, after in POINTS:
            hold = s3.proxy.hold(matches, after=after)
            write()
            hold.wait()
            broker.kill()
            s3.proxy.calm()
            broker.start()
            check_everything(broker, "orders", count)
        # At the deletion of local segments: as soon as one of several is gone.
        hold = s3.proxy.hold(lambda request: request.is_manifest_write)
        write()
        hold.wait()
        first = local_logs(broker.data_dir, "orders")[0]
        s3.proxy.calm()
        until(lambda: local_logs(broker.data_dir, "orders")[0] != first, "a local segment is deleted")
        broker.kill()
        broker.start()
        check_everything(broker, "orders", count)
        # At the deletion of objects.
        for after in (False, True):
            start = until_tiered(broker.data_dir, "orders") - 100
            hold = s3.proxy.hold(lambda request: request.is_delete, after=after)
            until(lambda: _delete_before(broker, start), "records are deleted")  # noqa: B023
            hold.wait()
            broker.kill()
            s3.proxy.calm()
            broker.start()
            write()
            check_everything(broker, "orders", count, first=start)
    # What the kills have left goes with the sweeper; what the manifest names stays.
    sweeps = {"millstream.tier.sweep.interval.ms": "200", "millstream.tier.sweep.age.ms": "0"}
    idle = {"remote.log.manager.task.interval.ms": "3600000"}  # a copy under way would be swept at this age
    with EmbeddedBroker({**settings, **sweeps, **idle}, data_dir=tmp_path / "data") as broker:
        (manifest,) = [path for path in s3.server.objects.rglob("manifest.json") if path.is_file()]
        until(lambda: {path.name for path in s3.segments()} == _named(manifest), "all orphans are deleted")
        check_everything(broker, "orders", count, first=start)


def _named(manifest: Path) -> set[str]:
    return {each["name"].rpartition("/")[2] for each in json.loads(manifest.read_text())["segments"]}


def _delete_before(broker: EmbeddedBroker, offset: int) -> bool:
    """False while the partition has no leader after a start."""
    admin, at = AdminClient({"bootstrap.servers": broker.bootstrap_servers}), TopicPartition("orders", 0, offset)
    try:
        return bool(admin.delete_records([at])[at].result(TIMEOUT_SECONDS).low_watermark == offset)
    except KafkaException:
        return False


def test_a_store_that_is_down_slow_or_failing_costs_local_disk_only(s3: FaultyStore) -> None:  # noqa: F811
    with EmbeddedBroker({**QUICK, "millstream.tier.url": s3.url}) as broker:
        make_tiered(broker.bootstrap_servers, "orders")
        produce(broker.bootstrap_servers, "orders", range(500))
        start = until_tiered(broker.data_dir, "orders")
        s3.server.kill()
        produce(broker.bootstrap_servers, "orders", range(500, 1500))
        check_everything(broker, "orders", 1500, first=start)
        assert len(local_logs(broker.data_dir, "orders")) > 3
        assert metric(broker, "millstream_tier_lag_segments") >= 3
        assert metric(broker, "millstream_tier_lag_bytes") >= 60_000
        s3.server.start()
        start = until_tiered(broker.data_dir, "orders", start)
        assert metric(broker, "millstream_tier_lag_segments") == 0
        s3.proxy.faults = Faults(delay_s=0.2)
        produce(broker.bootstrap_servers, "orders", range(1500, 2000))
        start = until_tiered(broker.data_dir, "orders", start)
        # Each second request of every kind fails; then each second one takes effect and its response is lost.
        for faults in (Faults(fails=_each_second()), Faults(loses=_each_second())):
            s3.proxy.faults = faults
            produce(broker.bootstrap_servers, "orders", range(end := _end(broker), end + 500))
            start = until_tiered(broker.data_dir, "orders", start)
            check_everything(broker, "orders", _end(broker))
        s3.proxy.calm()
        check_everything(broker, "orders", 3000)


def _each_second() -> Matches:
    count = 0

    def matches(_: Request) -> bool:
        nonlocal count
        count += 1
        return count % 2 == 0

    return matches


def _end(broker: EmbeddedBroker) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "ends"})
    try:
        return int(
            consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=TIMEOUT_SECONDS, cached=False)[1]
        )
    finally:
        consumer.close()


def test_a_store_that_does_not_respond_keeps_no_broker_from_stopping(s3: FaultyStore) -> None:  # noqa: F811
    with EmbeddedBroker({**QUICK, "millstream.tier.url": s3.url}) as broker:
        make_tiered(broker.bootstrap_servers, "orders")
        hold = s3.proxy.hold(lambda request: request.is_segment_write)
        produce(broker.bootstrap_servers, "orders", range(500))
        hold.wait()
        broker.stop()  # an error if it does not end by itself
        s3.proxy.calm()
        broker.start()
        check_everything(broker, "orders", 500)


@pytest.mark.parametrize(("kind", "times"), [("fails", 3), pytest.param("cuts", 12, marks=pytest.mark.slow)])
def test_after_a_failed_part_only_that_part_is_sent_again(s3: FaultyStore, kind: str, times: int) -> None:  # noqa: F811
    """12 times is more often than obstore repeats a request by default: the network is interrupted for longer."""
    with EmbeddedBroker({**QUICK, "millstream.tier.url": s3.url}) as broker:
        make_tiered(broker.bootstrap_servers, "large", {"internal.segment.bytes": "25000000"})
        failed: list[Request] = []

        def second_part(request: Request) -> bool:
            if request.is_part and "partNumber=2" in request.path and len(failed) < times:
                failed.append(request)
                return True
            return False

        s3.proxy.faults = Faults(fails=second_part) if kind == "fails" else Faults(cuts=second_part)
        for base in range(0, 60, 6):  # about 30 MB
            _produce_large(broker, "large", range(base, base + 6))
        until_tiered(broker.data_dir, "large")
        assert len(failed) == times and len({request.path for request in failed}) == 1, "one upload, not several"
        parts = [request.path for request in s3.proxy.seen.requests if request.is_part]
        assert len(parts) >= 3 and len(parts) == len(set(parts)), "no part went up twice"
        (whole,) = s3.segments()
        assert whole.stat().st_size > 24_000_000
        assert [len(each.value() or b"") for each in consume(broker.bootstrap_servers, "large", 60)] == [500_000] * 60


def test_a_killed_broker_sends_only_the_parts_that_are_missing(s3: FaultyStore, tmp_path: Path) -> None:  # noqa: F811
    settings = {**QUICK, "millstream.tier.url": s3.url}
    with EmbeddedBroker(settings, data_dir=tmp_path / "data") as broker:
        make_tiered(broker.bootstrap_servers, "large", {"internal.segment.bytes": "25000000"})
        _cut_off(s3, broker)
        (upload,) = _uploads(s3)
        s3.proxy.calm()
        broker.start()
        until_tiered(broker.data_dir, "large")
        parts = [request.path for request in s3.proxy.seen.requests if request.is_part]
        assert len(parts) == len(set(parts)) == 3 and all(upload.id in path for path in parts), "one upload, each once"
        (whole,) = s3.segments()
        assert whole.name == upload.name.rpartition("/")[2] and whole.stat().st_size > 24_000_000
        assert not _uploads(s3)
        read = consume(broker.bootstrap_servers, "large", 60)
        assert [each.value() for each in read] == [b"%08d" % number * 62_500 for number in range(60)]


def test_an_upload_that_no_one_continues_is_swept(s3: FaultyStore, tmp_path: Path) -> None:  # noqa: F811
    settings = {**QUICK, "millstream.tier.url": s3.url}
    with EmbeddedBroker(settings, data_dir=tmp_path / "data") as broker:
        make_tiered(broker.bootstrap_servers, "large", {"internal.segment.bytes": "25000000"})
        _cut_off(s3, broker)
    s3.proxy.calm()
    assert len(_uploads(s3)) == 1
    # At this age no upload is continued, and those that are under way are swept too: copies wait.
    sweeps = {"millstream.tier.sweep.interval.ms": "200", "millstream.tier.sweep.age.ms": "0"}
    idle = {"remote.log.manager.copier.thread.pool.size": "1", "remote.log.manager.task.interval.ms": "3600000"}
    with EmbeddedBroker({**settings, **sweeps, **idle}, data_dir=tmp_path / "data"):
        until(lambda: not _uploads(s3), "the upload is aborted")


def _uploads(s3: FaultyStore) -> list[Upload]:  # noqa: F811
    with closing(S3Uploads(s3.url)) as found:
        return found.list("")


def _cut_off(s3: FaultyStore, broker: EmbeddedBroker) -> None:  # noqa: F811
    """Kills the broker when two parts of a segment are in the store, and no more."""
    later = threading.Event()

    def is_later_part(request: Request) -> bool:
        is_later = request.is_part and re.search(r"partNumber=[12](&|$)", request.path) is None
        if is_later:
            later.set()
        return is_later

    s3.proxy.faults = Faults(cuts=is_later_part)
    for base in range(0, 60, 6):  # about 30 MB
        _produce_large(broker, "large", range(base, base + 6))
    assert later.wait(TIMEOUT_SECONDS)
    until(lambda: sum(request.is_part for request in s3.proxy.seen.requests) == 2, "two parts are in the store")
    broker.kill()


def _produce_large(broker: EmbeddedBroker, topic: str, numbers: range, size: int = 500_000) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%08d" % number * (size // 8), partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def test_a_fetch_waits_for_the_tier_and_other_partitions_do_not(s3: FaultyStore) -> None:  # noqa: F811
    with EmbeddedBroker({**QUICK, "millstream.tier.url": s3.url}) as broker, Wire(broker.bootstrap_servers) as wire:
        admin = make_tiered(broker.bootstrap_servers, "orders")
        admin.create_topics([NewTopic("recent", 1, 1)])["recent"].result(TIMEOUT_SECONDS)
        produce(broker.bootstrap_servers, "orders", range(500))
        produce(broker.bootstrap_servers, "recent", range(50))
        until_tiered(broker.data_dir, "orders")
        hold = s3.proxy.hold(lambda request: request.method == "GET" and ".segment" in request.path)
        wait_ms = int(TIMEOUT_SECONDS * 1000)
        # The store does not respond: a response without the tiered partition comes at once.
        both = fetch_fields([("orders", 0, 0), ("recent", 0, 0)], max_wait_ms=wait_ms)
        rows = {row.topic: row.partitions[0] for row in wire.call("fetch", 12, **both).responses}
        assert values(rows["recent"].records) == [value_of(number) for number in range(50)]
        assert "orders" not in rows or (rows["orders"].error_code, len(rows["orders"].records or b"")) == (0, 0)
        hold.wait()
        # A fetch of that partition alone gets its response when its bytes are there.
        wire.send("fetch", 12, **fetch_fields([("orders", 0, 0)], max_wait_ms=wait_ms))
        produce(broker.bootstrap_servers, "recent", range(50, 100))
        s3.proxy.calm()
        (row,) = wire.receive("fetch", 12)[1].responses[0].partitions
        assert row.error_code == 0 and values(row.records)[:50] == [value_of(number) for number in range(50)]


@pytest.mark.slow
def test_a_consumer_of_all_history_stays_within_the_bound_of_the_cache(s3: FaultyStore) -> None:  # noqa: F811
    bound = 64 << 20
    settings = {**QUICK, "millstream.tier.url": s3.url, "millstream.tier.cache.bytes": str(bound)}
    with EmbeddedBroker(settings) as broker:
        make_tiered(broker.bootstrap_servers, "history", {"internal.segment.bytes": "8000000"})
        for base in range(0, 400, 20):
            _produce_large(broker, "history", range(base, base + 20))  # 200 MB together
        until_tiered(broker.data_dir, "history")
        before = _resident_bytes(broker.pid)
        greatest = 0
        cache = broker.data_dir / "remote-log-index-cache"
        for base in range(0, 400, 20):
            read = consume(broker.bootstrap_servers, "history", 20, first=base)
            assert read[0].value() == b"%08d" % base * 62_500
            greatest = max(greatest, sum(_size(path) for path in cache.glob("*")))
        assert bound / 2 < greatest <= bound + (32 << 20), (
            "the cache was used, and kept its bound and what is under way"
        )
        assert _resident_bytes(broker.pid) - before < bound + (64 << 20)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
