"""A broker's life in the cluster, over real sockets to a real controller on an in-memory quorum."""

import asyncio

import pytest

from millstream.formats.model.identifiers import BrokerId
from millstream.node.cluster.controller_registration import ControllerRegistration
from millstream.node.metadata.records import Endpoint
from tests.unit.node.controller.bench import CLUSTER_ID
from tests.unit.node.controller.served import World, run
from tests.waiting import until_async


async def heartbeats(world: World, count: int) -> None:
    """Waits for so many more of them."""
    wanted = world.controller.heard + count
    await until_async(lambda: world.controller.heard >= wanted)


@pytest.mark.parametrize("is_local", [False, True])
def test_a_controller_registers_each_time_it_starts(is_local: bool) -> None:
    """KIP-919: the active controller too, and again if another process took its id."""

    async def test(world: World) -> None:
        def start(port: int) -> ControllerRegistration:
            link = world.new_link(world.controller.apis if is_local else None)
            at = Endpoint(name="CONTROLLER", host="h", port=port)
            made = ControllerRegistration(3, link, world.quorum, world.environment, (at,), on_fatal=pytest.fail)
            made.start()
            return made

        def port() -> int:
            found = world.view.image.controllers.get(3)
            return -1 if found is None else found.end_points[0].port

        first = start(1)
        await until_async(lambda: port() == 1)
        assert {each.name for each in world.view.image.controllers[3].features} >= {"metadata.version", "kraft.version"}
        first.close()
        second = start(2)
        await until_async(lambda: port() == 2)
        second.close()

    run(test)


def test_of_two_controllers_with_one_id_the_second_ends() -> None:
    async def test(world: World) -> None:
        ended: list[tuple[int, str]] = []

        def start(port: int) -> ControllerRegistration:
            at = Endpoint(name="CONTROLLER", host="h", port=port)
            made = ControllerRegistration(
                3,
                world.new_link(None),
                world.quorum,
                world.environment,
                (at,),
                on_fatal=lambda message: ended.append((port, message)),
            )
            made.start()
            return made

        first = start(1)
        await until_async(lambda: 3 in world.view.image.controllers)
        second = start(2)
        await until_async(lambda: bool(ended))
        await until_async(lambda: world.view.image.controllers[3].end_points[0].port == 1)
        assert [port for port, _ in ended] == [2]
        assert "node.id=3 (at h:1)" in ended[0][1] and "its own node.id" in ended[0][1]
        first.close()
        second.close()

    run(test)


def test_a_broker_registers_and_serves() -> None:
    async def test(world: World) -> None:
        lifecycle = world.lifecycle()
        lifecycle.start()
        lifecycle.initialized()
        await lifecycle.serving
        broker = world.view.image.brokers[BrokerId(1)]
        assert not broker.fenced and broker.epoch == lifecycle.broker_epoch == world.view.broker_epoch
        assert not lifecycle.is_fenced

    run(test)


def test_a_broker_that_is_not_able_yet_stays_fenced() -> None:
    async def test(world: World) -> None:
        lifecycle = world.lifecycle()
        lifecycle.start()
        await lifecycle.registered
        await heartbeats(world, 3)
        assert world.view.image.brokers[BrokerId(1)].fenced and not lifecycle.serving.done()
        lifecycle.initialized()
        await lifecycle.serving

    run(test)


def test_heartbeats_keep_it_in_the_cluster() -> None:
    async def test(world: World) -> None:
        lifecycle = world.lifecycle()
        lifecycle.start()
        lifecycle.initialized()
        await lifecycle.serving
        begun = world.loop.time()
        await until_async(lambda: world.loop.time() - begun > 2.0)  # longer than a session
        await heartbeats(world, 1)
        assert not world.view.image.brokers[BrokerId(1)].fenced

    run(test)


def test_it_waits_for_the_cluster_to_have_an_id_and_a_leader() -> None:
    async def test(world: World) -> None:
        address, world.quorum.address = world.quorum.address, None
        lifecycle = world.lifecycle()
        lifecycle.start()
        lifecycle.initialized()
        await asyncio.sleep(0.2)
        assert not lifecycle.registered.done()
        world.quorum.address = address
        world.link.leader_changed()
        await lifecycle.serving
        assert world.view.image.cluster_id == CLUSTER_ID

    run(test)


@pytest.mark.parametrize("is_local", [False, True])
def test_a_registration_that_was_removed_is_made_again(is_local: bool) -> None:
    async def test(world: World) -> None:
        lifecycle = world.lifecycle(link=world.new_link(world.controller.apis if is_local else None))
        lifecycle.start()
        lifecycle.initialized()
        await lifecycle.serving
        first = lifecycle.broker_epoch
        await world.link.request("unregister_broker", {"broker_id": 1})
        await until_async(lambda: world.view.broker_epoch > first and not world.view.image.brokers[BrokerId(1)].fenced)
        assert lifecycle.broker_epoch > first
        assert not world.fatal

    run(test)


def test_a_second_broker_with_the_same_number_ends_with_one_line() -> None:
    async def test(world: World) -> None:
        lifecycle = world.lifecycle()
        lifecycle.start()
        lifecycle.initialized()
        await lifecycle.serving
        other_link = world.new_link()
        second = world.lifecycle(link=other_link, seed=2, directory=2)
        second.start()
        await until_async(lambda: bool(world.fatal))
        assert len(world.fatal) == 1
        assert "node.id=1" in world.fatal[0] and "\n" not in world.fatal[0]
        assert not world.view.image.brokers[BrokerId(1)].fenced
        other_link.close()

    run(test)


def test_one_of_another_cluster_ends_with_one_line() -> None:
    async def test(world: World) -> None:
        lifecycle = world.lifecycle()
        introduction = lifecycle._introduction
        lifecycle._introduction = lambda: {**introduction(), "cluster_id": "another"}  # type: ignore[method-assign]
        lifecycle.start()
        await until_async(lambda: bool(world.fatal))
        assert "cluster" in world.fatal[0]

    run(test)


def test_the_last_broker_stops_without_asking() -> None:
    async def test(world: World) -> None:
        lifecycle = world.lifecycle()
        lifecycle.start()
        lifecycle.initialized()
        await lifecycle.serving
        await lifecycle.shut_down(10)
        assert not world.view.image.brokers[BrokerId(1)].in_controlled_shutdown

    run(test)


def test_a_process_whose_place_another_has_taken_ends_at_once() -> None:
    """One that hung for a session: it must not lead or follow in the other's name, not for a moment."""

    async def test(world: World) -> None:
        first = world.lifecycle()
        first.start()
        first.initialized()
        await first.serving
        assert first._task is not None
        first._task.cancel()  # it hangs
        second = world.lifecycle(link=world.new_link(), seed=2, directory=2)
        second.start()
        await second.registered
        await until_async(lambda: world.view.image.brokers[BrokerId(1)].epoch == second.broker_epoch)
        assert first.broker_epoch < second.broker_epoch
        assert world.fatal and "another process" in world.fatal[0]

    run(test)
