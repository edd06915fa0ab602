"""Fixtures of these tests are those of `integration/cli`."""

from tests.integration.cli.conftest import offline  # noqa: F401
