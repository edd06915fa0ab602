"""Asking the active controller, wherever it is: over real sockets, with a lead that moves."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.controller.served import ServedController, World, run
from tests.waiting import TIMEOUT_SECONDS, until_async


def one_topic(name: str) -> NewTopic:
    return NewTopic(name=name, partition_count=2, replication_factor=1, configs={"retention.ms": "1000"})


async def with_broker(world: World) -> None:
    lifecycle = world.lifecycle()
    lifecycle.start()
    lifecycle.initialized()
    await lifecycle.serving


@pytest.fixture
def nobody() -> Iterator[tuple[str, int]]:
    """An address that refuses connections: bound, but it does not listen, and no other process gets the port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield "127.0.0.1", bound.getsockname()[1]


def test_topics_are_created_by_the_controller_and_seen_here() -> None:
    async def test(world: World) -> None:
        await with_broker(world)
        made, again = await world.link.create_topics([one_topic("a")]), await world.link.create_topics([one_topic("a")])
        assert made[0].error is ErrorCode.NONE and made[0].partition_count == 2
        assert again[0].error is ErrorCode.TOPIC_ALREADY_EXISTS
        topic = world.view.image.topics[TopicName("a")]
        assert topic.id == made[0].topic_id
        assert world.view.image.topic_config("a") == {"retention.ms": "1000"}

    run(test)


def test_the_controller_in_this_process_is_asked_without_the_wire(nobody: tuple[str, int]) -> None:
    async def test(world: World) -> None:
        await with_broker(world)
        world.quorum.address = nobody
        link = world.new_link(world.controller.apis)
        (made,) = await link.create_topics([one_topic("a")])
        assert made.error is ErrorCode.NONE

    run(test)


def test_a_request_follows_the_lead() -> None:
    async def test(world: World) -> None:
        await with_broker(world)
        other = ServedController(world.quorum, world.environment)
        other.active.leading(1)
        world.controller.active.no_longer_leading()  # it says so, and the link does not know yet
        before = len(world.controller.seen)
        asked = asyncio.ensure_future(world.link.create_topics([one_topic("a")]))
        await until_async(lambda: len(world.controller.seen) > before)  # which refuses it
        assert not asked.done()
        world.quorum.address = other.served.address
        world.link.leader_changed()
        (made,) = await asked
        assert made.error is ErrorCode.NONE
        assert other.seen and TopicName("a") in world.quorum.image.topics
        other.close()

    run(test)


def test_a_controller_that_hangs_is_left_as_soon_as_there_is_another() -> None:
    async def test(world: World) -> None:
        await with_broker(world)
        world.controller.willing.clear()
        before = len(world.controller.seen)
        asked = asyncio.ensure_future(world.link.create_topics([one_topic("a")]))
        await until_async(lambda: len(world.controller.seen) > before)  # it has the request, and hangs
        other = ServedController(world.quorum, world.environment)
        other.active.leading(1)
        world.quorum.address = other.served.address
        world.link.leader_changed()
        (made,) = await asked
        assert made.error is ErrorCode.NONE
        world.controller.willing.set()
        other.close()

    run(test)


@pytest.mark.parametrize("known", [True, False])
def test_without_a_controller_time_runs_out(known: bool, nobody: tuple[str, int]) -> None:
    async def test(world: World) -> None:
        world.quorum.address = nobody if known else None
        with pytest.raises(KafkaError) as caught:
            await world.link.request("allocate_producer_ids", {"broker_id": 1, "broker_epoch": 1}, timeout_s=0.3)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT

    run(test)


def test_a_controller_that_comes_back_responds_to_waiting_requests() -> None:
    async def test(world: World) -> None:
        await with_broker(world)
        address, world.quorum.address = world.quorum.address, None
        asked = asyncio.ensure_future(world.link.create_topics([one_topic("a")]))
        await asyncio.sleep(0.1)
        world.quorum.address = address
        world.link.leader_changed()
        (made,) = await asked
        assert made.error is ErrorCode.NONE

    run(test)


@pytest.mark.parametrize("version", range(2, 8))
def test_a_client_asks_any_broker_and_hears_the_controller(version: int) -> None:
    async def test(world: World) -> None:
        await with_broker(world)
        client = world.channel(world.broker())
        fields = {"topics": [{"name": "a", "num_partitions": 3, "replication_factor": 1}], "timeout_ms": 5000}
        response = await client.request("create_topics", fields, timeout_s=TIMEOUT_SECONDS, version=version)
        assert [(row.name, row.error_code) for row in response.topics] == [("a", 0)]
        assert len(world.quorum.image.topics[TopicName("a")].partitions) == 3
        assert world.controller.seen[-1] == "client", "the request keeps its client id inside the envelope"

    run(test)


def test_a_client_hears_that_there_is_no_controller() -> None:
    async def test(world: World) -> None:
        client = world.channel(world.broker())
        world.quorum.address = None
        fields = {"topics": [{"name": "a", "num_partitions": 3, "replication_factor": 1}], "timeout_ms": 200}
        response = await client.request("create_topics", fields, timeout_s=TIMEOUT_SECONDS)
        assert [row.error_code for row in response.topics] == [ErrorCode.REQUEST_TIMED_OUT]
        assert "controller" in response.topics[0].error_message

    run(test)


def test_an_envelope_holds_only_what_clients_may_ask() -> None:
    async def test(world: World) -> None:
        controller = world.channel(world.controller.served.address)
        for data in (b"", b"\0" * 7, b"\0\x3f\0\0\0\0\0\0\xff\xff\0", b"\0\x13\0\x63\0\0\0\0\xff\xff"):
            response = await controller.request(
                "envelope",
                {"request_data": data, "request_principal": None, "client_host_address": bytes(4)},
                timeout_s=TIMEOUT_SECONDS,
            )
            assert response.error_code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION)
        world.controller.resign()
        response = await controller.request(
            "envelope",
            {"request_data": b"", "request_principal": None, "client_host_address": b""},
            timeout_s=TIMEOUT_SECONDS,
        )
        assert response.error_code == ErrorCode.NOT_CONTROLLER

    run(test)


def test_a_controller_that_does_not_lead_says_so_for_each_topic() -> None:
    async def test(world: World) -> None:
        world.controller.resign()
        controller = world.channel(world.controller.served.address)
        response = await controller.request(
            "create_topics", {"topics": [{"name": "a"}, {"name": "b"}]}, timeout_s=TIMEOUT_SECONDS
        )
        assert [row.error_code for row in response.topics] == [ErrorCode.NOT_CONTROLLER] * 2

    run(test)


def test_a_refusal_reads_the_same_from_here_and_from_afar() -> None:
    async def test(world: World) -> None:
        for local in (None, world.controller.apis):
            response = await world.new_link(local).request("allocate_producer_ids", {"broker_id": 9, "broker_epoch": 9})
            assert response.error_code in (ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH)

    run(test)
