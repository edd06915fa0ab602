"""`--command-config` and secrets in options, over brokers without security and over ports with some."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from millstream.cli.app import run_app
from millstream.testing.embedded import EmbeddedBroker
from tests.certificates import Authority


@pytest.fixture
def properties(tmp_path: Path, millstream_broker: EmbeddedBroker) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(f"bootstrap.servers={millstream_broker.bootstrap_servers}\nclient.id=me\nmax.poll.records=1\n")
    return path


def test_the_file_has_the_address(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["topic", "create", "by-file", "--command-config", str(properties)]) == 0
    assert run_app(["group", "list", "--command-config", str(properties)]) == 0
    assert run_app(["cluster", "status", "--command-config", str(properties), "--json"]) == 0
    capsys.readouterr()
    assert run_app(["topic", "list", "-b", "127.0.0.1:1", "--command-config", str(properties)]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_the_environment_names_the_file(
    properties: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_COMMAND_CONFIG", str(properties))
    assert run_app(["topic", "list", "--json"]) == 0
    monkeypatch.setenv("MILLSTREAM_COMMAND_CONFIG", str(properties) + ".not")
    assert run_app(["topic", "list"]) == 2
    assert "the client properties cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["topic", "list"], ["group", "list"], ["consume", "x"]])
def test_a_secret_in_an_option_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([*command, "-X", "sasl.password=hunter2"]) == 2
    said = capsys.readouterr().err
    assert "--command-config" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("option", ["--user", "--token"])
def test_a_secret_for_the_registry_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["schema", "list", option, "bob:hunter2"]) == 2
    said = capsys.readouterr().err
    assert "process list" in said
    assert "hunter2" not in said


@contextmanager
def listening(context: ssl.SSLContext) -> Iterator[str]:
    """A port that speaks TLS, and closes each connection after the handshake."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                except OSError:
                    return
                with accepted:
                    try:
                        context.wrap_socket(accepted, server_side=True).close()
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_an_error_says_that_the_listener_requires_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Authority("ca").node().write(tmp_path, "server")
    other = Authority("other").node().write(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.keystore)
    with listening(context) as address:
        assert run_app(["topic", "list", "-b", address]) == 1
        assert "it seems to require TLS: give the client properties with --command-config" in capsys.readouterr().err
        distrusting = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={other.ca}"]
        for command in ("topic", "group"):
            assert run_app([command, "list", "-b", address, *distrusting]) == 2
            said = capsys.readouterr().err
            assert "its certificate is not trusted" in said
            assert said.count("\n") == 1
