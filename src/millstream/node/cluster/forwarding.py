"""Client requests that only the active controller can answer, passed on to it and answered with its bytes."""

from millstream.formats.model.errors import KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.controller_link import DEFAULT_TIMEOUT_S, ControllerLink
from millstream.node.controller.controller_apis import FORWARDED_APIS, refuse
from millstream.node.server.request import Api, Context, Response, api

_SLACK_S = 0.5
"""The client is told in time that it took too long: before it gives up by itself."""


class Forwarding:
    def __init__(self, link: ControllerLink) -> None:
        self._link = link

    def table(self) -> list[Api]:
        return [self._forwarded(name) for name in FORWARDED_APIS]

    def _forwarded(self, name: str) -> Api:
        async def forward(request: Message, context: Context) -> Response:
            try:
                return await self._link.forward(name, request, context, timeout_s=_patience_s(request))
            except KafkaError as error:
                return refuse(name, request, error)

        return api(name, forward, with_frame=True)


def _patience_s(request: Message) -> float:
    timeout_ms = getattr(request, "timeout_ms", 0)
    if timeout_ms <= 0:
        return DEFAULT_TIMEOUT_S
    return min(DEFAULT_TIMEOUT_S, max(timeout_ms / 1000 - _SLACK_S, 1.0))
