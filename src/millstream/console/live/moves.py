"""Moves of replicas from the console: plans with a preview, and the run of a plan in a thread of the gateway. And the
end of a drained broker: its registration is removed.

If the gateway ends, the cluster finishes the moves that were started, the rest of the plan is not started, and a
throttle stays until it is removed.
"""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.admin.balance import PlannedReassignment
from millstream.admin.cluster import Broker, ClusterAdmin, ClusterState
from millstream.admin.moves import (
    Mover,
    assignment_plan,
    balance_plan,
    drain_plan,
    remove_throttle,
    senders_and_receivers,
    set_throttle,
    throttled_topics,
)
from millstream.common.quantities import parse_size
from millstream.console.console import UserError
from millstream.console.formats import plural, size
from millstream.raw_client import Cluster, TopicPartition, WireError

BALANCE, DRAIN, PLACE = "balance", "drain", "place"
_METADATA_TIMEOUT_SECONDS = 5.0
_POLL_INTERVAL_SECONDS = 0.2
_SHOWN_NOTES = 3
_log = logging.getLogger("millstream.console")


@dataclass(frozen=True, slots=True)
class Wish:
    """The values of the form."""

    kind: str
    broker: int | None = None
    partitions: tuple[TopicPartition, ...] = ()
    targets: tuple[int, ...] | None = None
    replicas: int | None = None

    @property
    def words(self) -> str:
        if self.kind == PLACE:
            return f"place {plural(len(self.partitions), 'partition')} of {self.partitions[0].topic}"
        return "balance" if self.kind == BALANCE else f"drain broker {self.broker}"


@dataclass(frozen=True, slots=True)
class Preview:
    wish: Wish
    cluster: ClusterState
    plan: list[PlannedReassignment]

    @property
    def bytes(self) -> int:
        return sum(each.moved_bytes for each in self.plan)


def preview_plan(cluster: Cluster, wish: Wish) -> Preview:
    """Reads the cluster and plans. Nothing is changed."""
    admin = ClusterAdmin(cluster)
    state = admin.read()
    state.check_quorum()
    moving = {each.partition for each in admin.reassignments()}
    if moving and (wish.kind != PLACE or not moving.isdisjoint(wish.partitions)):
        raise UserError(
            f"{plural(len(moving), 'partition')} being moved already: wait until they have moved, or cancel them."
        )
    if wish.kind == BALANCE:
        plan = balance_plan(state)
    elif wish.kind == DRAIN:
        assert wish.broker is not None
        plan = drain_plan(state, [state.broker(wish.broker).id])
    else:
        plan = assignment_plan(state, wish.partitions, wish.targets, wish.replicas)
    return Preview(wish, state, plan)


def broker_rows(preview: Preview) -> list[dict[str, Any]]:
    """Replicas, data and preferred leaders of each broker before and after."""
    before: dict[str, Counter[int]] = {"replicas": Counter(), "bytes": Counter(), "leaders": Counter()}
    after: dict[str, Counter[int]] = {"replicas": Counter(), "bytes": Counter(), "leaders": Counter()}
    planned = {(each.topic, each.partition): each.replicas for each in preview.plan}
    for partition in preview.cluster.partitions:
        held = preview.cluster.size(partition)
        replicas_after = planned.get((partition.topic, partition.index), partition.replicas)
        for counts, replicas in ((before, partition.replicas), (after, replicas_after)):
            counts["replicas"].update(replicas)
            counts["leaders"].update(replicas[:1])
            for broker in replicas:
                counts["bytes"][broker] += held
    return [
        {
            "id": broker.id,
            **{name: f"{before[name][broker.id]:,} → {after[name][broker.id]:,}" for name in ("replicas", "leaders")},
            "bytes": f"{size(before['bytes'][broker.id])} → {size(after['bytes'][broker.id])}",
        }
        for broker in preview.cluster.brokers
    ]


def move_rows(plan: Sequence[PlannedReassignment]) -> list[dict[str, Any]]:
    return [
        {
            "partition": f"{each.topic}-{each.partition}",
            "from": ", ".join(map(str, each.before)),
            "to": ", ".join(map(str, each.replicas)),
            "bytes": each.moved_bytes,
            "note": "" if each.adding or each.removing else "leader only",
            "_tones": {"note": "dim"},
        }
        for each in plan
    ]


def parse_partitions(text: str, topic: str, partitions: int) -> tuple[TopicPartition, ...]:
    """`all`, or numbers and ranges: `0,2,5-7`."""
    text = text.replace(" ", "")
    if text in ("", "all"):
        return tuple(TopicPartition(topic, index) for index in range(partitions))
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        raise UserError("partitions: enter all, or numbers such as 0,2,5-7")
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), partitions) + 1))
    if not found or max(found) >= partitions:
        raise UserError(f"partitions: {topic} has the partitions 0 to {partitions - 1}")
    return tuple(TopicPartition(topic, index) for index in sorted(found))


def parse_rate(text: str) -> int | None:
    """Bytes a second; None for no limit."""
    if not text.strip():
        return None
    try:
        return parse_size(text.strip().lower().removesuffix("/s"))
    except ValueError as error:
        raise UserError(f"throttle: {error}") from None


# Carrying out


