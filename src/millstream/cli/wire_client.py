"""A tiny Kafka client for the few admin calls that librdkafka does not have; blocking, plaintext, one request at once.

The version of each request is the highest that both sides know. Refusals that pass by themselves (a coordinator that is
loading, or moved) are asked again until the time is up.
"""

import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.cli import exit_codes
from millstream.cli.terminal import CommandFailedError
from millstream.model.errors import ErrorCode
from millstream.protocol.messages import request_schema, response_schema
from millstream.protocol.primitives import Cursor
from millstream.protocol.schema import Message

if TYPE_CHECKING:
    from millstream.client.connection import Connection

T = TypeVar("T")
CLIENT_ID = b"millstream-cli"
MAX_ANSWER_BYTES = 256 << 20
GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE = 0, 1
_API_VERSIONS_KEY = 18
_RETRY_S = 0.1
_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class WireClient:
    """One connection to one broker."""

    def __init__(self, address: tuple[str, int], timeout: float) -> None:
        self._address = address
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection(address, timeout)
        except OSError as error:
            raise CommandFailedError(
                f"no broker at {address[0]}:{address[1]} ({error.strerror or error})", exit_codes.NO_BROKER
            ) from error
        answer = self._exchange("api_versions", 0, {})
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def call(self, api: str, **fields: Any) -> Message:
        """Ask, in the newest version that both know."""
        schema = request_schema(api)
        low, high = self._versions.get(schema.api_key, (0, -1))
        version = min(high, schema.versions.high)
        if version < max(low, schema.versions.low):
            raise CommandFailedError(f"the broker has no {api.replace('_', ' ')} that this command could use")
        return self._exchange(api, version, fields)

    def _exchange(self, api: str, version: int, fields: dict[str, Any]) -> Message:
        self._correlation_id += 1
        asked, answered = request_schema(api), response_schema(api)
        head = struct.pack(">hhih", asked.api_key, version, self._correlation_id, len(CLIENT_ID)) + CLIENT_ID
        if asked.is_flexible(version):
            head += b"\x00"
        body = head + asked.encode(fields, version)
        try:
            self._socket.sendall(struct.pack(">i", len(body)) + body)
            (size,) = struct.unpack(">i", self._receive(4))
            if not 4 <= size <= MAX_ANSWER_BYTES:
                raise OSError(f"an answer of {size} bytes")
            data = self._receive(size)
        except TimeoutError as error:
            raise CommandFailedError(f"{self} did not answer in time", exit_codes.TIMED_OUT) from error
        except OSError as error:
            raise CommandFailedError(f"the connection to {self} broke: {error}", exit_codes.NO_BROKER) from error
        cursor = Cursor(data)
        cursor.take(5 if answered.is_flexible(version) and asked.api_key != _API_VERSIONS_KEY else 4)
        return answered.read(cursor, version)

    def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise OSError("closed by the broker")
            data += piece
        return bytes(data)

    def __str__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"


class WireCluster:
    """Finds the right broker for a question."""

    def __init__(self, connection: "Connection") -> None:
        if (connection.setting("security.protocol") or "plaintext").lower() != "plaintext":
            raise CommandFailedError("this command works over plaintext connections only, so far")
        self._connection = connection

    def any_broker(self, timeout: float | None = None) -> WireClient:
        failure: CommandFailedError | None = None
        for address in self._connection.addresses:
            try:
                return WireClient(address, timeout or self._connection.timeout)
            except CommandFailedError as error:
                failure = error
        assert failure is not None
        raise failure

    def brokers(self) -> list[tuple[str, int]]:
        with self.any_broker() as wire:
            return [(row.host, row.port) for row in wire.call("metadata", topics=[]).brokers]

    def coordinator(self, key: str, key_type: int = GROUP_KEY_TYPE) -> tuple[str, int]:
        """The broker that coordinates a group, or a transactional id's transactions."""

        def ask() -> tuple[int, tuple[str, int]]:
            with self.any_broker() as wire:
                answer = wire.call("find_coordinator", key=key, key_type=key_type, coordinator_keys=[key])
            row = answer.coordinators[0] if answer.coordinators else answer
            return row.error_code, (row.host, row.port)

        return self.until_settled(ask)

    def ask_coordinator(
        self, key: str, api: str, code_of: Callable[[Message], int], *, key_type: int = GROUP_KEY_TYPE, **fields: Any
    ) -> Message:
        """Ask the coordinator of a group or transactional id; `code_of` says where the answer keeps an error that may
        pass."""

        def ask() -> tuple[int, Message]:
            with WireClient(self.coordinator(key, key_type), self._connection.timeout) as wire:
                answer = wire.call(api, **fields)
            return code_of(answer), answer

        return self.until_settled(ask)

    def until_settled(self, ask: "Callable[[], tuple[int, T]]") -> T:
        """Ask again while the error code says that it will pass."""
        deadline = time.monotonic() + self._connection.timeout
        while True:
            code, answer = ask()
            if code not in _PASSING:
                return answer
            if time.monotonic() > deadline:
                raise CommandFailedError(
                    f"the coordinator was not there in time ({ErrorCode(code).name})", exit_codes.TIMED_OUT
                )
            time.sleep(_RETRY_S)
