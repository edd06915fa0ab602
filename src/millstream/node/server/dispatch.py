"""From a frame to a response: header, version check, decoding, the handler, encoding.

Produce and fetch have their own codecs. A malformed request, or one of an API or version that is not offered, closes
its connection, as in Kafka. A bug in a handler is logged and closes the connection too: no response would be right.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from millstream.common.prometheus import REQUEST_SECONDS, Histogram
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol import fetch as fetch_codec
from millstream.formats.protocol import produce as produce_codec
from millstream.formats.protocol.primitives import MAX_TEXT_BYTES, Cursor, Locate, MalformedMessage, skip_tags
from millstream.formats.protocol.schema import Message, Schema, request_schema, response_schema
from millstream.formats.protocol.steps import is_long, read_in_steps, write_in_steps
from millstream.node.server.auditing import ADMINISTRATION, Auditor, NoAuditor
from millstream.node.server.long_requests import LONG_TURN_SECONDS, Turnstile, TurnWatch, is_split, most_items, respond
from millstream.node.server.request import (
    Api,
    Codec,
    Context,
    DataAuthorization,
    DeferredResults,
    FetchService,
    FetchTopics,
    LaterResponse,
    ListenerRules,
    ProduceResults,
    ProduceService,
    Refusals,
    Response,
)
from millstream.node.server.service import Parts, Peer, Pending, ReadPause, Refused
from millstream.node.server.throttling import (
    ClientThrottle,
    FetchThrottle,
    Throttling,
    throttle_peer,
    throttle_response,
)

PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1
API_VERSIONS_KEY: Final = 18
_MAX_REQUEST_BYTES: Final = 16 << 20
"""The limit for all APIs except Produce, which carries records."""
_MAX_BYTES_READ_AT_ONCE: Final = 8 << 10
"""Longer requests are read in steps (`formats/protocol/steps.py`). Their connection is not read meanwhile."""

_REQUEST_HEAD: Final = struct.Struct(">hhih")
_RESPONSE_HEAD: Final = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD: Final = struct.Struct(">iix")
"""With a zero: no tagged fields."""
_SIZE: Final = struct.Struct(">i")
_KEY: Final = struct.Struct(">h")
_log = logging.getLogger("millstream.broker")


class Dispatcher:
    """Handles the requests of all connections: finds the API, decodes, calls the handler, and encodes the response."""

    def __init__(
        self,
        apis: Iterable[Api],
        loop: asyncio.AbstractEventLoop,
        *,
        produce: ProduceService | None = None,
        fetch: FetchService | None = None,
        locate: Locate | None = None,
        stopwatch: Callable[[], float] | None = None,
        auditor: Auditor | None = None,
        authorization: DataAuthorization | None = None,
        rules: ListenerRules = ListenerRules(),
    ) -> None:
        """`locate` finds the endpoints of leaders, for clients that sent to another node. `stopwatch` measures the
        duration of requests, in seconds; the default is the loop's time."""
        self._apis = {api.key: api for api in apis}
        self._produce = produce
        self._fetch = fetch
        self._locate = locate
        self._auditor = auditor or NoAuditor()
        self._authorization = authorization
        self._rules = rules
        self._loop = loop
        # No BackgroundTasks: each request would pay for a second callback.
        self._tasks: set[asyncio.Future[Parts]] = set()
        self._now = stopwatch or loop.time
        self.turns = TurnWatch(self._now)
        self.turnstile = Turnstile()
        self.durations: dict[str, Histogram] = {}
        """From the whole request to its response, waits included, by API; only APIs that were requested."""
        self._produce_durations = self._durations_of("produce") if produce is not None else Histogram(())
        self._fetch_durations = self._durations_of("fetch") if fetch is not None else Histogram(())
        for name, service in (("produce", produce), ("fetch", fetch)):
            if service is not None:
                self.turns.expect(name)
        self.quotas: Throttling | None = None
        """None while there are no client quotas."""
        self.refused = 0
        """Requests that were malformed, or of an API or version that is not offered."""

    def _durations_of(self, name: str) -> Histogram:
        found = self.durations.get(name)
        if found is None:
            found = self.durations[name] = Histogram(REQUEST_SECONDS)
        return found

    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> Parts | Pending | None:
        begun = self._now()
        try:
            return self._handle(buffer, start, end, peer, begun)
        except MalformedMessage as error:
            self.refused += 1
            raise Refused(str(error)) from None
        except Refused:
            self.refused += 1
            raise
        except Exception:
            self.refused += 1
            _log.exception("handler_failed peer=%s:%d", peer.host, peer.port)
            raise Refused("internal error, see the log") from None
        finally:
            if self._now() - begun > LONG_TURN_SECONDS:
                self.turns.ended(begun, self._name(buffer, start), peer)

    def _name(self, buffer: bytearray, start: int) -> str:
        (key,) = _KEY.unpack_from(buffer, start)
        if key in (PRODUCE_KEY, FETCH_KEY):
            return "produce" if key == PRODUCE_KEY else "fetch"
        api = self._apis.get(key)
        return "unknown" if api is None else api.name

    def _handle(self, buffer: bytearray, start: int, end: int, peer: Peer, begun: float) -> Parts | Pending | None:
        if peer.authentication is not None:
            response = peer.authentication.handle(buffer, start, end)
            if response is not None:
                return response
        if end - start < _REQUEST_HEAD.size:
            raise Refused("frame is shorter than a request header")
        head: tuple[int, int, int, int] = _REQUEST_HEAD.unpack_from(buffer, start)
        key, version, correlation_id, length = head
        position = start + _REQUEST_HEAD.size
        if length > 0:
            position += length
        if position > end:
            raise Refused("client id runs past the end of the request")
        client: ClientThrottle | None = None
        if self.quotas is not None and not (peer.broker_claim and self._rules.is_broker(peer)):
            client = self.quotas.client(peer, bytes(buffer[position - max(length, 0) : position]))
        if key == PRODUCE_KEY and version >= produce_codec.FIRST_VERSION and self._produce is not None:
            by_broker = peer.broker_claim != "" and self._rules.is_broker(peer)
            return self._handle_produce(
                self._produce, buffer, position, end, version, correlation_id, peer, by_broker, begun, client
            )
        if key == FETCH_KEY and self._fetch is not None:
            return self._handle_fetch(self._fetch, buffer, position, end, version, correlation_id, peer, begun, client)
        api = self._apis.get(key)
        if api is None or api.handler is None:
            raise Refused(f"API key {key} is not offered")
        if key in self._rules.hidden and self._rules.hides(key, peer):
            raise Refused(f"{api.name} is for brokers; listener {peer.listener} is for clients")
        if end - start > _MAX_REQUEST_BYTES:
            raise Refused(f"{api.name} request of {end - start} bytes; the limit is {_MAX_REQUEST_BYTES}")
        client_id = _text(buffer, position - max(length, 0), position)
        if not api.first_version <= version <= api.last_version:
            if key != API_VERSIONS_KEY:
                raise Refused(f"{api.name} version {version} is not offered")
            # Every client can read version 0, so the response with the supported versions is in that version.
            return self._call(api, bytearray(), 0, 0, 0, correlation_id, Context(-1, client_id, peer), client)
        frame = bytes(buffer[start:end]) if api.with_frame else b""
        context = Context(version, client_id, peer, frame)
        return self._call(api, buffer, position, end, version, correlation_id, context, client)

    # Produce and fetch

    def _handle_produce(
        self,
        produce: ProduceService,
        buffer: bytearray,
        position: int,
        end: int,
        version: int,
        correlation_id: int,
        peer: Peer,
        by_broker: bool,
        begun: float,
        client: ClientThrottle | None,
    ) -> Parts | Pending | None:
        if version > produce_codec.LAST_VERSION:
            raise Refused(f"produce version {version} is not offered")
        flexible = version >= produce_codec.FIRST_FLEXIBLE
        if flexible:
            position = _skip_header_tags(buffer, position, end)
        request = produce_codec.parse(buffer, position, end, version)
        if self._authorization is None:
            results, wait = produce.append(request, version, buffer, by_broker=by_broker)
        else:
            request, refused = self._authorization.produce(request, version, peer)
            results, wait = produce.append(request, version, buffer, by_broker=by_broker)
            if refused:
                results, wait = [*results, *refused], _with_refusals(wait, refused)
        throttle_ms = 0
        if client is not None:
            # Counted at once, not with the response: requests that are pipelined must not pass before it is known.
            throttle_ms = max(client.produced(end - position), client.worked(self._now() - begun))
            throttle_peer(peer, throttle_ms)
        if request.acks == 0:
            if isinstance(wait, DeferredResults):
                return self._produce_without_response(wait, begun, peer)
            _refuse_failed(results)
            self._produce_durations.observe(self._now() - begun)
            return None
        if wait is not None:
            pending = Pending()

            def deliver(final: ProduceResults) -> None:
                self._produce_durations.observe(self._now() - begun)
                pending.is_last = _is_leader_unknown(final)
                pending.resolve(self._produce_response(final, version, flexible, correlation_id, peer, throttle_ms))

            wait(deliver)
            if isinstance(wait, DeferredResults):
                pending.read_pause = wait.read_pause
            return pending
        response = self._produce_response(results, version, flexible, correlation_id, peer, throttle_ms)
        self._produce_durations.observe(self._now() - begun)
        return response

    def _produce_without_response(self, wait: DeferredResults, begun: float, peer: Peer) -> Pending:
        pending = Pending()
        pending.read_pause = wait.read_pause

        def taken(final: ProduceResults) -> None:
            self._produce_durations.observe(self._now() - begun)
            try:
                _refuse_failed(final)
            except Refused as refusal:
                self.refused += 1
                _log.warning("request_refused peer=%s:%d reason=%s", peer.host, peer.port, refusal)
                pending.fail()
            else:
                pending.resolve(None)

        wait(taken)
        return pending

    def _handle_fetch(
        self,
        fetch: FetchService,
        buffer: bytearray,
        position: int,
        end: int,
        version: int,
        correlation_id: int,
        peer: Peer,
        begun: float,
        client: ClientThrottle | None,
    ) -> Parts | Pending:
        if not fetch_codec.FIRST_VERSION <= version <= fetch_codec.LAST_VERSION:
            raise Refused(f"fetch version {version} is not offered")
        if end - position > _MAX_REQUEST_BYTES:
            raise Refused(f"fetch request of {end - position} bytes; the limit is {_MAX_REQUEST_BYTES}")
        flexible = version >= fetch_codec.FIRST_FLEXIBLE
        if flexible:
            position = _skip_header_tags(buffer, position, end)
        request = fetch_codec.parse(buffer, position, end, version)
        refusals: Refusals | None = None
        if self._authorization is not None:
            refusals = self._authorization.fetch(request, version, peer)
        elif request.replica_id >= 0 and peer.listener in self._rules.client_listeners:
            raise Refused(f"a fetch as broker {request.replica_id}; listener {peer.listener} is for clients")
        pending = Pending()
        durations = self._fetch_durations if request.replica_id < 0 else self._durations_of("fetch_follower")
        throttle = None
        if client is not None and request.replica_id < 0:
            throttle = FetchThrottle(client, peer, self._now, begun)
            throttle.limit(request)

        def deliver(topics: FetchTopics, error: int, session_id: int) -> None:
            throttle_ms = 0 if throttle is None else throttle.ended()
            parts = fetch_codec.ResponseParts(_head(correlation_id, flexible))
            fetch_codec.encode_response(
                parts,
                topics,
                version,
                error=error,
                session_id=session_id,
                throttle_ms=throttle_ms,
                locate=self._locate,
                listener=peer.listener,
            )
            _SIZE.pack_into(parts.head, 0, parts.finish() - 4)
            durations.observe(self._now() - begun)
            pending.resolve(parts.parts)  # type: ignore[arg-type]

        waiting = fetch.fetch(request, version, deliver, refusals, None if throttle is None else throttle.admits)
        if throttle is not None:
            throttle.arrived()
        if waiting is not None and not pending.resolved:
            pending.on_abandon = waiting.give_up
        return pending

    def _produce_response(
        self,
        results: ProduceResults,
        version: int,
        flexible: bool,
        correlation_id: int,
        peer: Peer,
        throttle_ms: int,
    ) -> Parts:
        out = _head(correlation_id, flexible)
        produce_codec.encode_response(out, results, version, throttle_ms, self._locate, peer.listener)
        _SIZE.pack_into(out, 0, len(out) - 4)
        return (out,)

    # Everything else

    def _call(
        self,
        api: Api,
        buffer: bytearray,
        position: int,
        end: int,
        version: int,
        correlation_id: int,
        context: Context,
        client: ClientThrottle | None,
    ) -> Parts | Pending:
        assert api.handler is not None
        begun = self._now()
        if end - position > _MAX_BYTES_READ_AT_ONCE:
            return self._call_in_steps(
                api, bytes(buffer[position:end]), version, correlation_id, context, begun, client
            )
        if context.version < 0:
            request = request_schema(api.name).root.new()
        else:
            cursor = _cursor(api.name, buffer, position, end, version)
            codec = api.codec
            request = request_schema(api.name).read(cursor, version) if codec is None else codec.read(cursor, version)
        response = self._respond(api, request, context)
        if isinstance(response, LaterResponse):
            return self._resolved_later(api, response, version, correlation_id, context.peer, begun, client)
        if not isinstance(response, Awaitable):
            if not is_long(response):
                encoded = encode_response(api.name, response, version, correlation_id)
                self._durations_of(api.name).observe(self._now() - begun)
                if client is not None:
                    throttle_response(api.name, version, encoded, context.peer, client, self._now() - begun)
                return encoded
            response = _already_there(response)
        read_pause = ReadPause() if is_split(api.name, request) else None
        work = self._encoded(api.name, response, version, correlation_id)
        return self._later(api, work, context, version, begun, read_pause, client, awaited=response)

    def _resolved_later(
        self,
        api: Api,
        response: LaterResponse,
        version: int,
        correlation_id: int,
        peer: Peer,
        begun: float,
        client: ClientThrottle | None,
    ) -> Pending:
        """The response without a task. It is encoded at once: a request with many rows is handled in parts."""
        pending = Pending()
        worked = 0.0 if client is None else self._now() - begun

        def deliver(given: Response) -> None:
            if pending.abandoned:
                return
            try:
                encoded = encode_response(api.name, given, version, correlation_id, api.codec)
            except Exception:
                _log.exception("handler_failed api=%s", api.name)
                pending.fail()
                return
            self._durations_of(api.name).observe(self._now() - begun)
            if client is not None:
                throttle_response(api.name, version, encoded, peer, client, worked)
            pending.resolve(encoded)

        response.when_resolved(deliver)
        return pending

    def _call_in_steps(
        self,
        api: Api,
        body: bytes,
        version: int,
        correlation_id: int,
        context: Context,
        begun: float,
        client: ClientThrottle | None,
    ) -> Pending:
        read_pause = ReadPause()

        async def work() -> Parts:
            cursor = _cursor(api.name, body, 0, len(body), version)
            request = await self.turnstile.through(read_in_steps(request_schema(api.name), cursor, version))
            if not is_split(api.name, request):
                read_pause.end()  # the handler keeps the order of later requests
            response = self._respond(api, request, context)
            if not isinstance(response, Awaitable):
                response = _already_there(response)
            return await self._encoded(api.name, response, version, correlation_id)

        return self._later(api, work(), context, version, begun, read_pause, client)

    def _respond(self, api: Api, request: Message, context: Context) -> "Response | Awaitable[Response]":
        assert api.handler is not None
        if api.with_frame:  # forwarded whole; the controller splits it
            response = api.handler(request, context)
        else:
            response = respond(api.name, api.handler, request, context, self.turnstile)
        if api.name in ADMINISTRATION and self._auditor.is_enabled:
            return self._audited(api.name, request, context, response)
        return response

    async def _audited(
        self, api: str, request: Message, context: Context, response: "Response | Awaitable[Response]"
    ) -> Response:
        """The response, recorded by the auditor."""
        result = await response if isinstance(response, Awaitable) else response
        shown = response_schema(api).decode(result, context.version) if isinstance(result, bytes) else result
        context.peer.client_id = context.client_id
        self._auditor.administration(context.peer, api, request, shown)
        return result

    async def _encoded(self, api: str, response: Awaitable[Response], version: int, correlation_id: int) -> Parts:
        return await encode_in_turns(api, await response, version, correlation_id, self.turnstile)

    def _later(
        self,
        api: Api,
        work: Coroutine[Any, Any, Parts],
        context: Context,
        version: int,
        begun: float,
        read_pause: ReadPause | None,
        client: ClientThrottle | None,
        *,
        awaited: object = None,
    ) -> Pending:
        """The response of a task. The connection is not read during the read pause, if there is one. `awaited` is what
        `work` awaits first."""
        pending, peer = Pending(), context.peer
        pending.read_pause = read_pause
        watched = self.turns.over(work, api.name, peer, awaited)
        task = asyncio.ensure_future(watched, loop=self._loop)
        self._tasks.add(task)

        def finished(done: "asyncio.Future[Parts]") -> None:
            self._tasks.discard(done)
            if done.cancelled():
                return
            self._durations_of(api.name).observe(self._now() - begun)
            error = done.exception()
            if isinstance(error, MalformedMessage | Refused):
                self.refused += 1
                _log.warning("request_refused peer=%s:%d reason=%s", peer.host, peer.port, error)
            elif error is not None:
                _log.error("handler_failed api=%s", api.name, exc_info=error)
            if not pending.abandoned:
                if error is not None:
                    pending.fail()
                else:
                    if client is not None:
                        throttle_response(api.name, version, done.result(), peer, client, watched.seconds)
                    pending.resolve(done.result())
            if read_pause is not None and not read_pause.is_over:
                read_pause.end()

        task.add_done_callback(finished)
        return pending


