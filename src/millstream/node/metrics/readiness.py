"""Whether a node is ready: if clients or the quorum should be sent to it; if not, why."""

from millstream.node.metrics.subject import ObservedNode

_CLOSE_ENOUGH = 10_000
"""A node that has more committed metadata than this yet to act on would answer with things of the past."""


def why_not_ready(node: ObservedNode) -> str | None:
    """In one line; None when it is ready.

    A broker that serves stays ready while the quorum has no leader: it can still be written to and read, and were all
    brokers to say no at once, nobody could.
    """
    if node.is_stopping:
        return "stopping: what this node led goes to others"
    if node.offline is not None:
        return f"log directory offline: {node.offline.reason}; others take over until the disk works again"
    quorum = node.quorum
    if quorum is None or not quorum.is_started:
        return "starting: the metadata log is being opened"
    behind = quorum.high_watermark - quorum.published_offset
    if behind > _CLOSE_ENOUGH:
        return f"catching up: {behind} committed metadata records are yet to be applied"
    if not node.config.is_broker:
        return None if quorum.leader_id is not None else "no leader of the metadata quorum is known: start most voters"
    lifecycle = node.lifecycle
    if lifecycle is None or lifecycle.broker_epoch < 0:
        leader = "no leader of the metadata quorum is known" if quorum.leader_id is None else "waiting for its answer"
        return f"not registered with a controller yet: {leader}"
    if node.broker is None:
        return "registered: the metadata is being read up to the registration, and the logs are taken up"
    if lifecycle.is_fenced:
        return "fenced by the controller: it has not let this broker in yet, or has not heard of it in time"
    if not node.broker.view.serves_here:
        return "not fenced any more, but the metadata here does not say so yet"
    return None
