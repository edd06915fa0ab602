"""What is believed of metadata: a broker that lags behind does not bring back a leader of the past."""

from uuid import UUID

from millstream.raw_client.model import PartitionInfo, TopicInfo
from millstream.raw_client.routing import _newest


def topic(*leaders: tuple[int, int], topic_id: int = 1) -> TopicInfo:
    rows = [PartitionInfo(index, leader, epoch) for index, (leader, epoch) in enumerate(leaders)]
    return TopicInfo("t", UUID(int=topic_id), rows, is_internal=False)


def test_the_greater_epoch_stays() -> None:
    known, heard = topic((1, 5), (2, 3)), topic((3, 4), (1, 4), (2, 0))
    assert _newest(known, heard) == topic((1, 5), (1, 4), (2, 0))


def test_the_same_epoch_is_replaced() -> None:
    assert _newest(topic((1, 5)), topic((-1, 5))) == topic((-1, 5))


def test_a_topic_created_again_begins_again() -> None:
    assert _newest(topic((1, 5)), topic((2, 0), topic_id=2)) == topic((2, 0), topic_id=2)


def test_brokers_that_know_no_epochs() -> None:
    assert _newest(topic((1, -1)), topic((2, -1))) == topic((2, -1))
