"""Fixtures of these tests are those of `unit/node/consensus/quorum`."""

from tests.unit.node.consensus.quorum.conftest import environment, loop, node, threads  # noqa: F401
