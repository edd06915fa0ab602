"""Credentials of delegation tokens: what a login costs, and what a client without a token can cause."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import DelegationTokenRecord
from millstream.node.security.core.scram import SCRAM_SHA_256, Found
from millstream.node.security.credentials import Credentials

TOKEN = DelegationTokenRecord(
    owner="User:ann",
    requester="User:ann",
    renewers=(),
    issue_timestamp=0,
    max_timestamp=1000,
    expiration_timestamp=1000,
    token_id="known",
)


def finding(secret: str | None, now_ms: int = 7) -> tuple[Callable[[str], Found], list[int]]:
    """Finds tokens by id; the list has a number for each computation in a thread."""
    computed: list[int] = []
    image: Any = SimpleNamespace(delegation_tokens={"known": TOKEN}, cluster_id="cluster", scram_credentials={})

    async def offload(work: Callable[[], Any]) -> Any:
        computed.append(1)
        return work()

    environment: Any = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: now_ms), offload=offload)
    images: Callable[[], MetadataImage] = lambda: image  # noqa: E731
    credentials = Credentials(images, secret, environment)
    return lambda name: asyncio.run(credentials.find(SCRAM_SHA_256, name, True)), computed


@pytest.mark.parametrize(("secret", "name", "now_ms"), [("s", "unknown", 7), (None, "known", 7), ("s", "known", 2000)])
def test_a_token_that_is_not_valid_costs_no_computation(secret: str | None, name: str, now_ms: int) -> None:
    find, computed = finding(secret, now_ms)
    found = find(name)
    assert not found.exists and found.by_token and not computed
    assert (found.credential.salt, found.credential.iterations) == (find(name).credential.salt, 4096)


def test_a_token_is_computed_once() -> None:
    find, computed = finding("s")
    first, second = find("known"), find("known")
    assert (first.exists, first.user, first.by_token) == (True, "ann", True)
    assert first.credential == second.credential and len(computed) == 1
