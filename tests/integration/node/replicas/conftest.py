"""Fixtures of these tests are those of `unit/node/replicas`."""

from tests.unit.node.replicas.conftest import replicated, running  # noqa: F401
