"""Fixtures of these tests are those of `unit/columnar`."""

from tests.unit.columnar.conftest import implementation  # noqa: F401
