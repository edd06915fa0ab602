"""Taking note of batches that were just written to the end of a log, whatever they are: a leader's, or a marker.

Either all of it is noted or, where a file has no room for its part, the batches are taken back: without the entry of an
aborted transaction its records would be shown, and an epoch that no file knows would be another's after a restart.
"""

import logging
from typing import TYPE_CHECKING

from millstream.formats.records.batch import CONTROL_BIT, LOG_OVERHEAD, TRANSACTIONAL_BIT
from millstream.node.storage.index.transaction_index import AbortedTransaction
from millstream.node.storage.log.batch_admission import Header
from millstream.node.storage.log.producer_snapshots import note_batch

if TYPE_CHECKING:
    from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.storage")


def note_written(log: "PartitionLog", headers: list[Header], batches: memoryview) -> None:
    """Move the end of the log behind the batches, which lie at the end of the active segment. An OSError leaves the log
    as it was before they were written."""
    first_offset = log.log_end_offset
    try:
        aborted = _note(log, headers, batches)
        if aborted:
            log.segments.active.aborted.append(aborted)
    except OSError as error:
        _log.error("append_taken_back partition=%s offset=%d error=%s", log.topic_partition, first_offset, error)
        log.truncate_to(first_offset)
        raise


def _note(log: "PartitionLog", headers: list[Header], batches: memoryview) -> list[AbortedTransaction]:
    segment, interval_bytes = log.segments.active, log.config.index_interval_bytes
    position = 0
    aborted = []
    for header in headers:
        base_offset, length, epoch = header[:3]
        last_offset = base_offset + header[6]
        size = length + LOG_OVERHEAD
        if epoch > log.epochs.latest:
            log.begin_epoch(epoch, base_offset)
        if base_offset != log.log_end_offset:
            segment.forget_tail()  # its table finds offsets only where there are no gaps
        segment.note(base_offset, last_offset, size, header[8], interval_bytes)
        log.log_end_offset = last_offset + 1
        found = note_batch(log.producers, header, batches[position : position + size])
        if found is not None:
            aborted.append(found)
        if header[5] & TRANSACTIONAL_BIT and log.verifications:
            if header[5] & CONTROL_BIT:
                log.verifications.end_before(header[9], header[10])
            else:
                log.verifications.end(header[9])
        position += size
    if log.producers.transactions:
        _ = log.first_unstable_offset  # forgets those whose end is committed by now, where nobody else asks
    return aborted
