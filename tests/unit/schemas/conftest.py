"""A registry for each test."""

from collections.abc import Iterator

import pytest

from tests.unit.schemas.tiny_registry import TinyRegistry, running


@pytest.fixture
def registry() -> Iterator[TinyRegistry]:
    with running() as server:
        yield server
