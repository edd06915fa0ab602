"""Addresses in settings: listeners (`NAME://host:port`), voters (`id@host:port`), bootstrap servers."""

from collections.abc import Iterable, Mapping

from millstream.common.lazy_dataclass import dataclass
from millstream.config.setting import ConfigError
from millstream.config.table import node

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""Kafka's security protocols, with their numbers in metadata records."""

_SECURED_NAMES = frozenset(name for name in SECURITY_PROTOCOLS if name != "PLAINTEXT")


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on or to advertise. An empty host means every interface, port 0 any free port."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def protocol_number(self) -> int:
        """The security protocol as metadata records have it."""
        return SECURITY_PROTOCOLS[self.security_protocol]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """`NAME:PROTOCOL,…` as a dictionary with upper-case names."""
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        if not colon or protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map={text} is not allowed: {item!r} must be NAME:PROTOCOL, "
                f"where PROTOCOL is one of {', '.join(SECURITY_PROTOCOLS)}",
                name="listener.security.protocol.map",
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def effective_protocol_map(
    text: str, *, is_written: bool, controller_names: Iterable[str], listeners: Iterable[str]
) -> dict[str, str]:
    """The protocol of each listener name, by Kafka's rule for controller listeners.

    A controller listener that the map does not name is PLAINTEXT if the map is the default and no listener is named
    after a security protocol other than PLAINTEXT. Otherwise the map must name it.
    """
    protocols = parse_protocol_map(text)
    controllers = [name.upper() for name in controller_names]
    names = {*controllers, *(item.partition("://")[0].strip().upper() for item in listeners)}
    if not is_written and not names & _SECURED_NAMES:
        for name in controllers:
            protocols.setdefault(name, "PLAINTEXT")
    for name in controllers:
        if name not in protocols:
            raise ConfigError(
                f"controller.listener.names: listener.security.protocol.map has no protocol for {name}; add "
                f"{name}:PROTOCOL to it, for example {name}:SSL",
                name="controller.listener.names",
            )
    return protocols


def parse_listeners(setting: str, items: Iterable[str], protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    """The listeners of `listeners` or `advertised.listeners`."""
    listeners: list[Listener] = []
    for item in items:
        listener = _parse_listener(setting, item, protocols)
        for other in listeners:
            if other.name == listener.name:
                raise ConfigError(
                    f"{setting}: the name {listener.name} is used twice; use different names", name=setting
                )
            if setting == "listeners" and other.port == listener.port != 0 and other.host == listener.host:
                raise ConfigError(f"{setting}: port {listener.port} is used twice; use different ports", name=setting)
        listeners.append(listener)
    return tuple(listeners)


def _parse_listener(setting: str, item: str, protocols: Mapping[str, str]) -> Listener:
    name, separator, address = item.partition("://")
    host, colon, port_text = address.rpartition(":")
    name = name.strip().upper()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""  # an IPv6 address without brackets is ambiguous
    port_ok = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= 65535
    if not (name and separator and colon and port_ok):
        raise ConfigError(
            f"{setting}: {item!r} is not a listener; write NAME://host:port, for example PLAINTEXT://127.0.0.1:9092",
            name=setting,
        )
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"{setting}: listener.security.protocol.map has no protocol for {name}; add {name}:PROTOCOL to it, where "
            f"PROTOCOL is one of {', '.join(SECURITY_PROTOCOLS)}",
            name=setting,
        )
    return Listener(name, host, int(port_text), protocol)


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
                raise ConfigError(f"{name} has node {voter.id} twice; each voter needs its own id", name=name)
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
