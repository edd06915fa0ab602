"""Java's names of cipher suites, as OpenSSL's."""

import pytest

from millstream.config.setting import ConfigError
from millstream.node.security.cipher_suites import TLS_1_3, split_suites


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_names(java: str, openssl: str) -> None:
    assert split_suites([java]) == (openssl, False)


def test_suites_of_tls_1_3_come_together() -> None:
    assert split_suites(TLS_1_3) == ("", True)
    with pytest.raises(ConfigError, match="enabled or disabled together"):
        split_suites(["TLS_AES_128_GCM_SHA256"])


@pytest.mark.parametrize("name", ["TLS_RSA_WITH_NULL_SHA256", "TLS_FUTURE", "all:!aNULL", "@STRENGTH"])
def test_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a supported cipher suite"):
        split_suites([name])
