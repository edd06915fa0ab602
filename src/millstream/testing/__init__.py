"""For tests: a real broker or cluster as child processes, and a pytest plugin. Public.

with EmbeddedBroker() as broker:
    client = millstream.connect(broker.bootstrap_servers)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.testing.embedded import EmbeddedBroker, EmbeddedBrokerError
    from millstream.testing.embedded_cluster import EmbeddedCluster

__all__ = ["EmbeddedBroker", "EmbeddedBrokerError", "EmbeddedCluster"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: pytest imports this package in every run of every project with Millstream installed.
    if name in __all__:
        from millstream.testing import embedded, embedded_cluster

        return getattr(embedded_cluster if name == "EmbeddedCluster" else embedded, name)
    raise AttributeError(f"module 'millstream.testing' has no attribute {name!r}")
