"""Fixtures of these tests are those of `unit/node/storage`."""

from tests.unit.node.storage.conftest import disk, node, root  # noqa: F401
