"""The thread that polls the cluster about once per second, while a page is open.

Each broker is polled by its own job with a short timeout. A job that is not done in time counts as a broker that does
not respond, and no second job of that kind is started. So a broker that hangs costs one thread and delays nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from millstream.admin.cluster import NO_QUORUM, ClusterAdmin, LogDirectories, Partition, Quorum
from millstream.admin.groups import SHARE, Group, GroupAdmin
from millstream.console.live.certificates import CertificateEnds
from millstream.console.live.metrics import BrokerRates, History, read_acquired
from millstream.console.live.snapshot import Broker, CertificateEnd, Snapshot, Topic
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import (
    LATEST,
    Cluster,
    RefusedError,
    SetupError,
    TopicPartition,
    UnreachableError,
    WireError,
)
from millstream.raw_client.settings import SecurityProtocol

T = TypeVar("T")
PERIOD_S = 1.0
_POLL_TIMEOUT_S = 1.2
"""How long a poll waits for its jobs."""
_SLOW_RESPONSE_S = 4.0
"""How long a response about the whole cluster may take: a large cluster or one hanging broker is no outage."""
_REQUEST_TIMEOUT_S = 1.0
_BROKER_TIMEOUT_S = 2.0
"""For the longer requests to one broker: log directories and groups."""
_ATTEMPTS = 3
"""A broker that hangs uses up one attempt, and is tried last in the next."""
_LINGER_S = 30.0
"""How long to continue after the last page was closed, so that a reloaded page finds its charts filled."""
_GROUPS_EVERY_S = 2.0
_DISKS_EVERY_S = 5.0
_CONFIGS_EVERY_S = 30.0
_CERTIFICATES_EVERY_S = 60.0
_SECURED_METRICS_EVERY_S = 5.0
_THREADS = 16

_log = logging.getLogger("millstream.console")


class Watcher:
    """`snapshot` is the latest state of the cluster, `history` the data of the charts."""

    def __init__(self, cluster: Cluster, own_certificate: Callable[[], float | None] = lambda: None) -> None:
        """`own_certificate`: when the gateway's certificate expires, in seconds since 1970; None if it has none."""
        self._cluster = cluster
        self._certificate_ends = CertificateEnds(cluster, own_certificate)
        self._certificates: dict[int, list[CertificateEnd]] = {}
        """By broker."""
        self._admin = ClusterAdmin(cluster, attempts=_ATTEMPTS, timeout_s=_REQUEST_TIMEOUT_S)
        self._disk_admin = ClusterAdmin(cluster, attempts=1, timeout_s=_BROKER_TIMEOUT_S)
        self._group_admin = GroupAdmin(cluster)
        self.snapshot = Snapshot()
        self.history = History()
        self._broker_rates = BrokerRates(cluster)
        self._lock = threading.Condition()
        self._viewers: set[object] = set()
        self._left_at = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-poll")
        self._running: dict[tuple[str, int], Future[object]] = {}
        self._groups_at: dict[int, dict[str, Group]] = {}
        self._due: dict[str, float] = {}
        self._had_late_jobs = False
        self._heard_at = 0.0

    # Open pages

    def opened(self, viewer: object) -> None:
        with self._lock:
            self._viewers.add(viewer)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._watch, name="console-watcher", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def left(self, viewer: object) -> None:
        with self._lock:
            self._viewers.discard(viewer)
            self._left_at = time.monotonic()

    def poll_soon(self) -> None:
        """After a change: polls everything again, at once."""
        with self._lock:
            self._due.clear()
            self._lock.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # The thread

    def _watch(self) -> None:
        polls = 0
        while self._wanted():
            polls += 1
            began = time.monotonic()
            try:
                self._poll()
            except Exception:  # the next poll may succeed
                _log.exception("poll_failed")
            took = time.monotonic() - began
            # A very large cluster is polled less often, but not a cluster with a broker that hangs.
            period = PERIOD_S if self._had_late_jobs else max(PERIOD_S, 2 * took)
            with self._lock:
                # The first poll only finds the brokers; the second has the data for the pages.
                self._lock.wait(max(0.05, period - took if polls > 2 else 0.0))

    def _wanted(self) -> bool:
        """Whether to poll again; waits while no page is open."""
        with self._lock:
            while not self._closed and not self._viewers and time.monotonic() - self._left_at > _LINGER_S:
                self._lock.wait()
            return not self._closed

    def _poll(self) -> None:
        before = self.snapshot
        now = time.time()
        poll = _PollJobs(self._pool, self._running)
        listed = poll.begin("brokers", 0, self._admin.describe)
        topics = poll.begin("topics", 0, self._read_topics)
        quorum = poll.begin("quorum", 0, self._read_quorum)
        moves = poll.begin("moves", 0, self._admin.reassignments)
        # The brokers are those of the last poll. Changes since then are seen in the next one.
        probes = {broker.id: self._probe(poll, broker, before) for broker in before.brokers}
        # Of a secured cluster it takes a handshake and a login, so it is read less often.
        every_s = 0.0 if self._cluster.settings.protocol is SecurityProtocol.PLAINTEXT else _SECURED_METRICS_EVERY_S
        metrics = self._begin_each("metrics", every_s, poll, before, self._broker_rates.read)
        groups = self._begin_each("groups", _GROUPS_EVERY_S, poll, before, self._read_groups)
        held: dict[int, Future[dict[str, dict[TopicPartition, int]]]] = {}
        if any(group.type == SHARE for group in before.groups.values()):
            held = {
                broker.id: poll.begin("held", broker.id, partial(read_acquired, self._cluster, broker))
                for broker in before.brokers
                if broker.id in before.metrics
            }
        disks = self._begin_each("disks", _DISKS_EVERY_S, poll, before, self._disk_admin.log_directories)
        failing = {
            each.id: poll.begin("failing", each.id, partial(self._read_failed_directories, each))
            for each in before.brokers
            if not each.is_up
        }
        configs = None
        if before.topics and self._is_due("configs", _CONFIGS_EVERY_S, before.topics.keys() - before.min_in_sync):
            names = list(before.topics)
            configs = poll.begin("configs", 0, lambda: self._admin.min_in_sync(names))
        ends_of_certificates = self._begin_certificates(poll, before, now)
        self._had_late_jobs = not poll.finish(_POLL_TIMEOUT_S)

        error = self._cluster_error(poll, (listed, topics))
        info = listed.result() if poll.error(listed) is None else None
        if info is None:
            cluster_id, controller, brokers = before.cluster_id, before.controller, before.brokers
        else:
            cluster_id, controller = info.cluster_id, info.controller_id
            brokers = tuple(
                Broker(row.id, row.host, row.port, row.rack, row.fenced, row.machine_id) for row in info.brokers
            )
        ends: dict[TopicPartition, int] = {}
        nothing: dict[TopicPartition, int] = {}
        errors: dict[int, str] = {}
        for number, probe in probes.items():
            told: dict[TopicPartition, int] = poll.result(probe, nothing)
            ends.update(told)
            if poll.error(probe) is not None:
                errors[number] = unreachable_reason(probe.exception() if probe.done() else None)
        min_in_sync = dict(before.min_in_sync)
        if configs is not None:
            min_in_sync = poll.result(configs, min_in_sync)
        moved = poll.result(moves, list(before.reassignments))
        found_topics = poll.result(topics, dict(before.topics))
        found_disks = {**before.disks, **self._results(poll, disks)}
        failed = {
            each.id: found_disks[each.id].offline for each in brokers if each.id in found_disks and not each.fenced
        }
        failed.update(self._results(poll, failing))
        self.history.note_ends(now, ends, found_topics)
        known_groups = self._groups(poll, groups, brokers)
        all_ends = {
            topic_partition: end
            for topic_partition, end in (before.ends | ends).items()
            if topic_partition.topic in found_topics
        }
        snapshot = Snapshot(
            number=before.number + 1,
            at=now,
            error=error,
            cluster_id=cluster_id,
            controller=controller,
            brokers=tuple(replace(each, error=errors.get(each.id)) for each in brokers),
            topics=found_topics,
            quorum=poll.result(quorum, before.quorum),
            ends=all_ends,
            rates=self.history.rates(now),
            disks=found_disks,
            failed_directories={number: names for number, names in failed.items() if names},
            min_in_sync=min_in_sync,
            reassignments=tuple(moved),
            groups=with_lag(known_groups, all_ends),
            groups_known=before.groups_known or any(poll.error(job) is None for job in groups.values()),
            acquired=_merged(self._results(poll, held).values()),
            metrics=self._found_metrics(poll, metrics, before),
            certificates=self._found_certificates(poll, ends_of_certificates, brokers),
        )
        self.history.note(snapshot)
        self.snapshot = snapshot

    def _cluster_error(self, poll: "_PollJobs", jobs: Sequence["Future[Any]"]) -> str | None:
        """Why no broker responds. A slow response counts as an error only after a while."""
        for job in jobs:
            why = poll.error(job)
            if why is not None:
                late = not job.done() or getattr(job.exception(), "late", False)
                recently = time.monotonic() - self._heard_at < _SLOW_RESPONSE_S
                return None if late and recently else why
        self._heard_at = time.monotonic()
        return None

    def _probe(self, poll: "_PollJobs", broker: Broker, before: Snapshot) -> "Future[dict[TopicPartition, int]]":
        """Requests the end offsets of a broker, also of one that leads nothing, to see whether it responds."""
        led: list[Partition] = [each for each in before.partitions if each.leader == broker.id]
        return poll.begin("probe", broker.id, partial(self._read_ends, broker, led))

    def _begin_each(
        self, what: str, every_s: float, poll: "_PollJobs", before: Snapshot, read: Callable[[Broker], T]
    ) -> dict[int, "Future[T]"]:
        if not before.brokers or not self._is_due(what, every_s):
            return {}
        return {each.id: poll.begin(what, each.id, partial(read, each)) for each in before.brokers if each.is_up}

    def _is_due(self, what: str, every_s: float, also: object = None) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0) and not also:
            return False
        self._due[what] = now + every_s
        return True

    def _begin_certificates(
        self, poll: "_PollJobs", before: Snapshot, now: float
    ) -> dict[int, "Future[list[CertificateEnd]]"]:
        """Also of brokers that do not respond: an expired certificate may be the reason."""
        if not before.brokers or not self._is_due("certificates", _CERTIFICATES_EVERY_S):
            return {}
        read = self._certificate_ends.of_broker
        return {each.id: poll.begin("certificates", each.id, partial(read, each, now)) for each in before.brokers}

    def _found_certificates(
        self, poll: "_PollJobs", read: Mapping[int, "Future[list[CertificateEnd]]"], brokers: Sequence[Broker]
    ) -> tuple[CertificateEnd, ...]:
        for number, found in self._results(poll, read).items():
            if found:
                self._certificates[number] = found
        known = [end for broker in brokers for end in self._certificates.get(broker.id, ())]
        return (*self._certificate_ends.of_gateway(), *known)

    @staticmethod
    def _found_metrics(
        poll: "_PollJobs", read: Mapping[int, "Future[dict[str, float] | None]"], before: Snapshot
    ) -> Mapping[int, Mapping[str, float]]:
        """Those of the last poll if they were not read in this one."""
        if not read:
            return {number: found for number, found in before.metrics.items() if before.is_up(number)}
        return {number: found for number, job in read.items() if (found := poll.result(job, None)) is not None}

    def _groups(
        self, poll: "_PollJobs", read: Mapping[int, "Future[list[Group]]"], brokers: tuple[Broker, ...]
    ) -> dict[str, Group]:
        """A coordinator that did not respond keeps its last known groups, until another broker has them."""
        for number, found in self._results(poll, read).items():
            self._groups_at[number] = {group.name: group for group in found}
            for other, theirs in self._groups_at.items():
                if other != number:
                    for name in theirs.keys() & self._groups_at[number].keys():
                        del theirs[name]
        gone = self._groups_at.keys() - {each.id for each in brokers}
        for number in gone:
            del self._groups_at[number]
        return {name: group for theirs in self._groups_at.values() for name, group in theirs.items()}

    # Requests

    def _read_topics(self) -> dict[str, Topic]:
        found: dict[str, list[Partition]] = {}
        for partition in self._admin.partitions():
            found.setdefault(partition.topic, []).append(partition)
        return {name: Topic(name, rows[0].is_internal, tuple(rows)) for name, rows in found.items()}

    def _read_quorum(self) -> Quorum | None:
        """None if the brokers do not support DescribeQuorum; without a leader, NO_QUORUM."""
        try:
            return self._admin.quorum()
        except SetupError:
            return None
        except WireError:
            return NO_QUORUM

    def _read_groups(self, broker: Broker) -> list[Group]:
        return self._group_admin.groups_on(broker.id, timeout_s=_BROKER_TIMEOUT_S)

    def _read_failed_directories(self, broker: Broker) -> tuple[str, ...]:
        """Log directories with a failed disk, of a broker that is down: it still serves this request."""
        found: LogDirectories = self._admin.log_directories(replace(broker, fenced=True))  # by address, as it is down
        return found.offline

    def _read_ends(self, broker: Broker, led: Sequence[Partition]) -> dict[TopicPartition, int]:
        """End offsets of the partitions that a broker leads. Partitions whose leader has changed are left out."""
        topics: dict[str, list[dict[str, int]]] = {}
        for each in led:
            row = {"partition_index": each.index, "current_leader_epoch": -1, "timestamp": LATEST}
            topics.setdefault(each.topic, []).append(row)
        response = self._cluster.call(
            "list_offsets",
            node=broker.id,
            once=True,
            within_s=_REQUEST_TIMEOUT_S,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": name, "partitions": rows} for name, rows in topics.items()],
        )
        return {
            TopicPartition(topic.name, row.partition_index): row.offset
            for topic in response.topics
            for row in topic.partitions
            if row.error_code == ErrorCode.NONE
        }

    @staticmethod
    def _results(poll: "_PollJobs", jobs: Mapping[int, "Future[T]"]) -> dict[int, T]:
        return {number: job.result() for number, job in jobs.items() if poll.error(job) is None}


