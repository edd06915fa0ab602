"""The points of a backup: for each partition the offset where its records end in the backup; together a consistent cut.

- **Transactions.** For a moment no transaction is decided (`millstream.transaction.hold`), and those that are decided
  get all their markers. The points are taken then. So a transaction is committed in all of its partitions, or in none:
  those that are open are known to the transaction coordinator of the restored cluster, which aborts them.
- **Group offsets** are taken before the records: no group has an offset after the end of a partition.
- **Schemas and the state of transactions** are taken after the records that need them.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from millstream.admin.topics import ConfigChange, ConfigOperation, ConfigResource, TopicAdmin
from millstream.backup.blocking_store import BackupError
from millstream.config.table.transactions import LONGEST_HOLD_MS, TRANSACTION_HOLD
from millstream.node.metadata.topic_names import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from millstream.raw_client import EARLIEST, LATEST, Cluster, ErrorCode, RefusedError, TopicInfo, TopicPartition

SCHEMAS_TOPIC = "_schemas"
FIRST_HOLD_MS = 2000
_ENDING = ("PrepareCommit", "PrepareAbort")
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Points:
    taken_ms: int
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, UUID]
    held_s: float
    """For how long transactions waited."""


class _TooLateError(Exception):
    """The hold was over before all points were taken."""


def take_points(cluster: Cluster, first_hold_ms: int = FIRST_HOLD_MS) -> Points:
    hold_ms = first_hold_ms
    while True:
        topics = cluster.topics()
        try:
            return _take(cluster, topics, hold_ms)
        except _TooLateError as error:
            if hold_ms >= LONGEST_HOLD_MS:
                raise BackupError(f"the points of a backup could not be taken within {hold_ms} ms: {error}") from None
            hold_ms = min(4 * hold_ms, LONGEST_HOLD_MS)
            time.sleep(hold_ms / 1000)  # applications commit meanwhile


def _take(cluster: Cluster, topics: Mapping[str, TopicInfo], hold_ms: int) -> Points:
    every = {name: [TopicPartition(name, each.index) for each in info.partitions] for name, info in topics.items()}
    first = [at for name in (CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC) for at in every.pop(name, ())]
    last = [at for name in (SCHEMAS_TOPIC, TRANSACTION_STATE_TOPIC) for at in every.pop(name, ())]
    among = [at for rows in every.values() for at in rows]
    taken_ms = int(time.time() * 1000)
    starts = _offsets(cluster, [*first, *among, *last], EARLIEST)
    if TRANSACTION_STATE_TOPIC not in topics:
        ends = {at: offset for some in (first, among, last) for at, offset in _offsets(cluster, some, LATEST).items()}
        held_s = 0.0
    else:
        began_s = time.monotonic()
        with _decisions_held(cluster, hold_ms) as check_time:
            ends = {}
            for some in (first, among, last):
                ends |= _offsets(cluster, some, LATEST)
            check_time("the offsets of all partitions came too late")
        held_s = time.monotonic() - began_s
    return Points(taken_ms, starts, ends, {name: info.topic_id for name, info in topics.items()}, held_s)


def _offsets(cluster: Cluster, partitions: list[TopicPartition], time_: int) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    found = cluster.offsets(dict.fromkeys(partitions, time_), read_committed=False)
    return {at: each.offset for at, each in found.items()}


@contextmanager
def _decisions_held(cluster: Cluster, hold_ms: int) -> Iterator[Callable[[str], None]]:
    """No transaction is decided inside, and none is being ended. The function it yields raises if that was too long."""
    admin = TopicAdmin(cluster)
    value = f"{hold_ms}@{secrets.token_hex(6)}"
    began_s = time.monotonic()  # each broker counts from when it learns the value, which is later

    def check_time(reason: str) -> None:
        if time.monotonic() - began_s >= hold_ms / 1000:
            raise _TooLateError(reason)

    try:
        admin.change(ConfigResource.BROKER, "", [ConfigChange(TRANSACTION_HOLD.name, value)])
    except RefusedError as error:
        if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
            raise BackupError(
                f"the cluster does not support the setting {TRANSACTION_HOLD.name} ({error}): "
                "upgrade all its nodes first"
            ) from None
        raise
    try:
        for broker in cluster.brokers():
            while admin.setting(ConfigResource.BROKER, str(broker.node_id), TRANSACTION_HOLD.name).value != value:
                check_time(f"broker {broker.node_id} has not learned in time that transactions must wait")
                time.sleep(_PAUSE_SECONDS)
        while ending := _ending(cluster):
            check_time(f"the transaction of {ending!r} is still being ended")
            time.sleep(_PAUSE_SECONDS)
        yield check_time
    finally:
        admin.change(ConfigResource.BROKER, "", [ConfigChange(TRANSACTION_HOLD.name, None, ConfigOperation.DELETE)])


def _ending(cluster: Cluster) -> str | None:
    """A transactional id whose transaction was decided and has not all markers."""
    responses = cluster.call_every_broker(
        "list_transactions", state_filters=list(_ENDING), producer_id_filters=[], duration_filter=-1
    )
    for broker, response in responses.items():
        if response.error_code:
            raise BackupError(f"broker {broker} cannot list its transactions: {ErrorCode(response.error_code).name}")
        for row in response.transaction_states:
            return str(row.transactional_id)
    return None
