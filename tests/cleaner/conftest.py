"""Log directories for the cleaner's tests: the same as storage's own."""

from tests.storage.conftest import disk, make_node, node, root

__all__ = ["disk", "make_node", "node", "root"]