class _PollJobs:
    """The jobs of one poll."""

    def __init__(self, pool: ThreadPoolExecutor, running: dict[tuple[str, int], Future[object]]) -> None:
        self._pool = pool
        self._running = running
        self._jobs: list[Future[object]] = []

    def begin(self, what: str, number: int, work: Callable[[], T]) -> "Future[T]":
        """Starts a job, unless the last one of its kind is still running; then it waits for that one."""
        last = self._running.get((what, number))
        if last is None or last.done():
            job = self._pool.submit(work)
            self._running[what, number] = job  # type: ignore[assignment]  # kept only to see whether it is done
        else:
            job = last  # type: ignore[assignment]
        self._jobs.append(job)  # type: ignore[arg-type]
        return job

    def finish(self, timeout_s: float) -> bool:
        """Waits for the jobs. Returns whether all were done in time."""
        return not wait(self._jobs, timeout_s).not_done

    @staticmethod
    def error(job: "Future[T]") -> str | None:
        if not job.done():
            return "no response in time"
        error = job.exception()
        if error is None:
            return None
        if not isinstance(error, (WireError, TimeoutError)):
            _log.error("poll_failed", exc_info=error)
        return str(error)

    @classmethod
    def result(cls, job: "Future[T]", otherwise: T) -> T:
        return job.result() if cls.error(job) is None else otherwise


def unreachable_reason(error: BaseException | None) -> str:
    """Why a broker does not respond, in a few words; its address is shown beside."""
    if isinstance(error, UnreachableError) and not error.late:
        return "It refuses or closes connections"
    if isinstance(error, RefusedError):
        return "The controller does not list it as alive"
    return "It did not respond in time"


def with_lag(groups: Mapping[str, Group], ends: Mapping[TopicPartition, int]) -> dict[str, Group]:
    """Computes the lag of consumer groups from the end offsets. For share groups, the count of the broker is used."""
    found = {}
    for name in sorted(groups):
        group = groups[name]
        counted = {
            topic_partition: max(0, ends[topic_partition] - at)
            for topic_partition, at in group.offsets.items()
            if topic_partition in ends
        }
        found[name] = replace(group, lags={**counted, **(group.lags if group.type == SHARE else {})})
    return found


def _merged(parts: Iterable[Mapping[str, Mapping[TopicPartition, int]]]) -> dict[str, dict[TopicPartition, int]]:
    found: dict[str, dict[TopicPartition, int]] = {}
    for part in parts:
        for group, topic_partitions in part.items():
            found.setdefault(group, {}).update(topic_partitions)
    return found
