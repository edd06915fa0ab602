"""A broker and a gateway for the tests of HTTP; each test has subjects of its own."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> int:
        assert set(self.json) - {"hint"} == {"error_code", "message"}
        return int(self.json["error_code"])


class Caller:
    """Asks a gateway, as plainly as a program without any library would."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, raw: bytes | None = None
    ) -> Response:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_SECONDS)
        try:
            data = raw if body is None else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return Response(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        finally:
            connection.close()


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="session")
def gateway(broker: EmbeddedBroker) -> Iterator[Gateway]:
    with Gateway(GatewayOptions(broker.bootstrap_servers)) as running:
        yield running


@pytest.fixture
def call(gateway: Gateway) -> Caller:
    return Caller(gateway.address)