async def _already_there(response: Response) -> Response:
    return response


def _cursor(api: str, buffer: bytes | bytearray, position: int, end: int, version: int) -> Cursor:
    """A cursor at the body of a request, after the tagged fields of its header.

    Bytes after the message are ignored, as in Kafka: librdkafka sends some when it requests all topics.
    """
    if request_schema(api).is_flexible(version):
        position = _skip_header_tags(buffer, position, end)
    return Cursor(buffer, position, end, most_items=most_items(api), longest_text=MAX_TEXT_BYTES)


def _with_refusals(
    wait: Callable[[Callable[[ProduceResults], None]], None] | None, refused: ProduceResults
) -> Callable[[Callable[[ProduceResults], None]], None] | None:
    """Delivers the results of refused topics with the others."""
    if wait is None:
        return None
    if isinstance(wait, DeferredResults):
        return _ResultsWithRefusals(wait, refused)
    return lambda deliver: wait(lambda final: deliver([*final, *refused]))


class _ResultsWithRefusals(DeferredResults):
    """The results of a held request, together with those of the topics that were refused before."""

    __slots__ = ("_held", "_refused")

    def __init__(self, held: DeferredResults, refused: ProduceResults) -> None:
        super().__init__()
        self.read_pause = held.read_pause
        self._held = held
        self._refused = refused

    def __call__(self, deliver: Callable[[ProduceResults], None]) -> None:
        self._held(lambda final: deliver([*final, *self._refused]))


