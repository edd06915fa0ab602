"""The examples of docs/http-consumers.md, run as they stand there."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
PAGE = REPOSITORY / "docs" / "http-consumers.md"
_DIFFERENT_EACH_TIME = {"timestamp", "instance_id", "member_id", "expires_in_ms", "position"}


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with EmbeddedBroker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        cluster.create_topic("orders", 2)
        with Gateway(GatewayOptions(broker.bootstrap_servers)) as running:
            yield running


def examples() -> list[tuple[str, str]]:
    """Commands and what they are said to print."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed.strip()))
    return found


def steady(text: str) -> list[Any]:
    """Line by line: JSON without what is different each time, other lines as they are."""
    return [_without(json.loads(line[line.index("{") :])) if "{" in line else line for line in text.splitlines()]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in _DIFFERENT_EACH_TIME}
    return [_without(each) for each in value] if isinstance(value, list) else value


def test_the_page_tells_the_truth(gateway: Gateway) -> None:
    commands = examples()
    assert len(commands) >= 8
    for command, expected in commands:
        command = command.replace("127.0.0.1:8081", gateway.address)
        printed = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60).stdout.strip()
        assert steady(printed) == steady(expected), command
