"""Controllers on in-memory quorums behind real listeners, and a broker that asks them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from millstream.config.broker_config import contact_limit_s
from millstream.config.loading import load_broker_config
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.controller_link import ControllerLink, Forwarding
from millstream.node.cluster.lifecycle import BrokerLifecycle, ControllerContact
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.cluster_handlers import ControllerRegistrationHandlers, ProducerIdHandlers
from millstream.node.controller.controller_apis import ControllerApis
from millstream.node.controller.heartbeats import Heartbeats
from millstream.node.controller.topic_handlers import TopicHandlers
from millstream.node.environment import Environment
from millstream.node.metadata.records import Endpoint
from millstream.node.quotas.mutations import ControllerMutations, MutationQuotas
from millstream.node.server.channel import Channel
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.listener import ConnectionLimits, Listener
from millstream.node.server.network import SocketNetwork
from millstream.node.server.request import Api, ApiVersions, Context, Response, api
from tests.unit.node.controller.bench import CLUSTER_ID, FakeQuorum, environment
from tests.waiting import TIMEOUT_SECONDS

QUICK = ("broker.heartbeat.interval.ms=200", "broker.session.timeout.ms=1500")


class Served:
    """Something that responds to requests at an address."""

    def __init__(self, name: str, apis: list[Api], environment: Environment) -> None:
        versions = ApiVersions(apis, lambda: ({}, {}, 0))
        self._listener = Listener(name, ConnectionLimits(), environment.network, environment.loop)
        self.address = self._listener.bind("127.0.0.1", 0)
        self._listener.serve(Dispatcher([*apis, api("api_versions", versions.handle)], environment.loop))

    def close(self) -> None:
        self._listener.close()


class ServedController:
    def __init__(self, quorum: FakeQuorum, environment: Environment) -> None:
        self.quorum = quorum
        config = load_broker_config(overrides=QUICK)
        self.active = ActiveController(config, quorum, quorum, environment, new_cluster_id=lambda: CLUSTER_ID)
        self.heartbeats = Heartbeats(self.active, environment)
        self.willing = asyncio.Event()
        """Cleared, it lets everyone wait."""
        self.willing.set()
        self.seen: list[str] = []
        self.heard = 0
        """Heartbeats that were responded to."""
        mutations = MutationQuotas(environment.loop.time, burst_seconds=11)
        topics = TopicHandlers(self.active, ControllerMutations(mutations, frozenset({"CONTROLLER"}), lambda _: True))
        self.apis = ControllerApis(
            self.active,
            {
                "create_topics": self._noted(topics.create_topics),
                "delete_topics": topics.delete_topics,
                "allocate_producer_ids": ProducerIdHandlers(self.active).allocate_producer_ids,
                "controller_registration": ControllerRegistrationHandlers(self.active).controller_registration,
                "broker_registration": self._noted(self.heartbeats.broker_registration),
                "broker_heartbeat": self._counted(self.heartbeats.broker_heartbeat),
                "unregister_broker": self.heartbeats.unregister_broker,
            },
        )
        self.served = Served("CONTROLLER", self.apis.table(), environment)

    def _noted(self, handler: Callable[[Any, Context], Awaitable[Any]]) -> Any:
        async def noted(request: Message, context: Context) -> Response:
            self.seen.append(context.client_id)
            await self.willing.wait()
            return await handler(request, context)

        return noted

    def _counted(self, handler: Callable[[Any, Context], Awaitable[Any]]) -> Any:
        async def counted(request: Message, context: Context) -> Response:
            response = await handler(request, context)
            self.heard += 1
            return response

        return counted

    def lead(self) -> None:
        self.quorum.is_leader = True
        self.active.leading(self.quorum.epoch)

    def resign(self) -> None:
        self.quorum.is_leader = False
        self.active.no_longer_leading()

    def close(self) -> None:
        self.active.no_longer_leading()
        self.heartbeats.close()
        self.served.close()


class World:
    """One controller that leads, and what a test adds. All nodes share one image: no one is ever behind."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.environment = environment(self.loop, SocketNetwork(self.loop))
        self.quorum = FakeQuorum(self.loop)
        self.controller = ServedController(self.quorum, self.environment)
        self.controller.lead()
        self.quorum.address = self.controller.served.address
        self.config = load_broker_config(overrides=QUICK)
        self.view = ClusterView(self.quorum, self.config)
        self.link = self.new_link()
        self.fatal: list[str] = []
        self._closing: list[Callable[[], None]] = [self.controller.close]

    def new_link(self, local: ControllerApis | None = None) -> ControllerLink:
        return ControllerLink(self.quorum, local, self.quorum, self.environment, client_id="broker-1")

    def broker(self) -> tuple[str, int]:
        """A broker's listener that passes requests on."""
        served = Served("PLAINTEXT", Forwarding(self.link, 1).table(), self.environment)
        self._closing.append(served.close)
        return served.address

    def channel(self, address: tuple[str, int]) -> Channel:
        channel = Channel(*address, self.environment.network, self.loop, client_id="client")
        self._closing.append(channel.close)
        return channel

    def lifecycle(
        self, *, link: ControllerLink | None = None, seed: int = 1, port: int | None = None, directory: int = 1
    ) -> BrokerLifecycle:
        self.environment.randomness.seed(seed)
        lifecycle = BrokerLifecycle(
            self.view,
            link or self.link,
            self.environment,
            ControllerContact(self.loop.time, lambda: contact_limit_s(self.config), self.loop.time),
            end_points=(Endpoint(name="PLAINTEXT", host="127.0.0.1", port=port or self.controller.served.address[1]),),
            log_dirs=lambda: [UUID(int=directory)],
            previous_broker_epoch=-1,
            on_fatal=self.fatal.append,
        )
        self._closing.append(lifecycle.close)
        return lifecycle

    def close(self) -> None:
        self.link.close()
        for close in reversed(self._closing):
            close()


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def go() -> None:
        world = World()
        try:
            await test(world)
        finally:
            world.close()
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(go(), TIMEOUT_SECONDS))
