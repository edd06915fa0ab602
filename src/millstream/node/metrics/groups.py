"""Groups that this node coordinates, share groups whose partitions it leads, and transactions it coordinates."""

from collections import Counter

from millstream.node.metrics.exposition import Page, escaped, gauge
from millstream.node.metrics.observed_node import ObservedNode, Subject, Turns
from millstream.node.transactions.core.transaction import TransactionState

_AT = ("group", "topic", "partition")
GROUPS = gauge("millstream_groups", "Groups coordinated here; type is classic, consumer or share.", "type", "state")
MEMBERS = gauge("millstream_group_members", "Members of a group; told by its coordinator.", "group", "type")
COMMITTED = gauge("millstream_group_committed_offset", "Where a group goes on reading; told by its coordinator.", *_AT)
LAG = gauge(
    "millstream_group_lag_records",
    "Committed records that a group has not committed to have read; told by its coordinator. Absent while the "
    "partition's leader cannot be asked.",
    *_AT,
)
SHARE_BACKLOG = gauge(
    "millstream_share_group_backlog_records",
    "Records that a share group has not done with; told by the partition's leader once a member reads there.",
    *_AT,
)
SHARE_ACQUIRED = gauge(
    "millstream_share_group_acquired_records", "Records that members of a share group hold; told by the same.", *_AT
)
TRANSACTIONS = gauge(
    "millstream_transactions", "Transactional ids coordinated here, by Kafka's name of the state.", "state"
)
OLDEST = gauge(
    "millstream_transaction_oldest_age_seconds",
    "How long the oldest transaction that is open here has been; 0 without one.",
)
_PER_TURN = 100


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
    broker = node.broker
    if broker is None:
        return
    states: Counter[tuple[str, str]] = Counter()
    for shard in broker.groups.shards_at_hand():
        for group in list(shard.groups.values()):
            states[group.type, group.state_name] += 1
            page.add(MEMBERS, len(group.members), group.group_id, group.type)
        await turns.pause()
    for (kind, state), count in sorted(states.items()):
        page.add(GROUPS, count, kind, state)
    await _lags(node, page, turns)
    _share_groups(node, page)
    _transactions(node, page)


async def _lags(node: ObservedNode, page: Page, turns: Turns) -> None:
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
    for led in node.broker.shared.led():
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


GROUP_SUBJECT = Subject(
    "groups", (GROUPS, MEMBERS, COMMITTED, LAG, SHARE_BACKLOG, SHARE_ACQUIRED, TRANSACTIONS, OLDEST), collect
)
