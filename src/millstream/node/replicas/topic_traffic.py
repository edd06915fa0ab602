"""What has happened to one topic on this node, counted where it happens; `metrics/` shows it.

One object for all partitions of a topic here: it stays when single ones move away, so that no counter ever falls.
"""


class TopicTraffic:
    __slots__ = (
        "isr_expands",
        "isr_shrinks",
        "received_bytes",
        "received_records",
        "replica_received_bytes",
        "replica_sent_bytes",
        "sent_bytes",
        "sent_records",
    )

    def __init__(self) -> None:
        self.received_bytes = 0
        """Appended here as leader, by whomever; batches that were sent twice count once."""
        self.received_records = 0
        self.sent_bytes = 0
        """To consumers and members of share groups."""
        self.sent_records = 0
        self.replica_received_bytes = 0
        """Copied from the leader."""
        self.replica_sent_bytes = 0
        """Copied by followers."""
        self.isr_shrinks = 0
        """In-sync sets of partitions led here that lost a member, whoever found out."""
        self.isr_expands = 0