class MoveRun:
    """A plan that is being carried out. All pages of the cluster show it."""

    def __init__(
        self, cluster: Cluster, preview: Preview, throttle: int | None, by: str, ended: Callable[[], None]
    ) -> None:
        self.preview = preview
        self.by = by
        self.moved = 0
        self.total = len(preview.plan)
        self.error = ""
        self.notes: list[str] = []
        self.is_done = False
        self.stopping = threading.Event()
        self._ended = ended
        self._admin = ClusterAdmin(cluster)
        self.mover = Mover(
            self._admin,
            preview.cluster,
            throttle,
            report=self._report,
            note=self.notes.append,
            is_stopped=self.stopping.is_set,
        )

    def text(self, *, with_names: bool = True) -> str:
        """The state. Without names of topics and users, for those who may not see them."""
        moved = f"{self.moved:,} of {plural(self.total, 'partition')} moved"
        if self.error:
            state = "failed"
        elif self.is_done:
            state = "stopped" if self.stopping.is_set() else "done"
        else:
            state = "stopping, moves that were started are finished" if self.stopping.is_set() else "running"
        if not with_names:
            return f"A plan: {state}, {moved}."
        by = f", started by {self.by}" if self.by else ""
        more = " ".join((self.error, *self.notes[:_SHOWN_NOTES])).strip()
        return f"{self.preview.wish.words}{by}: {state}, {moved}. {more}".rstrip()

    def _report(self, moved: int, total: int) -> None:
        self.moved, self.total = moved, total

    def check(self) -> None:
        """UserError if the cluster is not as it was in the preview."""
        now = {each.topic_partition: each.replicas for each in self._admin.partitions()}
        for each in self.preview.plan:
            if now.get(TopicPartition(each.topic, each.partition)) != each.before:
                raise UserError(f"{each.topic}-{each.partition} has changed since the preview: preview again.")

    def run(self) -> None:
        try:
            drained = self.preview.wish.broker
            if drained is not None:
                self._admin.cordon(drained)
            self.mover.move(self.preview.plan)
            self._count_moved()
            if drained is not None and not self.stopping.is_set():
                self._move_new_replicas(drained)
        except WireError as error:
            self.error = str(error)
        except Exception:
            _log.exception("move_run_failed")
            self.error = "Internal error in the console: see the gateway's log."
        finally:
            self.is_done = True
            self._ended()

    def _count_moved(self) -> None:
        """A move that was cancelled is over too, and has moved nothing. Any broker may respond, so this waits a little
        for one that has the last changes."""
        deadline = time.monotonic() + _METADATA_TIMEOUT_SECONDS
        while True:
            now = {each.topic_partition: each.replicas for each in self._admin.partitions()}
            places = [(now.get(TopicPartition(each.topic, each.partition)), each) for each in self.preview.plan]
            self.moved, self.total = sum(found == each.replicas for found, each in places), len(places)
            if self.moved == self.total or time.monotonic() > deadline:
                return
            time.sleep(_POLL_INTERVAL_SECONDS)

    def _move_new_replicas(self, broker: int) -> None:
        """Those of topics that were created between the preview and the cordon."""
        known = {(each.topic, each.partition) for each in self.preview.plan}
        found = drain_plan(self._admin.read(), [broker])
        plan = [each for each in found if (each.topic, each.partition) not in known]
        if plan:
            moved, total = self.moved, self.total
            self.mover.move(plan)
            self.moved, self.total = moved + len(plan), total + len(plan)


_runs: dict[str, MoveRun] = {}
"""The last run of each cluster, by cluster id."""
_lock = threading.Lock()


def last_run(cluster_id: str) -> MoveRun | None:
    return _runs.get(cluster_id)


def start_run(words: str, run: MoveRun) -> None:
    """`words` are for the record of the action."""
    run.check()
    key = run.preview.cluster.cluster_id
    with _lock:
        current = _runs.get(key)
        if current is not None and not current.is_done:
            raise UserError(f"a plan is being carried out ({current.preview.wish.words}): wait for it, or stop it.")
        _runs[key] = run
    threading.Thread(target=run.run, name="console-moves", daemon=True).start()


def stop_run(words: str, run: MoveRun) -> None:
    run.stopping.set()


def cancel_moves(names: str, cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
    """The result has the partitions that were refused, each with the reason."""
    return ClusterAdmin(cluster).reassign(dict.fromkeys(partitions))


def change_throttle(rate: int, cluster: Cluster, run: MoveRun | None) -> None:
    """Limits the running moves, and the next ones of the run. 0 removes the limit."""
    admin = ClusterAdmin(cluster)
    brokers = [each.id for each in admin.describe().brokers if not each.fenced]
    is_running = run is not None and not run.is_done
    if rate:
        moves = {each.partition: senders_and_receivers(each) for each in admin.reassignments()}
        if run is not None and is_running:
            moves |= {
                TopicPartition(each.topic, each.partition): (each.before, each.adding) for each in run.preview.plan
            }
        if not moves:
            raise UserError("nothing is being moved. Enter the throttle of a new plan below.")
        set_throttle(admin, brokers, moves, rate)
    else:
        topics = list(dict.fromkeys(each.topic for each in admin.partitions()))
        remove_throttle(admin, brokers, throttled_topics(admin, topics))
    if run is not None and is_running:
        run.mover.throttle = rate or None  # it removes the limit at its end


# The end of a drained broker


def removable_broker(cluster: Cluster, number: int) -> Broker:
    """A broker that can be unregistered. UserError while it runs or has replicas: its partitions would lack them."""
    admin = ClusterAdmin(cluster)
    broker = next((each for each in admin.describe().brokers if each.id == number), None)
    if broker is None:
        raise UserError("it is not registered.")
    held = [each for each in admin.partitions() if number in each.replicas]
    if held:
        raise UserError(
            f"it has {plural(len(held), 'replica')}, for example of {held[0].topic_partition}. Drain it first."
        )
    if not broker.fenced:
        raise UserError("it has no replicas, but it runs. Stop its process, and wait until it is fenced.")
    return broker


def unregister_broker(number: int, cluster: Cluster) -> None:
    """Checks again: the broker may have been started since the user has confirmed."""
    removable_broker(cluster, number)
    ClusterAdmin(cluster).unregister(number)
