"""The registry's client: what it asks, what it keeps, and how it takes failure."""

import base64
import pickle
import socket

import pytest

from millstream.schemas import (
    Reference,
    RegistryAuth,
    RegistryClient,
    RegistryError,
    RegistryUnreachableError,
    Schema,
    SchemaError,
    SchemaNotFoundError,
)
from tests.unit.schemas.tiny_registry import TinyRegistry

TEXT = '{"type": "record", "name": "R", "fields": []}'


def test_register_and_get_back(registry: TinyRegistry) -> None:
    client = RegistryClient(registry.url + "/")
    schema = Schema(TEXT, "AVRO")
    number = client.register("orders/eu-value", schema)
    assert client.schema_by_id(number) == schema
    latest = client.latest("orders/eu-value")
    assert (latest.subject, latest.version, latest.id, latest.schema) == ("orders/eu-value", 1, number, schema)
    assert client.lookup("orders/eu-value", schema) == latest
    assert client.lookup("orders/eu-value", Schema('"string"', "AVRO")) is None
    assert client.lookup("nobody", schema) is None
    assert client.subjects() == ["orders/eu-value"]


def test_kinds_and_references_are_kept(registry: TinyRegistry) -> None:
    client = RegistryClient(registry.url)
    client.register("base", Schema('{"type": "object"}', "JSON"))
    schema = Schema('{"type": "object", "title": "t"}', "JSON", (Reference("base.json", "base", 1),))
    assert client.schema_by_id(client.register("s", schema)) == schema


def test_what_an_id_means_is_asked_once(registry: TinyRegistry) -> None:
    client = RegistryClient(registry.url)
    number = client.register("s", Schema(TEXT, "AVRO"))
    registry.requests.clear()
    assert client.schema_by_id(number) == client.schema_by_id(number)
    for _ in range(3):
        with pytest.raises(SchemaNotFoundError, match=f"{registry.url} does not have schema 77: Schema not found"):
            client.schema_by_id(77)
    assert len(registry.requests) == 2
    client.latest("s")
    client.latest("s")
    assert len(registry.requests) == 4


def test_failures_of_the_server_are_tried_again(registry: TinyRegistry) -> None:
    registry.failures = [(503, b"busy"), (500, b'{"error_code": 50001, "message": "store"}')]
    client = RegistryClient(registry.url, timeout_s=20)
    assert client.subjects() == []
    assert len(registry.requests) == 3


def test_no_response_is_an_error_after_a_while(registry: TinyRegistry) -> None:
    registry.failures = [(503, b"busy")] * 100
    with pytest.raises(RegistryUnreachableError, match=r"subject 's' within 0\.5 s .*HTTP 503 busy"):
        RegistryClient(registry.url, timeout_s=0.5).latest("s")
    with socket.socket() as closed:  # bound, but it does not listen: no other process gets the port
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(RegistryUnreachableError, match=f"http://127.0.0.1:{port}: .*refused"):
            RegistryClient(f"http://127.0.0.1:{port}", timeout_s=0.3).latest("s")


def test_another_address_is_tried(registry: TinyRegistry) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert RegistryClient(f"http://127.0.0.1:{port}, {registry.url}").subjects() == []


def test_refusals_are_not_tried_again(registry: TinyRegistry) -> None:
    client = RegistryClient(registry.url)
    registry.failures = [
        (401, b'{"error_code": 401, "message": "Unauthorized"}'),
        (409, b'{"error_code": 409, "message": "incompatible"}'),
    ]
    with pytest.raises(RegistryError, match=r"refuses access to subject 's' .*check user and password"):
        client.latest("s")
    with pytest.raises(RegistryError, match=r"refuses a schema for subject 's' .*409.*incompatible"):
        client.register("s", Schema(TEXT, "AVRO"))
    registry.failures = [(200, b"<html>")]
    with pytest.raises(RegistryError, match="did not respond with JSON; check that it is a schema registry"):
        client.latest("s")
    assert len(registry.requests) == 3


def test_the_client_sends_its_credentials(registry: TinyRegistry) -> None:
    RegistryClient(registry.url, RegistryAuth("anna", "se:cret")).subjects()
    RegistryClient(registry.url, RegistryAuth(token="t0k")).subjects()
    RegistryClient(registry.url).subjects()
    basic = "Basic " + base64.b64encode(b"anna:se:cret").decode()
    assert [request[2] for request in registry.requests] == [basic, "Bearer t0k", None]


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://x", "http://"])
def test_a_wrong_registry_address_is_refused(url: str) -> None:
    with pytest.raises(SchemaError, match="http://localhost:8081"):
        RegistryClient(url)


def test_clients_and_their_errors_travel(registry: TinyRegistry) -> None:
    client = pickle.loads(pickle.dumps(RegistryClient(registry.url, RegistryAuth("a", "b"))))
    client.subjects()
    assert registry.requests[0][2]
    with pytest.raises(SchemaNotFoundError) as error:
        client.latest("nobody")
    back = pickle.loads(pickle.dumps(error.value))
    assert (str(back), back.status, back.code) == (str(error.value), 404, 40401)