def _refuse_failed(results: ProduceResults) -> None:
    """With acks=0 there is no response: a closed connection is the only way to report an error, as in Kafka."""
    for _, rows in results:
        for row in rows:
            if row.error:
                raise Refused(f"produce with acks=0 failed: {ErrorCode(row.error).name}: {row.message}")


def _is_leader_unknown(results: ProduceResults) -> bool:
    """Whether this node lost the leadership of a partition and does not know the new leader.

    librdkafka is often connected to this node alone, and would request metadata from it again and again. After the
    connection is closed it requests metadata from other nodes too.
    """
    return any(
        row.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and row.current_leader is None
        for _, rows in results
        for row in rows
    )


def _text(buffer: bytearray, start: int, end: int) -> str:
    return bytes(buffer[start:end]).decode(errors="replace")


def _skip_header_tags(buffer: bytes | bytearray, position: int, end: int) -> int:
    if position >= end:
        raise Refused("request ends in its header")
    if not buffer[position]:
        return position + 1
    try:
        return skip_tags(buffer, position, end)
    except IndexError:
        raise Refused("request ends in its header") from None


def _head(correlation_id: int, flexible: bool) -> bytearray:
    layout = _FLEXIBLE_RESPONSE_HEAD if flexible else _RESPONSE_HEAD
    return bytearray(layout.pack(0, correlation_id))


