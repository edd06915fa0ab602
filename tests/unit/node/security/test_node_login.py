"""The login of a node to others: what its settings need, and its change while the node runs."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.common.properties import Property
from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import broker_config_from
from millstream.config.setting import ConfigError
from millstream.config.table import sasl
from millstream.node.security.sasl_listeners import NodeLogin, node_login
from tests.sasl import MODULES

SETTING = sasl.SASL_MECHANISM_INTER_BROKER_PROTOCOL
PREFIX = "listener.name.sasl_plaintext"


def config(mechanism: str, **more: str) -> BrokerConfig:
    values = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return broker_config_from([Property(name, value, "test") for name, value in values.items()])


def plain(user: str) -> BrokerConfig:
    module = f'{MODULES}.plain.PlainLoginModule required username="{user}" password="p";'
    return config("PLAIN", **{f"{PREFIX}.plain.sasl.jaas.config": module})


def made(settings: BrokerConfig) -> NodeLogin:
    environment: Any = SimpleNamespace(offload=None)
    login = node_login(settings, "SASL_PLAINTEXT", SETTING, environment)
    assert login is not None
    return login


def user_of(login: NodeLogin) -> str:
    sent: list[bytes] = []

    async def ask(api: str, fields: Mapping[str, Any]) -> Any:
        sent.append(fields.get("auth_bytes", b""))
        return SimpleNamespace(error_code=0, auth_bytes=b"", session_lifetime_ms=0)

    asyncio.run(login.log_in(ask, "other.example"))
    return sent[-1].split(b"\0")[1].decode()


def test_a_changed_user_is_taken_over() -> None:
    login = made(plain("one"))
    assert login.prepare(plain("one")) is None
    take = login.prepare(plain("two"))
    assert take is not None and user_of(login) == "one"
    take()
    assert user_of(login) == "two"
    assert login.prepare(plain("two")) is None


def test_a_change_that_cannot_be_used_changes_nothing() -> None:
    login = made(plain("one"))
    with pytest.raises(ConfigError, match="has no user"):
        login.prepare(plain(""))
    assert user_of(login) == "one"


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({}, "sasl.oauthbearer.token.endpoint.url", "has no token"),
        ({"sasl.oauthbearer.token.endpoint.url": "ftp://x/y"}, "sasl.oauthbearer.token.endpoint.url", "is not allowed"),
        (
            {"sasl.oauthbearer.token.endpoint.url": "http://tokens.example/t"},
            "sasl.oauthbearer.token.endpoint.url",
            "needs https",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "https://tokens.example/t"},
            "sasl.oauthbearer.client.credentials.client.id",
            "token service",
        ),
        (
            {
                "sasl.oauthbearer.token.endpoint.url": "http://localhost:1/t",
                "sasl.oauthbearer.client.credentials.client.id": "node",
            },
            "sasl.oauthbearer.client.credentials.client.secret",
            "token service",
        ),
    ],
)
def test_wrong_settings_of_tokens_are_refused(settings: dict[str, str], name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        made(config("OAUTHBEARER", **settings))
    assert refused.value.name == name


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("", "no keytab"),
        ("com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;", "needs a keytab"),
        (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab=/no/such principal=kafka;",
            "not a Kerberos principal",
        ),
        (
            'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab=/no/such principal="k/h@R";',
            "cannot be read",
        ),
    ],
)
def test_wrong_settings_of_kerberos_are_refused(module: str, reason: str) -> None:
    given = {f"{PREFIX}.gssapi.sasl.jaas.config": module} if module else {}
    with pytest.raises(ConfigError, match=reason):
        made(config("GSSAPI", **given))


def test_kerberos_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    keytab = tmp_path / "keytab"
    keytab.touch()
    module = f'Krb5LoginModule required useKeyTab=true keyTab="{keytab}" principal="kafka/h@R" serviceName=kafka;'
    with pytest.raises(ConfigError, match=r"pip install 'millstream\[gssapi\]'"):
        made(config("GSSAPI", **{f"{PREFIX}.gssapi.sasl.jaas.config": module}))
