"""Fixtures of these tests are those of `unit/schemas`."""

from tests.unit.schemas.conftest import registry  # noqa: F401
