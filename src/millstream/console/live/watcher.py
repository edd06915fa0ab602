"""The thread that polls the cluster about once per second, while a page is open.

Whether a broker lives is decided by pings alone (`liveness`). Data is read by jobs of their own, which may take longer
than a poll: a poll takes what is ready, and keeps the last known state of the rest. A job that took long is repeated
less often, so that a large cluster is not kept busy by its console.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from millstream.admin.cluster import NO_QUORUM, ClusterAdmin, LogDirectories, Partition, Quorum
from millstream.admin.groups import SHARE, Group, GroupAdmin
from millstream.console.live.certificates import CertificateEnds
from millstream.console.live.liveness import DOWN_SECONDS, SLOW_SECONDS, UP, Health, Liveness, Ping
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

PERIOD_SECONDS = 1.0
_POLL_TIMEOUT_SECONDS = 1.2
"""How long a poll waits for its jobs."""
_REQUEST_TIMEOUT_SECONDS = 1.0
_BROKER_TIMEOUT_SECONDS = 10.0
"""For requests that read data of one broker: they may take long in a large cluster."""
_REST_FACTOR = 4
"""A job rests for this many times as long as it took: so it uses a fifth of the time at most."""
_LONGEST_REST_SECONDS = 10.0
_ATTEMPTS = 3
"""A broker that hangs uses up one attempt, and is tried last in the next."""
_LINGER_SECONDS = 30.0
"""How long to continue after the last page was closed, so that a reloaded page finds its charts filled."""
_GROUPS_EVERY_SECONDS = 2.0
_DISKS_EVERY_SECONDS = 5.0
_CONFIGS_EVERY_SECONDS = 30.0
_CERTIFICATES_EVERY_SECONDS = 60.0
_SECURED_METRICS_EVERY_SECONDS = 5.0
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
        self._admin = ClusterAdmin(cluster, attempts=_ATTEMPTS, timeout_s=_REQUEST_TIMEOUT_SECONDS)
        self._disk_admin = ClusterAdmin(cluster, attempts=1, timeout_s=_BROKER_TIMEOUT_SECONDS)
        self._group_admin = GroupAdmin(cluster)
        self.snapshot = Snapshot()
        self.history = History()
        self._broker_rates = BrokerRates(cluster)
        self._lock = threading.Condition()
        self._viewers: set[object] = set()
        self._left_at = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._jobs = _Jobs()
        self._liveness = Liveness()
        self._round = _EndsRound()
        self._groups_at: dict[int, dict[str, Group]] = {}
        self._heard_at = time.monotonic()

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
            self._jobs.hurry()
            self._lock.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._jobs.close()

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
            with self._lock:
                # The first poll only finds the brokers; the second has the data for the pages.
                self._lock.wait(max(0.05, PERIOD_SECONDS - took if polls > 2 else 0.0))

    def _wanted(self) -> bool:
        """Whether to poll again; waits while no page is open."""
        with self._lock:
            while not self._closed and not self._viewers and time.monotonic() - self._left_at > _LINGER_SECONDS:
                self._lock.wait()
                self._heard_at = time.monotonic()
            return not self._closed

    def _poll(self) -> None:
        before = self.snapshot
        now = time.time()
        self._begin_jobs(before, now)
        self._jobs.finish(_POLL_TIMEOUT_SECONDS)
        jobs = self._jobs
        info = jobs.take("brokers", 0)
        if info is None:
            cluster_id, controller, brokers = before.cluster_id, before.controller, before.brokers
        else:
            cluster_id, controller = info.cluster_id, info.controller_id
            brokers = tuple(
                Broker(row.id, row.host, row.port, row.rack, row.fenced, row.machine_id) for row in info.brokers
            )
        health = {each.id: self._health(each) for each in brokers}
        error = self._cluster_error(found=info is not None, health=health)
        found_topics = jobs.take("topics", 0)
        topics = before.topics if found_topics is None else found_topics
        new_ends = self._new_ends(health)
        fresh_ends = self._round.is_complete()
        if fresh_ends:
            self.history.note_ends(now, self._round.finish(), topics)
        ends = before.ends
        if new_ends or found_topics is not None:
            together = before.ends | new_ends
            ends = {each: end for each, end in together.items() if each.topic in topics}
        rates = self.history.rates(now) if fresh_ends else before.rates
        disks = {**before.disks, **jobs.take_all("disks")}
        failed = {each.id: disks[each.id].offline for each in brokers if each.id in disks and not each.fenced}
        failed.update(jobs.take_all("failing"))
        found_groups = jobs.take_all("groups")
        groups = self._groups(found_groups, brokers)
        metrics, found_metrics = self._metrics(before, {each.id for each in brokers if health[each.id].error is None})
        held = jobs.take_all("held")
        moved = jobs.take("moves", 0)
        min_in_sync = jobs.take("configs", 0)
        quorum = jobs.take("quorum", 0)
        snapshot = Snapshot(
            number=before.number + 1,
            at=now,
            error=error,
            cluster_id=cluster_id,
            controller=controller,
            brokers=tuple(replace(each, error=health[each.id].error, slow=health[each.id].slow) for each in brokers),
            topics=topics,
            topics_at=now if found_topics is not None else before.topics_at,
            quorum=before.quorum if quorum is None else quorum.known,
            ends=ends,
            rates=rates,
            disks=disks,
            failed_directories={number: names for number, names in failed.items() if names},
            min_in_sync=before.min_in_sync if min_in_sync is None else min_in_sync,
            reassignments=before.reassignments if moved is None else tuple(moved),
            groups=with_lag(groups, ends) if found_groups or new_ends else before.groups,
            groups_known=before.groups_known or bool(found_groups),
            acquired=_merged(held.values()) if held else before.acquired,
            metrics=metrics,
            certificates=self._found_certificates(jobs.take_all("certificates"), brokers),
        )
        if fresh_ends:
            self.history.note_rates(now, rates, topics, jobs.rest_s("ends"))
        if found_metrics:
            self.history.note_metrics(now, metrics.values(), max(self._metrics_every_s, jobs.rest_s("metrics")))
        if found_groups or fresh_ends:
            self.history.note_groups(snapshot, max(jobs.rest_s("ends"), jobs.rest_s("groups")))
        self._forget_brokers(before.brokers, brokers)
        self.snapshot = snapshot

    @property
    def _metrics_every_s(self) -> float:
        """Of a secured cluster it takes a handshake and a login, so it is read less often."""
        return 0.0 if self._cluster.settings.protocol is SecurityProtocol.PLAINTEXT else _SECURED_METRICS_EVERY_SECONDS

    def _begin_jobs(self, before: Snapshot, now: float) -> None:
        """Starts the jobs that are due. The brokers are those of the last poll: changes are seen in the next one."""
        begin = self._jobs.begin
        begin("brokers", 0, self._admin.describe)
        begin("quorum", 0, self._read_quorum)
        begin("moves", 0, self._admin.reassignments)
        begin("topics", 0, self._read_topics)
        for broker in before.brokers:
            begin("ping", broker.id, partial(self._ping, broker))
            self._liveness.sent(broker.id, time.monotonic())
            # Also of brokers that do not respond: an expired certificate may be the reason.
            read = partial(self._certificate_ends.of_broker, broker, now)
            begin("certificates", broker.id, read, _CERTIFICATES_EVERY_SECONDS)
            if not broker.is_up:
                begin("failing", broker.id, partial(self._read_failed_directories, broker))
                continue
            begin("metrics", broker.id, partial(self._read_metrics, broker), self._metrics_every_s)
            begin("groups", broker.id, partial(self._read_groups, broker), _GROUPS_EVERY_SECONDS)
            begin("disks", broker.id, partial(self._disk_admin.log_directories, broker), _DISKS_EVERY_SECONDS)
        self._begin_ends(before)
        if any(group.type == SHARE for group in before.groups.values()):
            for broker in before.brokers:
                if broker.id in before.metrics:
                    begin("held", broker.id, partial(read_acquired, self._cluster, broker))
        if before.topics:
            names = list(before.topics)
            is_new = bool(before.topics.keys() - before.min_in_sync)
            begin("configs", 0, lambda: self._admin.min_in_sync(names), 0.0 if is_new else _CONFIGS_EVERY_SECONDS)

    def _begin_ends(self, before: Snapshot) -> None:
        """Starts a round if the last one is complete. It does not wait for slow brokers."""
        led = before.once(_led)
        leaders = [broker for broker in before.brokers if broker.is_up and broker.id in led]
        fast = {broker.id for broker in leaders if broker.slow is None}
        if self._round.waiting or not fast or not self._jobs.are_due("ends", fast):
            return
        for broker in leaders:
            self._jobs.begin("ends", broker.id, partial(self._read_ends, broker, led[broker.id]))
        self._round.waiting = fast

    def _health(self, broker: Broker) -> Health:
        ping: Ping | None = self._jobs.take("ping", broker.id)
        if ping is not None and ping.error is None:
            self._heard_at = time.monotonic()
        return self._liveness.judge(broker.id, ping, time.monotonic(), fenced=broker.fenced)

    def _cluster_error(self, *, found: bool, health: Mapping[int, Health]) -> str | None:
        """Why no broker responds. A slow response is no error."""
        if found:
            self._heard_at = time.monotonic()
            return None
        why = self._jobs.error("brokers", 0)
        all_down = all(each.error is not None for each in health.values())
        if why is not None and all_down and not why.late:
            return why.text
        silent_s = time.monotonic() - self._heard_at
        return f"no response for {silent_s:.0f} s" if silent_s > DOWN_SECONDS else None

    def _new_ends(self, health: Mapping[int, Health]) -> dict[TopicPartition, int]:
        """End offsets that were read since the last poll. A round does not wait for brokers that are slow or down."""
        found: dict[TopicPartition, int] = {}
        for part in self._jobs.take_all("ends").values():
            found.update(part)
        self._round.found.update(found)
        for number in list(self._round.waiting):
            if not self._jobs.is_waiting("ends", number) or health.get(number, UP) is not UP:
                self._round.waiting.discard(number)
        return found

    def _metrics(self, before: Snapshot, up: Collection[int]) -> tuple[dict[int, Mapping[str, float]], bool]:
        """The metrics of brokers that are up, as last read, and whether some were read since the last poll."""
        read = self._jobs.take_all("metrics")
        together = {**before.metrics, **{number: page.rates for number, page in read.items()}}
        known = {number: rates for number, rates in together.items() if rates is not None and number in up}
        return known, any(page.rates is not None for page in read.values())

    def _found_certificates(
        self, read: Mapping[int, list[CertificateEnd]], brokers: Sequence[Broker]
    ) -> tuple[CertificateEnd, ...]:
        for number, found in read.items():
            if found:
                self._certificates[number] = found
        known = [end for broker in brokers for end in self._certificates.get(broker.id, ())]
        return (*self._certificate_ends.of_gateway(), *known)

    def _groups(self, read: Mapping[int, list[Group]], brokers: tuple[Broker, ...]) -> dict[str, Group]:
        """A coordinator that did not respond keeps its last known groups, until another broker has them."""
        for number, found in read.items():
            self._groups_at[number] = {group.name: group for group in found}
            for other, theirs in self._groups_at.items():
                if other != number:
                    for name in theirs.keys() & self._groups_at[number].keys():
                        del theirs[name]
        gone = self._groups_at.keys() - {each.id for each in brokers}
        for number in gone:
            del self._groups_at[number]
        return {name: group for theirs in self._groups_at.values() for name, group in theirs.items()}

    def _forget_brokers(self, before: Sequence[Broker], after: Sequence[Broker]) -> None:
        for number in {each.id for each in before} - {each.id for each in after}:
            self._jobs.forget(number)
            self._liveness.forget(number)

    # Requests

    def _read_topics(self) -> dict[str, Topic]:
        found: dict[str, list[Partition]] = {}
        for partition in self._admin.partitions():
            found.setdefault(partition.topic, []).append(partition)
        return {name: Topic(name, rows[0].is_internal, tuple(rows)) for name, rows in found.items()}

    def _ping(self, broker: Broker) -> Ping:
        """Requests the API versions. A connection that was just closed proves nothing, so there is a second attempt."""
        began = time.monotonic()
        error: WireError | None = None
        for _ in range(2):
            try:
                self._cluster.call(
                    "api_versions",
                    node=broker.id,
                    once=True,
                    within_s=DOWN_SECONDS,
                    client_software_name="millstream",
                    client_software_version="console",
                )
                return Ping(time.monotonic() - began)
            except WireError as reason:
                error = reason
                if time.monotonic() - began >= SLOW_SECONDS:
                    break
        return Ping(time.monotonic() - began, unreachable_reason(error))

    def _read_quorum(self) -> "_FoundQuorum":
        """None if the brokers do not support DescribeQuorum; without a leader, NO_QUORUM."""
        try:
            return _FoundQuorum(self._admin.quorum())
        except SetupError:
            return _FoundQuorum(None)
        except WireError:
            return _FoundQuorum(NO_QUORUM)

    def _read_metrics(self, broker: Broker) -> "_FoundMetrics":
        return _FoundMetrics(self._broker_rates.read(broker))

    def _read_groups(self, broker: Broker) -> list[Group]:
        return self._group_admin.groups_on(broker.id, timeout_s=_BROKER_TIMEOUT_SECONDS)

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
            within_s=_BROKER_TIMEOUT_SECONDS,
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


@dataclass(frozen=True, slots=True)
class _FoundQuorum:
    known: Quorum | None
    """None if the brokers do not support DescribeQuorum."""


@dataclass(frozen=True, slots=True)
class _FoundMetrics:
    rates: Mapping[str, float] | None
    """None if the broker has no metrics page."""


@dataclass(slots=True)
class _EndsRound:
    """A reading of the end offsets of all partitions. Rates are computed between complete rounds, so a broker that
    responds later than others makes no dip."""

    waiting: set[int] = field(default_factory=set)
    """Brokers that have not responded yet."""
    found: dict[TopicPartition, int] = field(default_factory=dict)

    def is_complete(self) -> bool:
        return bool(self.found) and not self.waiting

    def finish(self) -> dict[TopicPartition, int]:
        found, self.found = self.found, {}
        return found


def _led(snapshot: Snapshot) -> dict[int, list[Partition]]:
    """The partitions by leader."""
    led: dict[int, list[Partition]] = {}
    for each in snapshot.partitions:
        led.setdefault(each.leader, []).append(each)
    return led


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    late: bool


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    began: float
    ended: float = 0.0
    is_taken: bool = False


class _Jobs:
    """Jobs by kind and broker: one of each at a time. Its result is taken once, by the poll after its end."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-poll")
        # Jobs that wait for slow brokers must not keep pings of others waiting.
        self._quick_pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-ping")
        self._jobs: dict[tuple[str, int], _Job] = {}
        self._is_hurried: set[tuple[str, int]] = set()

    def begin(self, what: str, number: int, work: Callable[[], object], every_s: float = 0.0) -> None:
        """Starts a job, unless the last one runs, its result was not taken, or it is not due."""
        if not self._may_begin(what, number, every_s):
            return
        self._is_hurried.discard((what, number))
        pool = self._quick_pool if what in _QUICK else self._pool
        job = self._jobs[what, number] = _Job(pool.submit(work), time.monotonic())

        def note_end(_: object) -> None:
            job.ended = time.monotonic()

        job.future.add_done_callback(note_end)

    def _may_begin(self, what: str, number: int, every_s: float) -> bool:
        last = self._jobs.get((what, number))
        if last is None:
            return True
        if not last.future.done() or not last.is_taken:
            return False
        took = max(0.0, last.ended - last.began)
        is_costly = what not in _QUICK and last.future.exception() is None
        rest_s = min(_LONGEST_REST_SECONDS, _REST_FACTOR * took) if is_costly else 0.0
        due = max(last.began + every_s, last.ended + rest_s)
        return (what, number) in self._is_hurried or time.monotonic() >= due

    def hurry(self) -> None:
        """All jobs are due."""
        self._is_hurried = set(self._jobs)

    def finish(self, timeout_s: float) -> None:
        """Waits for the jobs."""
        wait([job.future for job in self._jobs.values() if not job.is_taken], timeout_s)

    def are_due(self, what: str, numbers: Iterable[int]) -> bool:
        """Whether the jobs of a kind for all these brokers may begin."""
        return all(self._may_begin(what, number, 0.0) for number in numbers)

    def is_waiting(self, what: str, number: int) -> bool:
        job = self._jobs.get((what, number))
        return job is not None and not job.future.done()

    def rest_s(self, what: str) -> float:
        """How often jobs of a kind run now."""
        took = [job.ended - job.began for (kind, _), job in self._jobs.items() if kind == what and job.ended]
        return max(PERIOD_SECONDS, (1 + _REST_FACTOR) * max(took, default=0.0))

    def take(self, what: str, number: int) -> Any:
        """The result of a job that has ended since the last poll; None without one, and if it failed."""
        job = self._jobs.get((what, number))
        if job is None or job.is_taken or not job.future.done():
            return None
        job.is_taken = True
        error = job.future.exception()
        if error is None:
            return job.future.result()
        if not isinstance(error, (WireError, TimeoutError)):
            _log.error("poll_failed", exc_info=error)
        return None

    def take_all(self, what: str) -> dict[int, Any]:
        """The results by broker."""
        numbers = [number for kind, number in self._jobs if kind == what]
        return {number: result for number in numbers if (result := self.take(what, number)) is not None}

    def error(self, what: str, number: int) -> _Failure | None:
        """Why the last job failed; None while it runs."""
        job = self._jobs.get((what, number))
        if job is None or not job.future.done():
            return None
        error = job.future.exception()
        return None if error is None else _Failure(str(error), getattr(error, "late", False))

    def close(self) -> None:
        for pool in (self._pool, self._quick_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def forget(self, number: int) -> None:
        """A broker is gone."""
        for key in [key for key in self._jobs if key[1] == number and key[0] in _OF_BROKERS]:
            del self._jobs[key]


_QUICK = frozenset({"ping", "brokers", "quorum"})
"""Jobs that cost the brokers next to nothing."""
_OF_BROKERS = frozenset({"ping", "certificates", "failing", "metrics", "groups", "disks", "ends", "held"})


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
