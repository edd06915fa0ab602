"""The settings of a connection, by the names that Kafka's Java client or librdkafka have for them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireSettings:
    client_id: str
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0


def parse_settings(settings: Mapping[str, str], client_id: str) -> WireSettings:
    return WireSettings(client_id=settings.get("client.id", client_id))
