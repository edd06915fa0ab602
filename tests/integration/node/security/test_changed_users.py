"""PLAIN users change while a broker runs: by IncrementalAlterConfigs, AlterConfigs, and SIGHUP with a changed file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.node_process import NodeProcess, free_ports
from tests.integration.node.security.secured_broker import in_a_file
from tests.sasl import MODULES, authenticate, handshake, plain
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire

NAME = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
BROKER = 4
INVALID_CONFIG = 40


def module(**users: str) -> str:
    shown = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return f'{MODULES}.plain.PlainLoginModule required username="admin" password="one" {shown};'


class Started:
    def __init__(self, directory: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.secrets = directory / "secrets.properties"
        self.write(admin="one")
        given = {
            "listeners": f"SASL_PLAINTEXT://{self.address}",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "connection.failed.authentication.delay.ms": "20",
            NAME: f"${{file:{self.secrets}:jaas}}",
        }
        self.log_file = directory / "broker.log"
        arguments = ["--data-dir", str(directory / "data"), "--no-http", *in_a_file(directory / "settings", given)]
        self.process = NodeProcess("the broker", arguments, self.log_file, stop_timeout=TIMEOUT_SECONDS)

    def write(self, **users: str) -> None:
        self.secrets.write_text(f"jaas={module(**users)}\n")

    def accepts(self, user: str, password: str) -> bool:
        with Wire(self.address) as wire:
            return not plain(wire, user, password).error_code

    def hang_up(self) -> None:
        os.kill(self.process.pid, signal.SIGHUP)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    started.process.spawn()
    try:
        started.process.wait_until_ready(60)
        yield started
    finally:
        started.process.reap(signal.SIGTERM)
    log = started.log_file.read_text()
    assert "Traceback" not in log and "secret-of-carol" not in log, log[-3000:]


def alter(wire: Wire, value: str | None, operation: int = 0) -> tuple[int, str]:
    configs = [{"name": NAME, "config_operation": operation, "value": value}]
    resources = [{"resource_type": BROKER, "resource_name": "1", "configs": configs}]
    response = wire.call("incremental_alter_configs", 1, resources=resources, validate_only=False)
    (row,) = response.responses
    return row.error_code, row.error_message or ""


def test_users_are_changed_by_settings_of_the_broker(broker: Started) -> None:
    with Wire(broker.address) as wire:
        assert not plain(wire, "admin", "one").error_code
        assert alter(wire, module(admin="one", carol="secret-of-carol")) == (0, "")
        until(lambda: broker.accepts("carol", "secret-of-carol"), "the new user cannot log in")
        described = wire.call(
            "describe_configs", 4, include_synonyms=False, include_documentation=False,
            resources=[{"resource_type": BROKER, "resource_name": "1", "configuration_keys": [NAME]}],
        )  # fmt: skip
        (row,) = described.results[0].configs
        assert row.value is None and row.is_sensitive
        code, reason = alter(wire, "PlainLoginModule required user_x=")
        assert code == INVALID_CONFIG and "secret" not in reason and "cannot be read" in reason
        # All at once, as AlterConfigs (33) does.
        for value, expected in ((module(), INVALID_CONFIG), (module(admin="one", dora="d"), 0)):
            configs = [{"name": NAME, "value": value}]
            resources = [{"resource_type": BROKER, "resource_name": "1", "configs": configs}]
            response = wire.call("alter_configs", 2, resources=resources, validate_only=False)
            assert [each.error_code for each in response.responses] == [expected], response
        until(lambda: broker.accepts("dora", "d"))
    broker.process.reap(signal.SIGTERM)
    broker.process.spawn()
    broker.process.wait_until_ready(60)
    until(lambda: broker.accepts("dora", "d"), "the users of the metadata are lost by a restart")
    with Wire(broker.address) as wire:
        assert not plain(wire, "admin", "one").error_code
        assert not broker.accepts("carol", "secret-of-carol")
        assert alter(wire, None, operation=1) == (0, "")
        until(lambda: not broker.accepts("dora", "d"), "the users of the file are not back")
        assert broker.accepts("admin", "one")


def test_by_a_changed_file_and_sighup(broker: Started) -> None:
    with Wire(broker.address) as connected:
        assert not plain(connected, "admin", "one").error_code
        broker.write(admin="two", eve="secret-of-eve")
        broker.hang_up()
        until(lambda: broker.accepts("eve", "secret-of-eve"), "SIGHUP has not added the user")
        assert broker.accepts("admin", "two") and not broker.accepts("admin", "one")
        assert connected.call("api_versions", 0).error_code == 0  # the connection stays
        broker.secrets.write_text("jaas=PlainLoginModule required\n")
        broker.hang_up()
        until(lambda: "login_modules_refused" in broker.log_file.read_text(), "a bad file is not reported")
        assert broker.accepts("eve", "secret-of-eve")
        with Wire(broker.address) as wire:
            handshake(wire, "PLAIN")
            assert authenticate(wire, b"\0eve\0").error_code
