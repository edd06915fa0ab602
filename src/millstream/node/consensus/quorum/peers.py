"""Connections to the other nodes of the quorum, by address: one exchange per request."""

import logging
from collections.abc import Callable, Iterable

from millstream.common.background_tasks import BackgroundTasks
from millstream.node.consensus.quorum.wire import read_response, request_fields
from millstream.node.consensus.raft.messages import Fetch, Peer, PeerResponse, Send
from millstream.node.consensus.raft.voter_set import Endpoint
from millstream.node.environment import Environment
from millstream.node.server.channel import Channel

_log = logging.getLogger("millstream.quorum")

Responded = Callable[[Send, PeerResponse], None]
Failed = Callable[[Send, bool], None]
"""The second argument: whether the address refused the connection, so the process does not run."""


class Peers:
    def __init__(
        self,
        node_id: int,
        listener_name: str,
        request_timeout_ms: int,
        environment: Environment,
        *,
        responded: Responded,
        failed: Failed,
    ) -> None:
        self._node_id = node_id
        self._listener_name = listener_name
        self._request_timeout_ms = request_timeout_ms
        self._environment = environment
        self._responded = responded
        self._failed = failed
        self._channels: dict[tuple[str, int, bool], Channel] = {}
        self._exchanges = BackgroundTasks()

    def send(self, send: Send) -> None:
        """Exactly one of `responded` and `failed` is called later, unless this is closed before."""
        self._exchanges.start(self._exchange(send), loop=self._environment.loop)

    async def settle(self, timeout_s: float) -> None:
        """Waits a moment for exchanges in flight."""
        await self._exchanges.wait(timeout_s)

    def close(self) -> None:
        self._exchanges.cancel()
        for channel in self._channels.values():
            channel.close()

    async def supported_features(self, host: str, port: int, *, timeout_s: float) -> dict[str, tuple[int, int]]:
        """The supported features of the node at an address, by ApiVersions; OSError if it does not respond."""
        channel = self._new_channel(host, port)
        try:
            fields = {"client_software_name": "millstream", "client_software_version": "node"}
            response = await channel.request("api_versions", fields, timeout_s=timeout_s)
        finally:
            channel.close()
        return {each.name: (each.min_version, each.max_version) for each in response.supported_features}

    def address_of(self, endpoints: Iterable[Endpoint]) -> tuple[str, int]:
        """Of several listeners, the one with the name of this node's listener."""
        by_name = {each.name: each for each in endpoints}
        chosen = by_name.get(self._listener_name) or next(iter(by_name.values()))
        return chosen.host, chosen.port

    async def _exchange(self, send: Send) -> None:
        request = send.request
        timeout_ms = self._request_timeout_ms
        if isinstance(request, Fetch):
            timeout_ms += request.max_wait_ms
        try:
            api, fields = request_fields(request)
            channel = self._channel(send.peer, is_fetch=isinstance(request, Fetch))
            message = await channel.request(api, fields, timeout_s=timeout_ms / 1000)
            response = read_response(request, message, self._listener_name)
        except OSError as error:
            _log.debug("request_failed node=%d to=%d error=%s", self._node_id, send.peer.id, error)
            self._failed(send, isinstance(error, ConnectionRefusedError))
        except Exception:
            _log.exception("request_failed node=%d to=%d request=%s", self._node_id, send.peer.id, type(request))
            self._failed(send, False)
        else:
            self._responded(send, response)

    def _channel(self, peer: Peer, *, is_fetch: bool) -> Channel:
        """Fetches are parked by the leader, and responses come in order: so other requests have another connection."""
        if not peer.endpoints:
            raise ConnectionError(f"no address of node {peer.id} is known")
        host, port = self.address_of(peer.endpoints)
        channel = self._channels.get((host, port, is_fetch))
        if channel is None:
            channel = self._channels[host, port, is_fetch] = self._new_channel(host, port)
        return channel

    def _new_channel(self, host: str, port: int) -> Channel:
        environment = self._environment
        return Channel(
            host,
            port,
            environment.controller_network,
            environment.loop,
            client_id=f"quorum-{self._node_id}",
            login=environment.controller_login,
        )
