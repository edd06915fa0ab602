"""A connection to a broker: frames, API versions, requests and their responses in the order of the requests.

Not thread safe: one thread at a time borrows it from the pool. Every wait is bounded. A connection is closed by its
first failure.
"""

import http.client
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.schema import Message, Schema, request_schema, response_schema
from millstream.raw_client.errors import ConnectionLostError, SetupError, UnsupportedApiError, WireError
from millstream.raw_client.model import Address
from millstream.version import VERSION

MAX_RESPONSE_BYTES = 300 << 20
"""Less than the first bytes of a TLS alert, read as a length."""
_LARGEST_PAGE = 16 << 20
_API_VERSIONS = "api_versions"
_SOFTWARE = {"client_software_name": "millstream", "client_software_version": VERSION.replace("+", "-")}
_INT32 = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhih")


class Sent(NamedTuple):
    """A request in flight."""

    correlation_id: int
    api: str
    version: int


class Connection:
    """An open connection. `Connector` makes one that is ready for requests."""

    def __init__(self, opened: socket.socket, address: Address, client_id: str) -> None:
        self.address = address
        self.expires_at: float | None = None
        """When the SASL session ends (time.monotonic); None if it does not."""
        self._socket = opened
        self._client_id = client_id.encode()
        self._last_id = 0
        self._waiting: deque[int] = deque()
        self._has_response = False
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """The levels of the features of the cluster, such as transaction.version."""
        self.supported: frozenset[str] = frozenset()
        """The features that this broker supports."""
        self.closed = False

    # Requests

    def ask(self, api: str, fields: Mapping[str, Any], timeout_s: float, *, at_most: int | None = None) -> Message:
        """Sends a request in the newest common version (`at_most` this one), and waits for the response."""
        return self.receive(self.send(api, fields, timeout_s, at_most=at_most), timeout_s)

    def send(self, api: str, fields: Mapping[str, Any], timeout_s: float, *, at_most: int | None = None) -> Sent:
        """Sends a request without waiting for the response. Several may be in flight."""
        schema = request_schema(api)
        version = self.version_of(api, at_most)
        return self.send_body(schema, version, schema.encode(fields, version), timeout_s)

    def send_body(self, schema: Schema, version: int, body: bytes | bytearray, timeout_s: float) -> Sent:
        self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        head = _REQUEST_HEAD.pack(schema.api_key, version, self._last_id, len(self._client_id)) + self._client_id
        if schema.is_flexible(version):
            head += b"\x00"
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(b"".join((_INT32.pack(len(head) + len(body)), head, body)))
        except OSError as error:
            raise self._lost(error) from error
        self._waiting.append(self._last_id)
        return Sent(self._last_id, schema.name, version)

    def receive(self, sent: Sent, timeout_s: float) -> Message:
        """The response to `sent`, which must be the oldest request in flight."""
        frame, position = self.receive_frame(sent, timeout_s)
        try:
            return response_schema(sent.api).read(Cursor(frame, position), sent.version)
        except MalformedMessage as error:
            raise self._lost(OSError(f"its response to {sent.api} v{sent.version} is malformed: {error}")) from error

    def receive_frame(self, sent: Sent, timeout_s: float) -> tuple[bytearray, int]:
        """The frame of the response, and the position of its body. The frame is not copied."""
        assert self._waiting and self._waiting[0] == sent.correlation_id, "responses come in the order of the requests"
        try:
            size = _INT32.unpack(self._receive_exactly(4, timeout_s))[0]
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise OSError(_unexpected_size(size))
            frame = self._receive_exactly(size, timeout_s)
            (correlation_id,) = _INT32.unpack_from(frame)
            if correlation_id != sent.correlation_id:
                raise OSError(f"a response to request {correlation_id} came instead of {sent.correlation_id}")
        except OSError as error:
            raise self._lost(error) from error
        self._waiting.popleft()
        self._has_response = self._has_response or sent.api != _API_VERSIONS
        flexible = sent.api != _API_VERSIONS and response_schema(sent.api).is_flexible(sent.version)
        return frame, 5 if flexible else 4

    def _receive_exactly(self, count: int, timeout_s: float) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        filled = 0
        self._socket.settimeout(timeout_s)
        while filled < count:
            received = self._socket.recv_into(view[filled:])
            if not received:
                hint = "" if self._has_response else " at once: does this listener require TLS or SASL?"
                raise OSError(f"the broker closed the connection{hint}")
            filled += received
        return buffer

    # Versions

    def read_versions(self, timeout_s: float) -> None:
        """Reads the API versions of the broker. Falls back to version 0 of the request for old brokers."""
        schema = request_schema(_API_VERSIONS)
        version = 3
        frame, position = self.receive_frame(
            self.send_body(schema, version, schema.encode(_SOFTWARE, version), timeout_s), timeout_s
        )
        if struct.unpack_from(">h", frame, position)[0] == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
            frame, position = self.receive_frame(self.send_body(schema, version, b"", timeout_s), timeout_s)
        try:
            response = response_schema(_API_VERSIONS).read(Cursor(frame, position), version)
        except MalformedMessage as error:
            raise self._lost(OSError(f"it does not use Kafka's protocol: {error}")) from error
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        self.features = {row.name: row.max_version_level for row in response.finalized_features}
        self.supported = frozenset(row.name for row in response.supported_features)

    def knows(self, api: str) -> bool:
        return request_schema(api).api_key in self._versions

    def version_of(self, api: str, at_most: int | None = None) -> int:
        """The newest version of a request that both sides have."""
        ours = request_schema(api)
        low, high = self._versions.get(ours.api_key, (0, -1))
        version = min(high, ours.versions.high if at_most is None else min(at_most, ours.versions.high))
        if version < max(low, ours.versions.low):
            has = f"has versions {low} to {high}" if high >= 0 else "does not have it"
            raise UnsupportedApiError(f"{self.address}: no common version of {api.replace('_', ' ')}: the broker {has}")
        return version

    def http_get(self, target: str, timeout_s: float) -> tuple[int, bytes]:
        """An HTTP request on this connection, with the identity of its client: status and body of the response. Brokers
        of Millstream serve /metrics so; they close the connection afterwards, and so does this."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(f"GET {target} HTTP/1.1\r\nAccept: text/plain\r\n\r\n".encode())
            with http.client.HTTPResponse(self._socket, method="GET") as response:
                response.begin()
                return response.status, response.read(_LARGEST_PAGE)
        except OSError as error:
            raise self._lost(error) from error
        except http.client.HTTPException as error:  # it is no broker of Millstream
            raise ConnectionLostError(str(self.address), f"no HTTP: {type(error).__name__}") from error
        finally:
            self.close()

    # State

    @property
    def idle(self) -> bool:
        return not self._waiting and not self.closed

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and time.monotonic() >= self.expires_at

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def _lost(self, error: OSError) -> WireError:
        self.close()
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return SetupError(
                f"{self.address} does not accept this client's certificate, or requires one ({error.reason}):"
                " give ssl.keystore.location, or ssl.certificate.location and ssl.key.location"
            )
        late = isinstance(error, TimeoutError)
        reason = "no response in time" if late else error.strerror or str(error) or type(error).__name__
        mismatch = not self._has_response and not late and not isinstance(error, ConnectionResetError)
        return ConnectionLostError(str(self.address), reason, late=late, mismatch=mismatch)


def _unexpected_size(size: int) -> str:
    head = _INT32.pack(size)
    if head[:2] == b"\x15\x03":
        return "it uses TLS: set security.protocol to SSL or SASL_SSL"
    if head == b"HTTP":
        return "it uses HTTP, not Kafka's protocol: is this the right port?"
    return f"it sent a response of {size} bytes: is this a Kafka port?"
