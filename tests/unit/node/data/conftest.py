"""Fixtures of these tests are those of `integration/node/broker`."""

from tests.integration.node.broker.conftest import topic  # noqa: F401
