"""The watcher with a cluster that responds as a test wants: hangs, deaths and returns, without any network."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace as Row
from typing import Any
from uuid import UUID

import pytest

from millstream.console.live.problems import broker_state, problems_of
from millstream.console.live.snapshot import Snapshot
from millstream.console.live.watcher import Watcher
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import UnreachableError
from millstream.raw_client.settings import SecurityProtocol
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


class FakeCluster:
    """Three brokers, one topic of three partitions. `down` refuse connections, `hanging` never response."""

    def __init__(self) -> None:
        self.down: set[int] = set()
        self.hanging: set[int] = set()
        self.failed: dict[int, str] = {}
        self.released = threading.Event()
        self.settings = Row(protocol=SecurityProtocol.SASL_PLAINTEXT, tls=None)
        self.calls = 0
        self.pings = 0
        self.reading = threading.Event()
        """Requests that read data wait for it."""
        self.reading.set()

    def connection(self, node: int, deadline: object) -> Any:
        """For metrics."""
        raise UnreachableError(f"broker {node} has no metrics")

    def only(self, address: str) -> Any:
        """The broker at an address, if it listens. One whose disk fails responds to one request."""
        return _Alone(self, int(address.rpartition(":")[2]) - 9090)

    def call(self, api: str, /, *, node: int | None = None, **fields: Any) -> Any:
        self.calls += 1
        if node is None and self.down == {1, 2, 3}:
            raise UnreachableError("no broker responded")
        if node in self.down:
            raise UnreachableError(f"broker {node}: connection refused")
        if node in self.hanging:
            self.released.wait(30)
        if api in ("list_offsets", "metadata", "describe_log_dirs"):
            self.reading.wait(30)
        return getattr(self, api)(**fields)

    def api_versions(self, **_: Any) -> Any:
        self.pings += 1
        return Row(error_code=0)

    def describe_cluster(self, **_: Any) -> Any:
        brokers = [
            Row(broker_id=number, host="localhost", port=9090 + number, rack=None, is_fenced=False)
            for number in (1, 2, 3)
        ]
        return Row(error_code=0, cluster_id="test", controller_id=1, brokers=brokers)

    def metadata(self, **_: Any) -> Any:
        partitions = [
            Row(partition_index=n, leader_id=n + 1, leader_epoch=0, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
            for n in range(3)
        ]
        return Row(topics=[Row(name="orders", topic_id=UUID(int=1), is_internal=False, partitions=partitions)])

    def list_offsets(self, topics: Any, **_: Any) -> Any:
        def told(rows: Any) -> list[Any]:
            return [Row(partition_index=row["partition_index"], error_code=0, offset=self.calls) for row in rows]

        rows = [Row(name=topic["name"], partitions=told(topic["partitions"])) for topic in topics]
        return Row(topics=rows)

    def describe_quorum(self, **_: Any) -> Any:
        voters = [
            Row(replica_id=n, replica_directory_id=UUID(int=0), log_end_offset=5, last_caught_up_timestamp=100)
            for n in (1, 2, 3)
        ]
        row = Row(
            error_code=0, leader_id=1, leader_epoch=1, high_watermark=5, current_voters=voters, observers=[],
        )  # fmt: skip
        return Row(error_code=0, topics=[Row(partitions=[row])])

    def list_partition_reassignments(self, **_: Any) -> Any:
        return Row(error_code=0, topics=[])

    def list_groups(self, **_: Any) -> Any:
        return Row(groups=[])

    def describe_log_dirs(self, **_: Any) -> Any:
        return Row(results=[])

    def describe_configs(self, **_: Any) -> Any:
        return Row(results=[])


class _Alone:
    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self._cluster, self._number = cluster, number

    def __enter__(self) -> "_Alone":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def call(self, api: str, /, **_: Any) -> Any:
        directory = self._cluster.failed.get(self._number)
        if directory is None or api != "describe_log_dirs":
            raise UnreachableError("connection refused")
        return Row(results=[Row(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory, topics=[])])


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def watcher(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """One that is ten times as quick as usual."""
    for name in ("PERIOD_SECONDS", "_POLL_TIMEOUT_SECONDS", "_GROUPS_EVERY_SECONDS"):
        monkeypatch.setattr(f"millstream.console.live.watcher.{name}", 0.15)
    monkeypatch.setattr("millstream.console.live.liveness.SLOW_SECONDS", 0.5)
    monkeypatch.setattr("millstream.console.live.liveness.DOWN_SECONDS", 2.0)
    watching = Watcher(cluster)  # type: ignore[arg-type]
    watching.opened("a page")
    yield watching
    cluster.released.set()
    watching.close()


def await_snapshot(watcher: Watcher, holds: Callable[[Snapshot], bool]) -> Snapshot:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds(watcher.snapshot):
        assert time.monotonic() < deadline, watcher.snapshot
        time.sleep(0.02)
    return watcher.snapshot


def silent(snapshot: Snapshot) -> list[int]:
    return [broker.id for broker in snapshot.brokers if broker.error]


def test_what_brokers_say_is_put_together(watcher: Watcher) -> None:
    seen = await_snapshot(watcher, lambda snapshot: snapshot.number > 2 and snapshot.groups_known)
    assert (seen.error, seen.cluster_id, silent(seen)) == (None, "test", [])
    assert len(seen.ends) == 3
    assert seen.quorum is not None and seen.quorum.leader == 1


def test_a_dead_broker_is_seen_and_its_return_too(watcher: Watcher, cluster: FakeCluster) -> None:
    await_snapshot(watcher, lambda snapshot: snapshot.number > 2)
    cluster.down = {2}
    seen = await_snapshot(watcher, lambda snapshot: silent(snapshot) == [2])
    assert seen.error is None
    assert seen.brokers[1].error == "It refuses or closes connections"
    assert len(seen.ends) == 3, "what it led is known as it last was"
    cluster.down = set()
    await_snapshot(watcher, lambda snapshot: silent(snapshot) == [])


def test_a_log_directory_that_fails_is_named(watcher: Watcher, cluster: FakeCluster) -> None:
    await_snapshot(watcher, lambda snapshot: snapshot.number > 2)
    cluster.failed = {2: "/data/two"}
    cluster.down = {2}
    seen = await_snapshot(watcher, lambda snapshot: snapshot.failed_directories == {2: ("/data/two",)})
    assert [broker_state(seen, each)[0] for each in seen.brokers] == ["up", "disk offline: /data/two", "up"]
    (problem,) = [each for each in problems_of(seen) if "broker 2" in each.what]
    assert problem.what == "A disk of broker 2 is offline" and "/data/two" in problem.why
    cluster.failed, cluster.down = {}, set()
    await_snapshot(watcher, lambda snapshot: not snapshot.failed_directories and not silent(snapshot))


def test_one_that_hangs_keeps_no_one_waiting(watcher: Watcher, cluster: FakeCluster) -> None:
    before = await_snapshot(watcher, lambda snapshot: snapshot.number > 2)
    cluster.hanging = {3}
    seen = await_snapshot(watcher, lambda snapshot: silent(snapshot) == [3])
    assert seen.error is None
    assert seen.brokers[2].error == "It did not respond in time"
    later = await_snapshot(watcher, lambda snapshot: snapshot.number >= seen.number + 3)
    assert silent(later) == [3]
    assert later.ends != before.ends, "the others go on"
    cluster.hanging = set()
    cluster.released.set()
    await_snapshot(watcher, lambda snapshot: silent(snapshot) == [])


def test_a_broker_is_alive_while_it_responds_to_pings_however_long_its_data_takes(
    watcher: Watcher, cluster: FakeCluster
) -> None:
    """As with thousands of partitions on a busy machine."""
    seen = await_snapshot(watcher, lambda snapshot: snapshot.number > 2 and len(snapshot.ends) == 3)
    cluster.reading.clear()
    pings = cluster.pings
    later = await_snapshot(watcher, lambda snapshot: snapshot.at > seen.at + 2.5 and cluster.pings > pings + 6)
    assert (silent(later), [each.slow for each in later.brokers], later.error) == ([], [None] * 3, None)
    assert later.ends.keys() == seen.ends.keys() and later.topics.keys() == seen.topics.keys()
    cluster.reading.set()
    cluster.released.set()
    await_snapshot(watcher, lambda snapshot: snapshot.ends != later.ends)


def test_a_broker_that_is_slow_is_not_called_dead(watcher: Watcher, cluster: FakeCluster) -> None:
    await_snapshot(watcher, lambda snapshot: snapshot.number > 2)
    cluster.hanging = {3}
    slow = await_snapshot(watcher, lambda snapshot: any(broker.slow for broker in snapshot.brokers))
    assert (silent(slow), broker_state(slow, slow.brokers[2])) == ([], ("slow", "warn"))
    assert [(each.severity.name, each.what) for each in problems_of(slow)][:1] == [
        ("WARNING", "Broker 3 responds slowly")
    ]
    cluster.hanging = set()
    cluster.released.set()
    await_snapshot(watcher, lambda snapshot: not any(broker.slow for broker in snapshot.brokers))


def test_without_any_broker_the_last_look_stays(watcher: Watcher, cluster: FakeCluster) -> None:
    await_snapshot(watcher, lambda snapshot: snapshot.number > 2)
    cluster.down = {1, 2, 3}
    seen = await_snapshot(watcher, lambda snapshot: snapshot.error is not None)
    assert len(seen.brokers) == 3 and "orders" in seen.topics
    cluster.down = set()
    await_snapshot(watcher, lambda snapshot: snapshot.error is None and not silent(snapshot))


def test_no_one_looks_while_no_page_is_open(
    cluster: FakeCluster, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.console.live.watcher._LINGER_SECONDS", 0.0)
    await_snapshot(watcher, lambda snapshot: snapshot.number > 2)
    rests = threading.Event()
    wait = watcher._lock.wait

    def waiting(timeout: float | None = None) -> bool:
        if timeout is None:  # not for the next look, but for a page
            rests.set()
        return wait(timeout)

    monkeypatch.setattr(watcher._lock, "wait", waiting)
    watcher.left("a page")
    assert rests.wait(TIMEOUT_SECONDS)
    asked = cluster.calls
    watcher.opened("another")
    await_snapshot(watcher, lambda snapshot: cluster.calls > asked)


def test_after_a_change_it_looks_at_once(watcher: Watcher) -> None:
    seen = await_snapshot(watcher, lambda snapshot: snapshot.number > 3)
    watcher.poll_soon()
    await_snapshot(watcher, lambda snapshot: snapshot.number > seen.number)
