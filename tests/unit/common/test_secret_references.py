"""References to secrets in settings."""

from pathlib import Path

import pytest

from millstream.common.secret_references import SecretError, resolve_all


def test_each_kind_of_reference_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("a.key=one\nb=tw\\u006f\n")
    (tmp_path / "whole").write_text("three\n")
    values = {
        "file": f"${{file:{tmp_path}/secrets.properties:a.key}}",
        "inside": f'user="${{file:{tmp_path}/secrets.properties:b}}" and ${{env:NAME}};',
        "whole": f"${{file:{tmp_path}/whole}}",
        "directory": f"${{dir:{tmp_path}:whole}}${{directory:{tmp_path}:whole}}",
        "other": "${something:else} ${HOME} $x",
        "plain": "x",
    }
    assert resolve_all(values, {"NAME": "four"}) == {
        "file": "one",
        "inside": 'user="two" and four;',
        "whole": "three",
        "directory": "threethree",
        "other": "${something:else} ${HOME} $x",
        "plain": "x",
    }


def test_providers_of_kafka_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("k=v")
    values = {
        "config.providers": "vault, e",
        "config.providers.vault.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "config.providers.e.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "a": f"${{vault:{tmp_path}/f:k}}${{e:X}}",
    }
    assert resolve_all(values, {"X": "y"})["a"] == "vy"
    with pytest.raises(SecretError, match=r"config\.providers\.vault\.class=Other: supported are File"):
        resolve_all(values | {"config.providers.vault.class": "Other"}, {})


def test_a_value_is_not_resolved_again(tmp_path: Path) -> None:
    """A secret that looks like a reference is the secret."""
    assert resolve_all({"a": "${env:A}"}, {"A": "${env:B}", "B": "x"}) == {"a": "${env:B}"}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("${env:NONE}", "variable NONE is not set"),
        ("${env:}", "write"),
        ("${file:/nowhere/x:k}", "/nowhere/x cannot be read: no such file"),
        ("${file:}", "write"),
        ("${dir:/tmp:../etc/passwd}", "write"),
    ],
)
def test_an_unresolved_reference_is_an_error_that_names_its_setting(reference: str, said: str) -> None:
    with pytest.raises(SecretError, match=said) as error:
        resolve_all({"ssl.key.password": reference}, {})
    assert str(error.value).startswith("ssl.key.password: ")


def test_a_missing_key_shows_no_value(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("other=hunter2")
    with pytest.raises(SecretError, match="has no property k") as error:
        resolve_all({"a": f"${{file:{tmp_path}/f:k}}"})
    assert "hunter2" not in str(error.value)
