"""Rules from Kerberos principals to users, as Kafka's."""

import pytest

from millstream.node.security.core.kerberos_names import KerberosNameError, KerberosNames

REALM = "EXAMPLE.COM"


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        (["DEFAULT"], "alice@EXAMPLE.COM", "alice"),
        (["DEFAULT"], "kafka/host.example@EXAMPLE.COM", "kafka"),
        (["RULE:[1:$1@$0](.*@OTHER.ORG)s/@.*//", "DEFAULT"], "bob@OTHER.ORG", "bob"),
        (["RULE:[1:$1@$0](.*@OTHER.ORG)s/@.*//", "DEFAULT"], "bob@EXAMPLE.COM", "bob"),
        (["RULE:[2:$1.$2](app.*)s/\\.example//"], "app/one.example@EXAMPLE.COM", "app.one"),
        (["RULE:[1:$1]/L"], "ALICE@EXAMPLE.COM", "alice"),
        (["RULE:[1:$1](alice)s/a/b/g/U"], "alica@EXAMPLE.COM", None),
        (["RULE:[1:$1](alica)s/a/b/g/U"], "alica@EXAMPLE.COM", "BLICB"),
        (["RULE:[1:$1](alica)s/a/b/"], "alica@EXAMPLE.COM", "blica"),
        (["RULE:[1:$1](.*)s/(.*)-(.*)/$2.$1/"], "web-shop@EXAMPLE.COM", "shop.web"),
        (["RULE:[2:$1]"], "alice@EXAMPLE.COM", None),
        (["DEFAULT"], "alice@OTHER.ORG", None),
        (["RULE:[1:$1@$0]"], "alice@EXAMPLE.COM", None),
        (["DEFAULT"], "a/b/c@EXAMPLE.COM", None),
        (["DEFAULT"], "alice", None),
        (["DEFAULT"], "@EXAMPLE.COM", None),
    ],
)
def test_the_user_of_a_principal(rules: list[str], principal: str, user: str | None) -> None:
    names = KerberosNames(rules, REALM)
    if user is None:
        with pytest.raises(KerberosNameError):
            names.user(principal)
    else:
        assert names.user(principal) == user


@pytest.mark.parametrize(
    "rule", ["", "default", "RULE:", "RULE:[3:$1]", "RULE:[1:$2]", "RULE:[1:$]", "RULE:[1:$1]((?=a))", "RULE:[1:$1](a"]
)
def test_rules_that_are_refused(rule: str) -> None:
    with pytest.raises(KerberosNameError):
        KerberosNames([rule], REALM)
