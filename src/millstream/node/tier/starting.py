"""Where a log continues that takes everything before from the tier: its epochs and producers, from the last object."""

from collections.abc import Awaitable, Callable

from millstream.node.storage.log.earlier_batches import add_batches
from millstream.node.storage.log.producer_snapshots import decode_snapshot
from millstream.node.storage.log.producer_state import ProducerState
from millstream.node.storage.log.tiered_part import TierStart
from millstream.node.tier.core import object_format
from millstream.node.tier.core.manifest import Manifest, TieredSegment
from millstream.node.tier.core.object_format import Tail


async def tier_start(tail_of: Callable[[TieredSegment], Awaitable[Tail]], manifest: Manifest) -> TierStart:
    """At the end of the tier, which has at least one segment."""
    last = manifest.readable[-1]
    tail = await tail_of(last)
    producers = ProducerState()
    if tail.footer.identity.end_offset == last.end_offset:  # else an unclean election has cut the segment
        producers = ProducerState(decode_snapshot(bytes(tail.parts[object_format.SNAPSHOT])))
        add_batches(producers, bytes(tail.parts[object_format.PRODUCERS]))
    entries = list(producers.entries.values())
    return TierStart(last.end_offset, manifest.log_start_offset, manifest.epochs(), entries)
