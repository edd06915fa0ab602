"""Proposals on their way to the controller: together, in turn, and again until they are settled."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.protocol.schema import Message, response_schema
from millstream.node.replicas import isr_changes
from millstream.node.replicas.core.leader import Confirmed, NextStep, Proposal
from millstream.node.replicas.isr_changes import IsrChanges
from millstream.node.runtime.real_environment import real_environment
from tests.waiting import TIMEOUT_SECONDS


class Link:
    """The controller: responds by the next of its reactions, with success when there are no more."""

    def __init__(self) -> None:
        self.asked: list[dict[tuple[UUID, int], list[int]]] = []
        self.reactions: list[Exception | int] = []
        self.row_errors: list[int] = []

    async def request(self, api: str, fields: Mapping[str, Any]) -> Message:
        assert api == "alter_partition" and fields["broker_id"] == 1 and fields["broker_epoch"] == 10
        await asyncio.sleep(0)
        asked = {
            (topic["topic_id"], row["partition_index"]): row["new_isr"]
            for topic in fields["topics"]
            for row in topic["partitions"]
        }
        self.asked.append(asked)
        reaction = self.reactions.pop(0) if self.reactions else 0
        if isinstance(reaction, Exception):
            raise reaction
        topics = [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": self.row_errors.pop(0) if self.row_errors else 0,
                        "leader_epoch": 5,
                        "isr": isr,
                        "partition_epoch": 8,
                    }
                ],
            }
            for (topic_id, index), isr in asked.items()
        ]
        schema = response_schema("alter_partition")
        return schema.decode(schema.encode({"error_code": reaction, "topics": topics}, 3), 3)


class Partition:
    def __init__(self, number: int) -> None:
        self.topic_id = UUID(int=number)
        self.topic_partition = TopicPartition(TopicName(f"t{number}"), 0)
        self.responses: list[tuple[int, Confirmed | None]] = []

    def on_proposal_response(self, proposal: Proposal, error: int, confirmed: Confirmed | None) -> NextStep:
        self.responses.append((error, confirmed))
        return NextStep.SEND_AGAIN if error == ErrorCode.REQUEST_TIMED_OUT else NextStep.NOTHING


PROPOSAL = Proposal(((1, 10), (2, 20)), 5, 7)


def run(link: Link, partitions: list[Partition], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_changes, "RETRY_SECONDS", 0.001)

    async def main() -> None:
        changes = IsrChanges(link, 1, lambda: 10, real_environment(asyncio.get_running_loop()))
        for partition in partitions:
            changes.submit(partition, PROPOSAL)  # type: ignore[arg-type]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not all(each.responses and not each.responses[-1][0] for each in partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        changes.close()

    asyncio.run(main())


def test_all_that_wait_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    link, partitions = Link(), [Partition(number) for number in range(3)]
    run(link, partitions, monkeypatch)
    (asked,) = link.asked
    assert asked == {(partition.topic_id, 0): [1, 2] for partition in partitions}
    assert all(partition.responses == [(0, Confirmed(5, 8, (1, 2)))] for partition in partitions)


@pytest.mark.parametrize(
    "reaction", [KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody there"), ErrorCode.STALE_BROKER_EPOCH]
)
def test_requests_without_a_response_are_repeated(reaction: KafkaError | int, monkeypatch: pytest.MonkeyPatch) -> None:
    link, partition = Link(), Partition(1)
    link.reactions = [reaction, reaction]
    run(link, [partition], monkeypatch)
    assert len(link.asked) == 3
    assert [error for error, _ in partition.responses] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT, 0]


def test_only_what_is_not_settled_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    link, partitions = Link(), [Partition(1), Partition(2)]
    link.row_errors = [0, ErrorCode.REQUEST_TIMED_OUT]
    run(link, partitions, monkeypatch)
    assert list(link.asked[1]) == [(partitions[1].topic_id, 0)]


def test_a_fault_on_the_way_does_not_leave_a_proposal_in_flight_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    link, partition = Link(), Partition(1)
    link.reactions = [RuntimeError("a bug")]
    run(link, [partition], monkeypatch)
    assert len(link.asked) == 2
    assert [error for error, _ in partition.responses] == [0]
