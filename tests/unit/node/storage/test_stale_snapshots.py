"""Snapshots of producers that describe records which are gone: recovery goes by the log."""

from tests.unit.node.storage.batches import NOW
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.test_partition_log import append
from tests.unit.node.storage.transactional import write


def test_a_snapshot_of_what_was_cut_does_not_come_back(node: Node) -> None:
    """Removing a file is on stable storage only after the next flush: power may bring it back, and what it says is of
    records that were cut."""
    log = node.log()
    write(log, 1, 0, b"cut")
    log.roll(NOW)
    stale = node.file(1, ".snapshot").read_bytes()
    log.truncate_to(0)
    append(log, b"kept")
    node.kill()
    node.file(1, ".snapshot").write_bytes(stale)
    node.start()
    log = node.log()
    assert log.log_end_offset == 1
    assert log.open_transactions() == {}
    assert not log.producers.entries
