"""The last batches of each producer, which a snapshot in Kafka's format does not have: it has one batch per producer.

A producer that has several requests in flight when a node stops sends them all again. The node must know each of them,
or it would refuse one as out of order. They are found in the log before the snapshot, unless that part of the log was
moved to the tier: then they are in this file, and in the tier's objects. The file also says from which offset on the
log is on the disk, so that recovery does not take the missing beginning for damage.
"""

import json
from collections.abc import Iterable

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import DamagedFileError
from millstream.node.storage.log.producer_state import (
    REMEMBERED_BATCHES,
    ProducerEntry,
    ProducerState,
    WrittenBatch,
)

EARLIER_BATCHES = "tiered-producers-checkpoint"


def encode_batches(entries: Iterable[ProducerEntry], offset: int) -> bytes:
    rows = [
        [entry.producer_id, entry.epoch, [list(batch) for batch in entry.batches]]
        for entry in entries
        if len(entry.batches) > 1
    ]
    return json.dumps({"version": 1, "offset": offset, "producers": rows}, separators=(",", ":")).encode()


def add_batches(producers: ProducerState, data: bytes) -> None:
    """Add batches to producers that have fewer than are remembered."""
    try:
        rows = json.loads(data)["producers"]
        for producer_id, epoch, batches in rows:
            entry = producers.entries.get(producer_id)
            if entry is None or entry.epoch != epoch or not entry.batches:
                continue
            first = entry.batches[0][2]
            before = [WrittenBatch(*batch) for batch in batches if batch[2] < first]
            entry.batches = [*before, *entry.batches][-REMEMBERED_BATCHES:]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"the last batches of producers cannot be read: {error}") from error


def read_batches_file(disk: Disk, directory: str, producers: ProducerState) -> None:
    """Add the batches in the file of a tiered log, if there is one."""
    path = f"{directory}/{EARLIER_BATCHES}"
    if disk.exists(path):
        try:
            add_batches(producers, disk.read_bytes(path))
        except DamagedFileError:
            pass  # as without it: a producer may have to begin a new epoch


def write_batches_file(disk: Disk, directory: str, producers: ProducerState, offset: int) -> None:
    """Write the file, to stable storage: from now on segments before `offset` may be missing. May block."""
    disk.write_atomically(f"{directory}/{EARLIER_BATCHES}", encode_batches(producers.entries.values(), offset))


def tiered_up_to(disk: Disk, directory: str) -> int:
    """Up to which offset segments may be missing because they are in the tier."""
    path = f"{directory}/{EARLIER_BATCHES}"
    if not disk.exists(path):
        return 0
    try:
        return int(json.loads(disk.read_bytes(path))["offset"])
    except (ValueError, KeyError, TypeError):
        return 0
