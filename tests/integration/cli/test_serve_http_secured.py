"""The gateway that `millstream serve` and `millstream cluster start` start themselves, on secured listeners."""

import base64
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.cli.gateway_process import CONNECTION_VARIABLE, HttpOptions, listener_to_use
from millstream.gateway.http.configuration import GatewayError
from millstream.testing.node_process import free_port_range
from tests.integration.cli.test_serve_http import Served
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
_COMMAND = [sys.executable, "-m", "millstream"]


class Secured:
    """The files of `millstream security init` for one node."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port_range(3)
        words = ["security", "init", str(directory), "--nodes", "1", "--port", str(self.port)]
        subprocess.run([*_COMMAND, *words], check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
        self.node, self.client = directory / "node-1", directory / "client" / "client.properties"
        (self.password,) = re.findall(r'password="([^"]+)"', self.client.read_text())

    @property
    def words(self) -> list[str]:
        return ["serve", "--config", str(self.node / "server.properties")]

    def client_with(self, path: Path, **changes: str) -> Path:
        lines = [line for line in self.client.read_text().splitlines() if not line.startswith(tuple(changes))]
        path.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in changes.items())]))
        path.chmod(0o600)
        return path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return Secured(tmp_path_factory.mktemp("secured") / "files")


@contextmanager
def running(directory: Path, *words: object) -> Iterator[Served]:
    log_file = directory / "log"
    environment = {name: value for name, value in os.environ.items() if name != CONNECTION_VARIABLE}
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            [*_COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=log, cwd=directory, env=environment
        )
    try:
        yield Served(process, log_file)
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_SECONDS)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def status(url: str, user: str = "", password: str = "") -> int:
    request = urllib.request.Request(url)
    if user:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_without_connection_settings_the_node_serves_without_http_and_says_so_once(
    secured: Secured, tmp_path: Path
) -> None:
    with running(tmp_path, *secured.words) as served:
        assert served.line == f"ready kafka=localhost:{secured.port} protocol=SASL_SSL\n"
        (reason,) = re.findall(r"http_left_out reason=(.*)", served.log)
        assert "connect by SASL_SSL" in reason and "--command-config FILE" in reason and "--no-http" in reason
        assert "gateway_started" not in served.log


def test_with_http_requested_it_does_not_start(secured: Secured, tmp_path: Path) -> None:
    wrong = secured.client_with(tmp_path / "wrong.properties", **{"security.protocol": "SASL_PLAINTEXT"})
    unknown = secured.client_with(tmp_path / "unknown.properties", **{"sasl.mechanisn": "PLAIN"})
    for more, said in (
        (["--http", "127.0.0.1:0"], "give --command-config FILE"),
        (["--pass-through", "SCRAM-SHA-512"], "give --command-config FILE"),
        (["--command-config", wrong], "security.protocol is SASL_PLAINTEXT, but clients of this cluster connect by"),
        (["--command-config", unknown], "sasl.mechanisn"),
        (["--command-config", tmp_path / "none"], "No such file"),
        (["--command-config", secured.client, "--pass-through", "SCRAM"], "--pass-through SCRAM: give"),
        (["--command-config", secured.client, "--no-http"], "remove --no-http"),
    ):
        command = [*_COMMAND, *secured.words, *map(str, more)]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        assert refused.returncode == 1, refused
        lines = [line for line in refused.stderr.splitlines() if "warning:" not in line]
        assert len(lines) == 1 and said in lines[0], lines


def test_the_gateway_of_a_secured_node_lets_its_users_act_as_themselves(secured: Secured, tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text('[roles]\nusers = { admin = "viewer" }\n')
    access.chmod(0o600)
    options = ["--command-config", secured.client, "--pass-through", "SCRAM-SHA-512", "--access-file", access]
    with running(tmp_path, *secured.words, "--http", "127.0.0.1:0", *options) as served:
        url = f"http://{served.addresses['http']}"
        assert status(f"{url}/readyz") == 200
        assert status(f"{url}/topics") == 401
        assert status(f"{url}/topics", "admin", secured.password) == 200
        request = urllib.request.Request(f"{url}/topics/t", method="DELETE")
        request.add_header("Authorization", "Basic " + base64.b64encode(f"admin:{secured.password}".encode()).decode())
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        with refused.value as response:
            assert response.code == 403, "the access file makes this user a viewer"
        assert served.log.count("gateway_started") == 1
        assert secured.password not in served.log


def test_a_wrong_password_of_the_gateway_does_not_fill_the_log(secured: Secured, tmp_path: Path) -> None:
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="wrong";'
    wrong = secured.client_with(tmp_path / "wrong.properties", **{"sasl.jaas.config": login})
    with running(tmp_path, *secured.words, "--http", "127.0.0.1:0", "--command-config", wrong) as served:
        code, response = served.get("/readyz")
        assert code == 503 and "check user and password" in response["message"]
        of_gateway = [line for line in served.log.splitlines() if "schemas_" in line]
        assert len(of_gateway) == 1 and served.log.count("gateway_started") == 1
        assert served.log.count("authentication_failed") <= 2  # the next attempt is half a minute later


def test_a_local_cluster_with_tls_alone(secured: Secured, tmp_path: Path) -> None:
    tls = {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": secured.node / "keystore.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": secured.node / "ca.pem",
    }
    client = tmp_path / "client.properties"
    client.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={secured.node}/ca.pem\n"
    )
    client.chmod(0o600)
    settings = [word for name, value in tls.items() for word in ("--set", f"{name}={value}")]
    words = ["cluster", "start", "--nodes", "1", "--port", free_port_range(2), "--dir", tmp_path / "nodes", *settings]
    with running(tmp_path, *words, "--http", "127.0.0.1:0", "--command-config", client) as served:
        assert status(f"http://{served.addresses['http']}/readyz") == 200
    with running(tmp_path, *words) as served:
        assert "http" not in served.addresses
        assert served.log.count("http_left_out") == 1 and "install them" not in served.log


def test_the_listener_is_chosen_by_the_protocol_of_the_connection(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONNECTION_VARIABLE, raising=False)
    assert listener_to_use(HttpOptions(), ["PLAINTEXT", "SASL_SSL"]) == 0
    named = HttpOptions(command_config=str(secured.client))
    assert listener_to_use(named, ["PLAINTEXT", "SASL_SSL"]) == 1
    with pytest.raises(GatewayError, match="connect by SASL_SSL"):
        listener_to_use(HttpOptions(), ["SASL_SSL", "PLAINTEXT"])  # the open one is not taken instead
    monkeypatch.setenv(CONNECTION_VARIABLE, str(secured.client))
    assert listener_to_use(HttpOptions(), ["PLAINTEXT", "SASL_SSL"]) == 1
    with pytest.raises(GatewayError, match=re.escape(f"${CONNECTION_VARIABLE} {secured.client}: security.protocol")):
        listener_to_use(HttpOptions(), ["PLAINTEXT"])
