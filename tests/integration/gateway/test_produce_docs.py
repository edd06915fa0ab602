"""The examples of docs/http.md, run as they stand there."""

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
_PAGE = REPOSITORY / "docs" / "http.md"
_DIFFERENT_EACH_TIME = {"timestamp", "port", "cluster_id", "base_uri"}


def steady(value: Any) -> Any:
    """Without what is different each time."""
    if isinstance(value, dict):
        return {name: None if name in _DIFFERENT_EACH_TIME else steady(each) for name, each in value.items()}
    return [steady(each) for each in value] if isinstance(value, list) else value


def test_the_page_tells_the_truth() -> None:
    blocks = re.findall(r"```console\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    steps = [step.split("\n", 1) for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert len(steps) >= 5
    ours = ""
    with EmbeddedBroker() as broker, Gateway(GatewayOptions(broker.bootstrap_servers)) as gateway:
        for command, printed in steps:
            command = re.sub(r"(?<=clusters/)[^/]+", ours, command.replace("127.0.0.1:8081", gateway.address))
            done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
            found = json.loads(done.stdout)
            assert steady(found) == steady(json.loads(printed)), command
            ours = found.get("cluster_id", ours)
