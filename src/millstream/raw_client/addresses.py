"""Addresses of brokers as people write them."""

from typing import NamedTuple

from millstream.raw_client.errors import SetupError

DEFAULT_PORT = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Addresses from `host:port,host:port`; a protocol in front (PLAINTEXT://) is passed over, as Kafka does."""
    found = tuple(dict.fromkeys(_parse(part.strip()) for part in text.split(",") if part.strip()))
    if not found:
        raise SetupError("bootstrap.servers is empty: give HOST:PORT, for example localhost:9092")
    return found


def _parse(text: str) -> Address:
    bare = text.rsplit("://", 1)[-1]
    host, port = bare, str(DEFAULT_PORT)
    if bare.count(":") == 1 or (bare.startswith("[") and not bare.endswith("]")):
        host, _, port = bare.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise SetupError(f"bootstrap.servers: {text!r} is not an address: give HOST:PORT, for example localhost:9092")
    return Address(host, int(port))
