"""What tests need, shipped and maintained like product code: the embedded broker and its pytest plugin.

with EmbeddedBroker() as broker:
    client = millstream.connect(broker.bootstrap_servers)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.testing.embedded import EmbeddedBroker, EmbeddedBrokerError

__all__ = ["EmbeddedBroker", "EmbeddedBrokerError"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: pytest imports this package in every run of every project that has Millstream installed.
    if name in __all__:
        from millstream.testing import embedded

        return getattr(embedded, name)
    raise AttributeError(f"module 'millstream.testing' has no attribute {name!r}")
