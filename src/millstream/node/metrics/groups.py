"""Metrics of groups and transactions with their coordinator on this node, and of share groups."""

from collections import Counter

from millstream.common.prometheus import Page, escaped, gauge
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices
from millstream.node.transactions.core.transaction import TransactionState

_AT = ("group", "topic", "partition")
GROUPS = gauge(
    "millstream_groups",
    "Groups with their coordinator on this node. type is classic, consumer, share or streams.",
    "type",
    "state",
)
MEMBERS = gauge("millstream_group_members", "Members of a group; reported by its coordinator.", "group", "type")
COMMITTED = gauge(
    "millstream_group_committed_offset", "The committed offset of a group; reported by its coordinator.", *_AT
)
LAG = gauge(
    "millstream_group_lag_records",
    "The high watermark minus the committed offset; reported by the group's coordinator. Absent while the partition's "
    "leader cannot be reached.",
    *_AT,
)
SHARE_BACKLOG = gauge(
    "millstream_share_group_backlog_records",
    "Records that a share group has not completed; reported by the partition's leader after a member has read from it.",
    *_AT,
)
SHARE_ACQUIRED = gauge(
    "millstream_share_group_acquired_records",
    "Records in flight in a share group; reported by the partition's leader.",
    *_AT,
)
TRANSACTIONS = gauge(
    "millstream_transactions", "Transactional ids with their coordinator on this node, by state.", "state"
)
OLDEST = gauge(
    "millstream_transaction_oldest_age_seconds",
    "The age of the oldest open transaction of this coordinator; 0 without one.",
)
_PER_TURN = 100


async def collect(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    broker = node.broker
    if broker is None:
        return
    states: Counter[tuple[str, str]] = Counter()
    for shard in broker.groups.loaded_shards():
        for group in list(shard.groups.values()):
            states[group.type, group.state_name] += 1
            page.add(MEMBERS, len(group.members), group.group_id, group.type)
        await turns.pause()
    for (kind, state), count in sorted(states.items()):
        page.add(GROUPS, count, kind, state)
    await _lags(node, page, turns)
    _share_groups(node, page)
    _transactions(node, page)


async def _lags(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    assert node.broker is not None
    await node.broker.group_lag.refresh(turns.pause)
    committed, lags = page.lines(COMMITTED), page.lines(LAG)
    for count, row in enumerate(node.broker.group_lag.rows()):
        if count % _PER_TURN == 0:
            await turns.pause()
        labels = f'{{group="{escaped(row.group_id)}",topic="{escaped(row.topic)}",partition="{row.partition}"}}'
        committed.append(f"{COMMITTED.name}{labels} {row.committed}\n")
        if row.records is not None:
            lags.append(f"{LAG.name}{labels} {row.records}\n")


def _share_groups(node: ObservedNode, page: Page) -> None:
    assert node.broker is not None
    for led in node.broker.shared.leaders():
        name, index = led.partition.topic_partition
        machine = led.machine
        backlog = led.partition.high_watermark - machine.start - machine.complete_count
        page.add(SHARE_BACKLOG, max(backlog, 0), led.key.group_id, name, str(index))
        page.add(SHARE_ACQUIRED, machine.locks, led.key.group_id, name, str(index))


def _transactions(node: ObservedNode, page: Page) -> None:
    assert node.broker is not None
    states: Counter[TransactionState] = Counter()
    oldest_ms = now_ms = node.environment.clock.now_ms()
    for transaction in node.broker.transactions.all_loaded():
        states[transaction.state] += 1
        if transaction.state is TransactionState.ONGOING:
            oldest_ms = min(oldest_ms, transaction.start_ms)
    for state, count in sorted(states.items()):
        page.add(TRANSACTIONS, count, state.label)
    page.add(OLDEST, (now_ms - oldest_ms) / 1000)


GROUP_SUBJECT = MetricsSubject(
    "groups", (GROUPS, MEMBERS, COMMITTED, LAG, SHARE_BACKLOG, SHARE_ACQUIRED, TRANSACTIONS, OLDEST), collect
)
