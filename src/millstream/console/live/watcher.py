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

from millstream.console.live.metrics import History, Measured, read_acquired
from millstream.console.live.reading import (
    SHARE,
    read_brokers,
    read_disk,
    read_ends,
    read_failed_directories,
    read_groups,
    read_min_in_sync,
    read_quorum,
    read_reassignments,
    read_topics,
)
from millstream.console.live.snapshot import Broker, Group, Partition, Snapshot
from millstream.raw_client import Cluster, RefusedError, TopicPartition, UnreachableError, WireError

T = TypeVar("T")
PERIOD_S = 1.0
_LOOK_S = 1.2
"""How long one look waits for its jobs."""
_SLOW_S = 4.0
"""How long an answer about the whole cluster may take: a large one, or one broker that hangs, is no outage."""
_LINGER_S = 30.0
"""How long to go on when the last page was closed: a page that is loaded anew finds its charts filled."""
_GROUPS_EVERY_S = 2.0
_DISKS_EVERY_S = 5.0
_CONFIGS_EVERY_S = 30.0
_THREADS = 16

_log = logging.getLogger("millstream.console")


class Watcher:
    """`snapshot` is what was seen last; `history` what charts are drawn from."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.snapshot = Snapshot()
        self.history = History()
        self._measured = Measured()
        self._lock = threading.Condition()
        self._viewers: set[object] = set()
        self._left_at = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-look")
        self._running: dict[tuple[str, int], Future[object]] = {}
        self._groups_at: dict[int, dict[str, Group]] = {}
        self._due: dict[str, float] = {}
        self._waited_in_vain = False
        self._heard_at = 0.0

    # Who looks

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

    def look_soon(self) -> None:
        """After a change: all is read anew at the next look, which comes at once."""
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
        looks = 0
        while self._wanted():
            looks += 1
            began = time.monotonic()
            try:
                self._look()
            except Exception:  # whatever it is, the next look may go well
                _log.exception("look_failed")
            took = time.monotonic() - began
            # A cluster so large that a look takes long is looked at less often; but not one in which a broker hangs.
            period = PERIOD_S if self._waited_in_vain else max(PERIOD_S, 2 * took)
            with self._lock:
                # The first look only learns whom to ask; the second has what pages show.
                self._lock.wait(max(0.05, period - took if looks > 2 else 0.0))

    def _wanted(self) -> bool:
        """Whether to look once more; waits while no page is open."""
        with self._lock:
            while not self._closed and not self._viewers and time.monotonic() - self._left_at > _LINGER_S:
                self._lock.wait()
            return not self._closed

    def _look(self) -> None:
        before = self.snapshot
        now = time.time()
        look = _Look(self._pool, self._running)
        listed = look.begin("brokers", 0, lambda: read_brokers(self._cluster))
        topics = look.begin("topics", 0, lambda: read_topics(self._cluster))
        quorum = look.begin("quorum", 0, lambda: read_quorum(self._cluster))
        moves = look.begin("moves", 0, lambda: read_reassignments(self._cluster))
        # Whom to ask is known from the look before: what moved in between is seen by the next.
        probes = {broker.id: self._probe(look, broker, before) for broker in before.brokers}
        metrics = {
            broker.id: look.begin("metrics", broker.id, partial(self._measured.read, broker))
            for broker in before.brokers
            if broker.is_up and not self._cluster.settings.protocol.has_tls
        }
        groups = self._begin_each("groups", _GROUPS_EVERY_S, look, before, lambda n: read_groups(self._cluster, n))
        held: dict[int, Future[dict[str, dict[TopicPartition, int]]]] = {}
        if any(group.kind == SHARE for group in before.groups.values()):
            held = {
                broker.id: look.begin("held", broker.id, partial(read_acquired, broker))
                for broker in before.brokers
                if broker.id in before.metrics
            }
        disks = self._begin_each("disks", _DISKS_EVERY_S, look, before, lambda n: read_disk(self._cluster, n))
        failing = {
            each.id: look.begin("failing", each.id, partial(read_failed_directories, self._cluster, each))
            for each in before.brokers
            if not each.is_up
        }
        configs = None
        if before.topics and self._is_due("configs", _CONFIGS_EVERY_S, before.topics.keys() - before.min_in_sync):
            names = list(before.topics)
            configs = look.begin("configs", 0, lambda: read_min_in_sync(self._cluster, names))
        self._waited_in_vain = not look.finish(_LOOK_S)

        trouble = self._trouble(look, (listed, topics))
        cluster_id, controller, brokers = look.result(
            listed,
            (before.cluster_id, before.controller, tuple(replace(each, trouble=None) for each in before.brokers)),
        )
        ends: dict[TopicPartition, int] = {}
        nothing: dict[TopicPartition, int] = {}
        troubles: dict[int, str] = {}
        for number, probe in probes.items():
            told: dict[TopicPartition, int] = look.result(probe, nothing)
            ends.update(told)
            if look.trouble(probe) is not None:
                troubles[number] = why_silent(probe.exception() if probe.done() else None)
        found_topics = look.result(topics, dict(before.topics))
        found_disks = {**before.disks, **self._results(look, disks)}
        failed = {
            each.id: found_disks[each.id].failed for each in brokers if each.id in found_disks and not each.fenced
        }
        failed.update(self._results(look, failing))
        self.history.note_ends(now, ends, found_topics)
        known_groups = self._groups(look, groups, brokers)
        all_ends = {place: end for place, end in (before.ends | ends).items() if place.topic in found_topics}
        snapshot = Snapshot(
            number=before.number + 1,
            at=now,
            trouble=trouble,
            cluster_id=cluster_id,
            controller=controller,
            brokers=tuple(replace(each, trouble=troubles.get(each.id)) for each in brokers),
            topics=found_topics,
            quorum=look.result(quorum, before.quorum),
            ends=all_ends,
            rates=self.history.rates(now),
            disks=found_disks,
            failed_directories={number: names for number, names in failed.items() if names},
            min_in_sync=before.min_in_sync if configs is None else look.result(configs, before.min_in_sync),
            reassignments=look.result(moves, before.reassignments),
            groups=with_lag(known_groups, all_ends),
            groups_known=before.groups_known or any(look.trouble(job) is None for job in groups.values()),
            acquired=_merged(self._results(look, held).values()),
            metrics={number: found for number, job in metrics.items() if (found := look.result(job, None)) is not None},
        )
        self.history.note(snapshot)
        self.snapshot = snapshot

    def _trouble(self, look: "_Look", asked: Sequence["Future[Any]"]) -> str | None:
        """Why nobody tells of the cluster. A slow answer is waited for a little before it counts as none."""
        for job in asked:
            why = look.trouble(job)
            if why is not None:
                late = not job.done() or getattr(job.exception(), "late", False)
                recently = time.monotonic() - self._heard_at < _SLOW_S
                return None if late and recently else why
        self._heard_at = time.monotonic()
        return None

    def _probe(self, look: "_Look", broker: Broker, before: Snapshot) -> "Future[dict[TopicPartition, int]]":
        """Asks a broker for the ends of what it leads; one that leads nothing is asked all the same: does it answer?"""
        led: list[Partition] = [each for each in before.partitions if each.leader == broker.id]
        return look.begin("probe", broker.id, lambda: read_ends(self._cluster, broker.id, led))

    def _begin_each(
        self, what: str, every_s: float, look: "_Look", before: Snapshot, read: Callable[[int], T]
    ) -> dict[int, "Future[T]"]:
        if not before.brokers or not self._is_due(what, every_s):
            return {}
        return {each.id: look.begin(what, each.id, partial(read, each.id)) for each in before.brokers if each.is_up}

    def _is_due(self, what: str, every_s: float, also: object = None) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0) and not also:
            return False
        self._due[what] = now + every_s
        return True

    def _groups(
        self, look: "_Look", read: Mapping[int, "Future[list[Group]]"], brokers: tuple[Broker, ...]
    ) -> dict[str, Group]:
        """Of a coordinator that did not answer, what it said last, until another has its groups."""
        for number, found in self._results(look, read).items():
            self._groups_at[number] = {group.name: group for group in found}
            for other, theirs in self._groups_at.items():
                if other != number:
                    for name in theirs.keys() & self._groups_at[number].keys():
                        del theirs[name]
        gone = self._groups_at.keys() - {each.id for each in brokers}
        for number in gone:
            del self._groups_at[number]
        return {name: group for theirs in self._groups_at.values() for name, group in theirs.items()}

    @staticmethod
    def _results(look: "_Look", jobs: Mapping[int, "Future[T]"]) -> dict[int, T]:
        return {number: job.result() for number, job in jobs.items() if look.trouble(job) is None}


class _Look:
    """The jobs of one look."""

    def __init__(self, pool: ThreadPoolExecutor, running: dict[tuple[str, int], Future[object]]) -> None:
        self._pool = pool
        self._running = running
        self._jobs: list[Future[object]] = []

    def begin(self, what: str, number: int, work: Callable[[], T]) -> "Future[T]":
        """One of a kind at a time: while the last one hangs, it is waited for once more."""
        last = self._running.get((what, number))
        if last is None or last.done():
            job = self._pool.submit(work)
            self._running[what, number] = job  # type: ignore[assignment]  # kept only to be asked whether it is done
        else:
            job = last  # type: ignore[assignment]
        self._jobs.append(job)  # type: ignore[arg-type]
        return job

    def finish(self, timeout_s: float) -> bool:
        """Waits for the jobs; whether all were done in time."""
        return not wait(self._jobs, timeout_s).not_done

    @staticmethod
    def trouble(job: "Future[T]") -> str | None:
        if not job.done():
            return "no response in time"
        error = job.exception()
        if error is None:
            return None
        if not isinstance(error, (WireError, TimeoutError)):
            _log.error("look_failed", exc_info=error)
        return str(error)

    @classmethod
    def result(cls, job: "Future[T]", otherwise: T) -> T:
        return job.result() if cls.trouble(job) is None else otherwise


def why_silent(error: BaseException | None) -> str:
    """Of one broker, in few words: its address is shown beside."""
    if isinstance(error, UnreachableError) and not error.late:
        return "It refuses or closes connections"
    if isinstance(error, RefusedError):
        return "The controller does not list it as alive"
    return "It did not respond in time"


def with_lag(groups: Mapping[str, Group], ends: Mapping[TopicPartition, int]) -> dict[str, Group]:
    """Consumer groups get their lag from where logs end; share groups' own is better, where the broker told it."""
    found = {}
    for name in sorted(groups):
        group = groups[name]
        counted = {place: max(0, ends[place] - at) for place, at in group.offsets.items() if place in ends}
        found[name] = replace(group, lags={**counted, **(group.lags if group.kind == SHARE else {})})
    return found


def _merged(parts: Iterable[Mapping[str, Mapping[TopicPartition, int]]]) -> dict[str, dict[TopicPartition, int]]:
    found: dict[str, dict[TopicPartition, int]] = {}
    for part in parts:
        for group, places in part.items():
            found.setdefault(group, {}).update(places)
    return found
