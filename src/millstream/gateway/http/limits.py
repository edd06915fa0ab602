"""How much the gateway takes on at once, and how long it waits; what may be changed with `--limit NAME=VALUE`.

Needs none of the gateway's packages: `millstream serve` looks at what is said before it starts anything.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from millstream.gateway.http.listening import GatewayError


@dataclass(frozen=True, slots=True)
class Limits:
    max_body_bytes: int = 16 << 20
    """Of one request that produces; a streaming request may go on for ever, but no record of it be larger."""
    body_timeout_s: float = 60.0
    """How long the body of a request that produces may take to come, unless it is a stream; then 408."""
    max_records: int = 10_000
    """In one request that produces."""
    max_in_flight_bytes: int = 128 << 20
    """Bodies of producing requests that are not answered yet, together; beyond it 429."""
    produce_timeout_s: float = 30.0
    """How long records may take to be acknowledged by all in-sync replicas; then 504."""
    max_consumers: int = 1_000
    """Open consumers over HTTP, of all groups."""
    max_streams: int = 1_000
    """Open server-sent event streams."""
    max_batch_bytes: int = 128 << 20
    """Of one batch that is read for a consumer or a stream, decompressed; beyond it the batch cannot be read (502)."""
    max_batch_records: int = 1_000_000
    """In one batch that is read for a consumer or a stream; beyond it the batch cannot be read (502)."""


_RANGES = {
    "max_body_bytes": (1, 512 << 20),  # librdkafka takes records of up to a gigabyte
    "body_timeout_s": (0.1, 86_400.0),
    "max_records": (1, 1_000_000),
    "max_in_flight_bytes": (1, 1 << 37),
    "produce_timeout_s": (0.1, 86_400.0),
    "max_consumers": (0, 1_000_000),
    "max_streams": (0, 1_000_000),
    "max_batch_bytes": (1 << 20, 256 << 20),
    "max_batch_records": (1000, 2**31 - 1),
}


def read_limits(words: Iterable[str], option: str = "--limit") -> Limits:
    """From words `NAME=VALUE`, of which a later one counts. GatewayError names the option and what would do."""
    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(Limits)}
    given: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in kinds:
            raise GatewayError(f"{option} {word}: write NAME=VALUE with one of {', '.join(kinds)}")
        lowest, highest = _RANGES[name]
        try:
            given[name] = kinds[name](text)
        except ValueError:
            given[name] = None
        if given[name] is None or not lowest <= given[name] <= highest:  # which NaN is not
            a_number = "a whole number" if kinds[name] is int else "a number"
            raise GatewayError(f"{option} {word}: give {a_number} from {lowest} to {highest}")
    return Limits(**given)
