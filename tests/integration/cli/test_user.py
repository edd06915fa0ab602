"""`millstream user`: users and tokens of a cluster, and the first user of a new one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.sasl import LISTENER, MODULES, plain, scram
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

PASSWORD = "first-secret-1"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker whose first user was written before its first start."""
    data = tmp_path_factory.mktemp("first") / "data"
    done = millstream("user", "first", "root", "--data-dir", str(data), "--password-file", "-", stdin=PASSWORD)
    assert done.returncode == 0, done.stderr
    assert (data / "first-users.json").stat().st_mode & 0o077 == 0
    assert PASSWORD not in (data / "first-users.json").read_text()
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "delegation.token.secret.key": "s",
        f"{LISTENER}.scram-sha-512.sasl.jaas.config": (
            f'{MODULES}.scram.ScramLoginModule required username="root" password="{PASSWORD}";'
        ),
    }
    with EmbeddedBroker(settings, data_dir=data) as running:
        yield running


def millstream(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millstream", *arguments],
        input=stdin, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env={**os.environ, **environment},
    )  # fmt: skip


def user(broker: EmbeddedBroker, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    options = ["-b", broker.bootstrap_servers, "-X", "security.protocol=sasl_plaintext"]
    for name, value in (("mechanism", "SCRAM-SHA-512"), ("username", "root"), ("password", "${env:ROOT_PASSWORD}")):
        options += ["-X", f"sasl.{name}={value}"]
    return millstream("user", *arguments, *options, stdin=stdin, ROOT_PASSWORD=PASSWORD)


def can_log_in(broker: EmbeddedBroker, name: str, password: str, **extensions: str) -> bool:
    with Wire(broker.bootstrap_servers) as wire:
        return not scram(wire, "SCRAM-SHA-512", name, password, extensions).error_code


def test_users_are_added_listed_and_log_in(broker: EmbeddedBroker, tmp_path: Path) -> None:
    added = user(broker, "add", "ann", "--password-file", "-", stdin="one\n")
    assert added.returncode == 0, added.stderr
    assert can_log_in(broker, "ann", "one")
    assert "exists" in user(broker, "add", "ann", "--password-file", "-", stdin="one\n").stderr
    listed = {row["name"]: row["iterations"] for row in json.loads(user(broker, "list", "--json").stdout)}
    assert listed["ann"] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192} and "root" in listed
    (tmp_path / "new").write_text("two\n")
    assert user(broker, "password", "ann", "--password-file", str(tmp_path / "new")).returncode == 0
    assert can_log_in(broker, "ann", "two") and not can_log_in(broker, "ann", "one")
    assert user(broker, "remove", "ann").returncode == 0
    assert not can_log_in(broker, "ann", "two")
    again = user(broker, "remove", "ann")
    assert again.returncode and "no user ann" in again.stderr


def test_passwords_are_not_arguments(broker: EmbeddedBroker) -> None:
    without = user(broker, "add", "ben")
    assert without.returncode and "--password-file" in without.stderr
    assert "empty" in user(broker, "add", "ben", "--password-file", "-", stdin="\n").stderr


def test_tokens_are_created_and_log_in(broker: EmbeddedBroker) -> None:
    made = json.loads(user(broker, "token", "create", "--max-lifetime", "1h", "--renewer", "User:ann").stdout)
    assert made["owner"] == "User:root" and made["renewers"] == ["User:ann"]
    assert can_log_in(broker, made["token_id"], made["hmac"], tokenauth="true")
    shown = user(broker, "token", "list").stdout
    assert made["token_id"] in shown and made["hmac"] not in shown
    assert "expires" in user(broker, "token", "renew", made["hmac"], "--for", "30m").stdout
    assert user(broker, "token", "expire", made["hmac"]).returncode == 0
    assert not can_log_in(broker, made["token_id"], made["hmac"], tokenauth="true")
    assert "no token" in user(broker, "token", "expire", made["hmac"]).stderr
    assert "base64" in user(broker, "token", "expire", "???").stderr


def test_a_first_user_is_for_new_clusters(broker: EmbeddedBroker) -> None:
    late = millstream("user", "first", "x", "--data-dir", str(broker.data_dir), "--password-file", "-", stdin="x")
    assert late.returncode and "user add" in late.stderr


def test_serve_makes_the_first_user(tmp_path: Path) -> None:
    """The same with `serve --bootstrap-user`: the password comes from the environment."""
    from millstream.testing.node_process import NodeProcess, free_ports

    address = f"127.0.0.1:{free_ports(1)[0]}"
    (tmp_path / "password").write_text("boot-secret\n")
    jaas = f'{MODULES}.plain.PlainLoginModule required username="n" password="n" user_n="n";'
    arguments = ["--listen", address, "--data-dir", str(tmp_path / "data"), "--bootstrap-user", "boot",
                 "--bootstrap-password-file", str(tmp_path / "password")]  # fmt: skip
    settings = (
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-256,PLAIN",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        f"{LISTENER}.plain.sasl.jaas.config={jaas}",
    )
    (tmp_path / "server.properties").write_text("\n".join(settings))
    arguments += ["--config", str(tmp_path / "server.properties")]
    node = NodeProcess("the broker", arguments, tmp_path / "log", stop_timeout=TIMEOUT_SECONDS)
    node.spawn()
    try:
        node.wait_until_ready(60)
        with Wire(address) as wire:
            assert scram(wire, "SCRAM-SHA-256", "boot", "boot-secret").error_code == 0
        with Wire(address) as wire:
            assert plain(wire, "n", "n").error_code == 0
    finally:
        node.reap(signal.SIGTERM)
