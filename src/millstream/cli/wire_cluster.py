"""The cluster behind a command's bootstrap servers, for the admin calls that librdkafka does not have.

The wire room is imported when a command uses it: `millstream --help` must not wait for it.
"""

from typing import TYPE_CHECKING

from millstream.cli import exit_codes
from millstream.formats.model.errors import ErrorCode

if TYPE_CHECKING:
    from millstream.client.connection import Connection
    from millstream.raw_client import Cluster, WireError

CLIENT_ID = "millstream-cli"
_REQUEST_TIMEOUT = "request.timeout.ms"
_MEANINGS = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: exit_codes.TIMED_OUT,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: exit_codes.TIMED_OUT,
    ErrorCode.NOT_COORDINATOR: exit_codes.TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS: exit_codes.TIMED_OUT,
    ErrorCode.REQUEST_TIMED_OUT: exit_codes.TIMED_OUT,
    ErrorCode.LEADER_NOT_AVAILABLE: exit_codes.TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: exit_codes.NOT_FOUND,
    ErrorCode.OFFSET_OUT_OF_RANGE: exit_codes.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: exit_codes.EXISTS,
}


def wire_cluster(connection: "Connection", *, only: str | None = None) -> "Cluster":
    """With the user's settings (-X); one answer may take all the time that the command has.

    `only` is the address of one broker to ask, which need not be in the metadata.
    """
    from millstream.raw_client import Cluster

    settings = {name: str(value) for name, value in connection.settings.items()}
    if not {_REQUEST_TIMEOUT, "socket.timeout.ms"} & settings.keys():
        settings[_REQUEST_TIMEOUT] = str(max(1, int(connection.timeout * 1000)))
    return Cluster(only or connection.bootstrap, settings, client_id=CLIENT_ID, timeout_s=connection.timeout)


def exit_code(error: "WireError") -> int:
    """What a command ends with that failed so."""
    from millstream.raw_client import RefusedError, SetupError, UnreachableError

    if isinstance(error, UnreachableError):
        return exit_codes.TIMED_OUT if error.late else exit_codes.NO_BROKER
    if isinstance(error, SetupError):
        return exit_codes.USAGE
    return _MEANINGS.get(error.code, exit_codes.FAILED) if isinstance(error, RefusedError) else exit_codes.FAILED
