"""How much the gateway takes on at once, and how long it waits."""

from dataclasses import dataclass


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