def _response_head(schema: Schema, version: int, correlation_id: int) -> bytearray:
    # ApiVersions always has the old response header: the client does not know the supported versions yet.
    return _head(correlation_id, schema.is_flexible(version) and schema.api_key != API_VERSIONS_KEY)


async def encode_in_turns(api: str, values: Response, version: int, correlation_id: int, turnstile: Turnstile) -> Parts:
    """As `encode_response`; a long response is encoded in steps."""
    if not isinstance(values, Mapping) or not is_long(values):
        return encode_response(api, values, version, correlation_id)
    schema = response_schema(api)
    out = _response_head(schema, version, correlation_id)
    await turnstile.through(write_in_steps(schema, out, values, version))
    _SIZE.pack_into(out, 0, len(out) - 4)
    return (out,)


def encode_response(api: str, values: Response, version: int, correlation_id: int, codec: Codec | None = None) -> Parts:
    """The frame of a response, with its size."""
    schema = response_schema(api)
    out = _response_head(schema, version, correlation_id)
    if isinstance(values, bytes):
        out += values
    elif not isinstance(values, Mapping):
        parts = fetch_codec.ResponseParts(out)
        values.encode(parts, version)
        _SIZE.pack_into(out, 0, parts.finish() - 4)
        return parts.parts  # type: ignore[return-value]
    elif codec is None:
        schema.write(out, values, version)
    else:
        codec.write(out, values, version)
    _SIZE.pack_into(out, 0, len(out) - 4)
    return (out,)
