"""Tiered storage on Azure Blob Storage: `az://`, on Microsoft's emulator, with the account that it is made with."""

import base64
import hashlib
import hmac
import http.client
import subprocess
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from millstream.testing.node_process import free_ports
from tests.integration.node.tier.tiered_topic import SETTINGS, consume, make_tiered, produce, until_tiered, value_of
from tests.waiting import until
from tools import apache_kafka, install_test_clients

pytestmark = pytest.mark.slow

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public, of Azurite
_API = "2021-08-06"


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    try:
        program = install_test_clients.azurite().command
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Azurite: {reason}")
    (port,) = free_ports(1)
    options = ["--blobPort", str(port), "--location", str(tmp_path / "azure"), "--skipApiVersionCheck"]
    with (tmp_path / "azurite.log").open("ab") as log:
        server = subprocess.Popen([*program, *options, "--disableTelemetry"], stdin=subprocess.DEVNULL, stdout=log)
    try:
        until(lambda: _create_container(port), "the emulator has a container")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/{_ACCOUNT}")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        yield
    finally:
        server.kill()
        server.wait()


def _create_container(port: int) -> bool:
    """False while the emulator does not listen yet."""
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:{_API}\n"
    signed = "PUT" + "\n" * 12 + headers + f"/{_ACCOUNT}/{_ACCOUNT}/tier\nrestype:container"
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(
            "PUT",
            f"/{_ACCOUNT}/tier?restype=container",
            headers={
                "x-ms-date": date,
                "x-ms-version": _API,
                "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
                "Content-Length": "0",
            },
        )
        return connection.getresponse().status in (201, 409)
    except OSError:
        return False
    finally:
        connection.close()


def test_records_go_to_azure_and_come_back(azure: None) -> None:
    with EmbeddedBroker({**SETTINGS, "millstream.tier.url": "az://tier/of/tests"}) as broker:
        make_tiered(broker.bootstrap_servers, "orders")
        produce(broker.bootstrap_servers, "orders", range(1000))
        until_tiered(broker.data_dir, "orders")
        found = consume(broker.bootstrap_servers, "orders", 1000)
        assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(1000)]
        broker.kill()
        broker.start()
        produce(broker.bootstrap_servers, "orders", range(1000, 1500))
        until_tiered(broker.data_dir, "orders", 999)
        assert len(consume(broker.bootstrap_servers, "orders", 1500)) == 1500
