"""What limits count as one address."""

import pytest

from millstream.node.server.limits import address_key


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff:1:2:3", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("no:address", "no:address"),
        ("local", "local"),
    ],
)
def test_an_address_key_covers_a_network_of_ipv6(host: str, key: str) -> None:
    assert address_key(host) == key
