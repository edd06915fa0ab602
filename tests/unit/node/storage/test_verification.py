"""Who is being verified: what a marker takes away, whatever the version of those who asked before."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from tests.unit.node.storage.conftest import Node
from tests.unit.node.storage.transactional import abort, write


@pytest.mark.parametrize("later_epoch", [False, True])
def test_a_client_that_goes_back_to_an_earlier_version(node: Node, later_epoch: bool) -> None:
    """A marker of transaction version 1 has the epoch of its transaction, and ends what is verified under it."""
    log = node.log()
    log.begin_verification(7, 3, 0, bumps_epoch=True)  # came to nothing
    epoch = 4 if later_epoch else 3
    guard = log.begin_verification(7, epoch, 0, bumps_epoch=False)
    abort(log, 7, epoch=epoch, version=1)
    with pytest.raises(KafkaError) as refused:
        write(log, 7, 0, b"late", epoch=epoch, guard=guard, needs_guard=True)
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE
    assert log.open_transactions() == {}


def test_a_client_that_goes_on_with_a_later_version(node: Node) -> None:
    """It was told of the end before the marker came, and begins its next transaction under the marker's epoch."""
    log = node.log()
    log.begin_verification(7, 3, 0, bumps_epoch=False)
    guard = log.begin_verification(7, 4, 0, bumps_epoch=True)
    abort(log, 7, epoch=4, version=2)
    assert write(log, 7, 0, b"next", epoch=4, guard=guard, needs_guard=True) == 1
