"""`sasl.jaas.config`: what is accepted, and that errors show no password."""

import pytest

from millstream.config.jaas import parse_jaas
from millstream.config.setting import ConfigError

NAME = "listener.name.clients.plain.sasl.jaas.config"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_login_module_with_users() -> None:
    text = f"""{MODULE} required  // who
        username="admin" password='se;cr=et'
        user_admin="a\\"b\\\\c" /* more */ user_bob=bobs ;"""
    module = parse_jaas(text, name=NAME)
    assert module.class_name == MODULE
    assert module.options["password"] == "se;cr=et"
    assert module.users == {"admin": 'a"b\\c', "bob": "bobs"}
    assert "bobs" not in repr(module)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the text ends"),
        (f"{MODULE};", "control flag"),
        (f'{MODULE} needed a="SECRET";', "control flag"),
        (f'{MODULE} required a="SECRET"', "the text ends"),
        (f"{MODULE} required a;", "no value"),
        (f'{MODULE} required a="SECRET', "no end"),
        (f'{MODULE} required a="SECRET" a="SECRET";', "twice"),
        (f'{MODULE} required a="SECRET"; {MODULE} required;', "after the semicolon"),
        (f"{MODULE} required /* a;", "comment"),
        (f'{MODULE} required ="SECRET";', "unexpected"),
    ],
)
def test_a_mistake_is_named_and_no_value_is_shown(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_jaas(text, name=NAME)
    assert "SECRET" not in str(caught.value) and NAME in str(caught.value)
