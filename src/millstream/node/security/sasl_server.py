"""The authentication of connections to a SASL listener: frames in, responses out, with limits and delays.

Before a client is authenticated, only ApiVersions, SaslHandshake and SaslAuthenticate are served; anything else closes
the connection. Frames are small, and their number is limited. The response to a failure is delayed, without holding up
other connections. The rules are in `core/sasl.py`; credentials come from the metadata and from settings.

As in Kafka 4, a handshake of version 0 is followed by messages without a request header.
"""

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable, Mapping

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.access_control import GROUP, Principal
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import MAX_TEXT_BYTES, Cursor, MalformedMessage, skip_tags
from millstream.formats.protocol.schema import Message, request_schema
from millstream.formats.protocol.wire_types import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from millstream.node.environment import Environment
from millstream.node.security.core.sasl import (
    Authenticated,
    AuthenticationError,
    Challenge,
    IllegalStateError,
    Mechanism,
    SaslConversation,
    Stage,
    session_lifetime_ms,
)
from millstream.node.server.dispatch import API_VERSIONS_KEY, encode_response
from millstream.node.server.limits import LogThrottle
from millstream.node.server.request import Api, Context, api
from millstream.node.server.service import Parts, Peer, Pending, ReadPause, Refused

SASL_HANDSHAKE_KEY, SASL_AUTHENTICATE_KEY = 17, 36
_REQUEST_HEAD = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_MAX_DELAYED = 2000
"""Failed connections that wait for their response. More are closed at once, without a response."""
_LOGIN_TIMEOUT_SECONDS = 30.0
_LONGEST_NAME_IN_LOG = 100
_log = logging.getLogger("millstream.security")
_log.addFilter(LogThrottle())


@dataclass(frozen=True, slots=True)
class SaslRules:
    """The SASL settings of a listener."""

    mechanisms: Mapping[str, Callable[[], Mechanism]]
    """The enabled mechanisms; each call begins a login."""
    max_reauth_ms: Mapping[str, int]
    """`connections.max.reauth.ms` by mechanism."""
    max_receive_bytes: int
    failure_delay_s: float


class SaslCounts:
    """What happened on the SASL listeners of a node, for metrics. Keys are (listener, mechanism)."""

    def __init__(self) -> None:
        self.succeeded: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.repeated: Counter[tuple[str, str]] = Counter()
        """Successful re-authentications."""
        self.expired: Counter[tuple[str, str]] = Counter()
        """Connections that were used after the end of their session, and closed."""
        self.delayed = 0
        """Failed connections that wait for their response now."""


