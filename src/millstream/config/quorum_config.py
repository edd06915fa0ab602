"""Who decides: the voters of the metadata quorum and where to find them, from the texts of the settings."""

from collections.abc import Iterable
from dataclasses import dataclass

from millstream.config.errors import ConfigError
from millstream.config.table import node


@dataclass(frozen=True, slots=True)
class VoterAddress:
    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}@{_spelled(self.host)}:{self.port}"


def parse_voters(items: Iterable[str]) -> tuple[VoterAddress, ...]:
    """`controller.quorum.voters`, checked: `id@host:port,…`, each id and each address once."""
    name = node.CONTROLLER_QUORUM_VOTERS.name
    voters: list[VoterAddress] = []
    for item in items:
        voter_id, at, address = item.partition("@")
        parsed = _parse_address(address)
        if not at or parsed is None or not (voter_id.isascii() and voter_id.isdigit() and int(voter_id[:11]) < 1 << 31):
            raise ConfigError(f"{name}: {item!r} must be id@host:port, for example 1@10.0.0.1:9093", name=name)
        voter = VoterAddress(int(voter_id), *parsed)
        for other in voters:
            if other.id == voter.id:
                raise ConfigError(f"{name} names node {voter.id} twice; each voter needs its own number", name=name)
            if (other.host, other.port) == (voter.host, voter.port):
                raise ConfigError(f"{name}: {other} and {voter} have the same address", name=name)
        voters.append(voter)
    return tuple(voters)


def parse_bootstrap_servers(items: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """`controller.quorum.bootstrap.servers`, checked: `host:port,…`."""
    name = node.CONTROLLER_QUORUM_BOOTSTRAP_SERVERS.name
    servers = []
    for item in items:
        parsed = _parse_address(item)
        if parsed is None:
            raise ConfigError(f"{name}: {item!r} must be host:port, for example 10.0.0.1:9093", name=name)
        servers.append(parsed)
    return tuple(dict.fromkeys(servers))


def _parse_address(text: str) -> tuple[str, int] | None:
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535):
        return None
    return host, int(port)


def _spelled(host: str) -> str:
    return f"[{host}]" if ":" in host else host
