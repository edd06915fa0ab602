"""Topics: what goes in and out of them on this node, and how their in-sync sets change."""

from operator import attrgetter

from millstream.node.metrics.exposition import Page, counter, escaped
from millstream.node.metrics.subject import ObservedNode, Subject, Turns

RECEIVED_BYTES = counter(
    "millstream_topic_received_bytes_total", "Bytes of record batches appended here as leader.", "topic"
)
RECEIVED_RECORDS = counter("millstream_topic_received_records_total", "Records appended here as leader.", "topic")
SENT_BYTES = counter(
    "millstream_topic_sent_bytes_total",
    "Bytes of record batches sent to consumers and members of share groups.",
    "topic",
)
SENT_RECORDS = counter(
    "millstream_topic_sent_records_total",
    "Records sent to them, by offsets: batches are not opened, so where an answer ends in the middle of a segment this "
    "is its share of the segment's records, and gaps that compaction left are counted.",
    "topic",
)
REPLICA_RECEIVED_BYTES = counter(
    "millstream_topic_replica_received_bytes_total", "Bytes copied from other leaders, as follower.", "topic"
)
REPLICA_SENT_BYTES = counter(
    "millstream_topic_replica_sent_bytes_total", "Bytes copied by followers, from here.", "topic"
)
ISR_SHRINKS = counter(
    "millstream_isr_shrinks_total", "In-sync sets of partitions led here that lost a member.", "topic"
)
ISR_EXPANDS = counter("millstream_isr_expands_total", "In-sync sets of partitions led here that gained one.", "topic")
_FIELDS = {
    RECEIVED_BYTES: "received_bytes",
    RECEIVED_RECORDS: "received_records",
    SENT_BYTES: "sent_bytes",
    SENT_RECORDS: "sent_records",
    REPLICA_RECEIVED_BYTES: "replica_received_bytes",
    REPLICA_SENT_BYTES: "replica_sent_bytes",
    ISR_SHRINKS: "isr_shrinks",
    ISR_EXPANDS: "isr_expands",
}
_PER_TURN = 50


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
    if node.broker is None:
        return
    columns = [(page.lines(family), family.name, attrgetter(field)) for family, field in _FIELDS.items()]
    for count, (name, traffic) in enumerate(sorted(node.broker.partitions.traffic.items())):
        label = escaped(name.decode())
        for lines, family, value in columns:
            lines.append(f'{family}{{topic="{label}"}} {value(traffic)}\n')
        if count % _PER_TURN == 0:
            await turns.pause()


TOPICS = Subject("topics", tuple(_FIELDS), collect)