class SaslGate:
    """The authentication of one connection."""

    def __init__(self, peer: Peer, rules: SaslRules, counts: SaslCounts, environment: Environment) -> None:
        self._peer = peer
        self._rules = rules
        self._counts = counts
        self._environment = environment
        self._loop = environment.loop
        self._conversation = SaslConversation(rules.mechanisms)
        self._requested_mechanism = ""
        self._is_busy = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_authenticated(self) -> bool:
        return self._conversation.who is not None

    @property
    def is_current(self) -> bool:
        ends_at_s = self._conversation.ends_at_s
        is_over = ends_at_s is not None and self._loop.time() > ends_at_s
        return self._conversation.stage is Stage.AUTHENTICATED and not is_over and not self._is_busy

    def frame_limits(self, largest: int) -> tuple[int, int]:
        if self._conversation.stage is Stage.AUTHENTICATED:
            return _REQUEST_HEAD.size - 2, largest
        return 0 if self._conversation.is_raw else _REQUEST_HEAD.size - 2, min(largest, self._rules.max_receive_bytes)

    def handle(self, buffer: bytearray, start: int, end: int) -> Parts | Pending | None:
        conversation = self._conversation
        if self._is_busy:
            raise Refused("a request came before the response to the last SASL message")
        if conversation.stage is Stage.AUTHENTICATED and not self._begins_again(buffer, start, end):
            return None
        if end - start > self._rules.max_receive_bytes:
            raise Refused(f"a request of {end - start} bytes; the limit is sasl.server.max.receive.size")
        if conversation.is_raw and conversation.stage is Stage.EXCHANGE:
            return self._authenticate(bytes(buffer[start:end]), _raw_response, _no_response)
        head = _head(buffer, start, end)
        try:
            return self._request(head, buffer, end)
        except IllegalStateError as error:
            self._note_failure(str(error))
            if head.key == SASL_HANDSHAKE_KEY and head.version in (0, 1):
                return self._last(_handshake_response(head, ErrorCode.ILLEGAL_SASL_STATE, self._rules))
            raise Refused(f"SASL: {error}") from None

    def _begins_again(self, buffer: bytearray, start: int, end: int) -> bool:
        """Whether this request of an authenticated client begins a re-authentication. Refuses expired sessions."""
        conversation, now_s = self._conversation, self._loop.time()
        if _head(buffer, start, end).key == SASL_HANDSHAKE_KEY and conversation.may_repeat(now_s):
            return True
        if conversation.ends_at_s is not None and now_s > conversation.ends_at_s:
            self._counts.expired[self._peer.listener, conversation.mechanism] += 1
            raise Refused("the session has expired: the client must authenticate again (connections.max.reauth.ms)")
        return False

    def _request(self, head: "_Head", buffer: bytearray, end: int) -> Parts | Pending | None:
        conversation = self._conversation
        if head.key == API_VERSIONS_KEY:
            conversation.api_versions()
            return None
        if head.key == SASL_HANDSHAKE_KEY and head.version in (0, 1):
            return self._handshake(head, _body("sasl_handshake", head, buffer, end).mechanism)
        if head.key == SASL_AUTHENTICATE_KEY and head.version in (0, 1, 2) and conversation.stage is Stage.EXCHANGE:
            token = bytes(_body("sasl_authenticate", head, buffer, end).auth_bytes)

            def succeeded(result: Challenge | Authenticated, lifetime_ms: int) -> Parts:
                return encode_response(
                    "sasl_authenticate",
                    {"error_message": None, "auth_bytes": result.data, "session_lifetime_ms": lifetime_ms},
                    head.version,
                    head.correlation_id,
                )

            def failed(reason: str) -> Parts:
                error = {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": reason, "auth_bytes": b""}
                return encode_response("sasl_authenticate", error, head.version, head.correlation_id)

            return self._authenticate(token, succeeded, failed)
        raise conversation.refuse(f"API {head.key} version {head.version} is not allowed {conversation.stage.value}")

    def _handshake(self, head: "_Head", mechanism: str) -> Parts | Pending:
        self._requested_mechanism = mechanism if mechanism in self._rules.mechanisms else "unsupported"
        if self._conversation.handshake(mechanism, is_raw=head.version == 0, now_s=self._loop.time()):
            return _handshake_response(head, ErrorCode.NONE, self._rules)
        self._note_failure(f"the mechanism {mechanism[:_LONGEST_NAME_IN_LOG]!r} is not enabled")
        return self._last(_handshake_response(head, ErrorCode.UNSUPPORTED_SASL_MECHANISM, self._rules))

    # Messages of a mechanism

    def _authenticate(
        self,
        token: bytes,
        succeeded: Callable[[Challenge | Authenticated, int], Parts],
        failed: Callable[[str], Parts | None],
    ) -> Pending:
        pending = Pending()
        pending.read_pause = ReadPause()
        self._is_busy = True

        async def work() -> None:
            try:
                async with asyncio.timeout(_LOGIN_TIMEOUT_SECONDS):
                    result = await self._conversation.step(token)
            except AuthenticationError as error:
                self._note_failure(str(error.__cause__ or error))
                self._resolve_late(pending, failed(str(error) if error.is_public else self._general_error()))
                return
            except Exception as error:
                if not isinstance(error, TimeoutError | IllegalStateError):
                    _log.exception("authentication_broke peer=%s:%d", self._peer.host, self._peer.port)
                self._note_failure(f"{type(error).__name__}: {error}")
                self._resolve_late(pending, failed(self._general_error()))
                return
            lifetime_ms = 0
            if isinstance(result, Authenticated):
                lifetime_ms = self._accept(result)
            self._is_busy = False
            if not pending.abandoned:
                pending.resolve(succeeded(result, lifetime_ms))
            assert pending.read_pause is not None
            pending.read_pause.end()

        self._task = self._loop.create_task(work())
        pending.on_abandon = self._closed
        return pending

    def _general_error(self) -> str:
        """The error of a failed login. It does not say whether the user exists."""
        what = "re-authentication" if self._conversation.is_repeated else "authentication"
        mechanism = self._requested_mechanism
        return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {mechanism}"

    def _accept(self, result: Authenticated) -> int:
        """The client is authenticated; returns the lifetime of its session in milliseconds, 0 without an end."""
        peer, conversation = self._peer, self._conversation
        key = peer.listener, conversation.mechanism
        limit_ms = self._rules.max_reauth_ms.get(conversation.mechanism, 0)
        lifetime_ms = session_lifetime_ms(result.expires_at_ms, limit_ms, self._environment.clock.now_ms())
        conversation.ends_at_s = None if lifetime_ms is None else self._loop.time() + lifetime_ms / 1000
        peer.principal = Principal(result.kind, result.user)
        peer.groups = tuple(Principal(GROUP, name) for name in result.groups)
        peer.token_authenticated = result.by_token
        self._environment.auditor.authentication(peer, conversation.mechanism, succeeded=True)
        (self._counts.repeated if conversation.is_repeated else self._counts.succeeded)[key] += 1
        _log.debug("authenticated peer=%s:%d principal=%s mechanism=%s", peer.host, peer.port, peer.principal, key[1])
        if lifetime_ms is None:
            peer.authentication = None  # nothing left to check: later requests do not come here
        return lifetime_ms or 0

    # Failures

    def _note_failure(self, reason: str) -> None:
        peer = self._peer
        self._counts.failed[peer.listener, self._requested_mechanism or "none"] += 1
        self._environment.auditor.authentication(
            peer, self._requested_mechanism or "none", succeeded=False, reason=reason[:300]
        )
        _log.warning(
            "authentication_failed peer=%s:%d listener=%s mechanism=%s reason=%s",
            peer.host, peer.port, peer.listener, self._requested_mechanism or "none", reason[:300],
        )  # fmt: skip

    def _last(self, parts: Parts) -> Pending:
        pending = Pending()
        pending.read_pause = ReadPause()  # never over: the connection is not read any more
        self._is_busy = True
        self._resolve_late(pending, parts)
        return pending

    def _resolve_late(self, pending: Pending, parts: Parts | None) -> None:
        """Sends the response after the delay, and closes the connection."""
        counts = self._counts
        if pending.abandoned:
            return
        if counts.delayed >= _MAX_DELAYED:
            self._loop.call_soon(_end, pending, None)
            return
        counts.delayed += 1

        def due() -> None:
            counts.delayed -= 1
            pending.on_abandon = None
            _end(pending, parts)

        timer = self._loop.call_later(self._rules.failure_delay_s, due)

        def abandon() -> None:
            counts.delayed -= 1
            timer.cancel()

        pending.on_abandon = abandon

    def _closed(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()


class ClosedGate:
    """Refuses every request: on a node that cannot know its users, because its disk has failed."""

    is_authenticated = False
    is_current = False

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def frame_limits(self, largest: int) -> tuple[int, int]:
        return _REQUEST_HEAD.size - 2, largest

    def handle(self, buffer: bytearray, start: int, end: int) -> Parts | Pending | None:
        raise Refused(f"listener {self._peer.listener} needs SASL, and this node is offline: its disk has failed")


def _end(pending: Pending, parts: Parts | None) -> None:
    if pending.abandoned:
        return
    if parts is None:
        pending.fail()
    else:
        pending.is_last = True
        pending.resolve(parts)


@dataclass(frozen=True, slots=True)
class _Head:
    key: int
    version: int
    correlation_id: int
    body: int


def _head(buffer: bytearray, start: int, end: int) -> _Head:
    if end - start < _REQUEST_HEAD.size:
        raise Refused("frame is shorter than a request header")
    key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(buffer, start)
    body = start + _REQUEST_HEAD.size + max(length, 0)
    if body > end:
        raise Refused("client id runs past the end of the request")
    return _Head(key, version, correlation_id, body)


def _body(name: str, head: _Head, buffer: bytearray, end: int) -> Message:
    schema, position = request_schema(name), head.body
    try:
        if schema.is_flexible(head.version):
            position = skip_tags(buffer, position, end)
        return schema.read(Cursor(buffer, position, end, longest_text=MAX_TEXT_BYTES), head.version)
    except (IndexError, MalformedMessage) as error:
        raise Refused(f"malformed {name} request: {error}") from None


def _handshake_response(head: _Head, error: ErrorCode, rules: SaslRules) -> Parts:
    fields = {"error_code": error, "mechanisms": list(rules.mechanisms)}
    return encode_response("sasl_handshake", fields, head.version, head.correlation_id)


def _raw_response(result: Challenge | Authenticated, lifetime_ms: int) -> Parts:
    return (_SIZE.pack(len(result.data)) + result.data,)


def _no_response(reason: str) -> None:
    return None


def sasl_apis() -> list[Api]:
    """SaslHandshake (17) and SaslAuthenticate (36) as they are served after authentication, or without SASL."""

    def handshake(request: SaslHandshakeRequest, context: Context) -> SaslHandshakeResponse:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}

    def authenticate(request: SaslAuthenticateRequest, context: Context) -> SaslAuthenticateResponse:
        return {
            "error_code": ErrorCode.ILLEGAL_SASL_STATE,
            "error_message": "SaslAuthenticate request received after successful authentication",
            "auth_bytes": b"",
            "session_lifetime_ms": 0,
        }

    return [api("sasl_handshake", handshake), api("sasl_authenticate", authenticate)]
