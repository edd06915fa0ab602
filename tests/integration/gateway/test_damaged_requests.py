"""Requests that are damaged at random: whatever is sent, the gateway responds, and never with a mistake of its own."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.gateway.conftest import Caller

TABLE = yaml.safe_load((Path(__file__).parents[1] / "registry" / "compatibility_cases.yaml").read_text())
ODD: list[Any] = [None, True, 0, -1, 1.5, 2**70, "", "x", [], {}, [1], [["x"]], {"a": 1}, "\x00", "#/nowhere"]
KEYWORDS = ["type", "items", "name", "fields", "$ref", "enum", "allOf", "properties", "not", "aliases", "default"]


class Damage:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def damaged(self, document: Any) -> Any:
        if self.random.random() < 0.12:
            return self.random.choice(ODD)
        if isinstance(document, list):
            return [self.damaged(one) for one in document]
        if isinstance(document, dict):
            return {
                self.key(key): self.damaged(value) for key, value in document.items() if self.random.random() > 0.05
            }
        return document

    def key(self, key: str) -> str:
        return key if self.random.random() < 0.95 else self.random.choice(KEYWORDS)

    def schema(self) -> dict[str, Any]:
        kind = self.random.choice(["AVRO", "JSON"])
        case = self.random.choice(TABLE[kind])
        text = yaml.safe_load(case[self.random.choice(["old", "new"])])
        return {"schema": json.dumps(self.damaged(text)), "schemaType": kind}

    def request(self) -> tuple[str, str, Any]:
        subject = f"damaged-{self.random.choice('abcd')}"
        reference = {"name": "x", "subject": subject, "version": 1}
        whole = {**self.schema(), "references": [reference], "id": 3, "metadata": {"properties": {"a": "b"}}}
        choices: list[tuple[str, str, Any]] = [
            ("POST", f"/subjects/{subject}/versions", self.schema()),
            ("POST", f"/subjects/{subject}/versions?normalize=true", self.schema()),
            ("POST", f"/subjects/{subject}/versions", self.damaged(whole)),
            ("POST", f"/subjects/{subject}", self.damaged(whole)),
            ("POST", f"/compatibility/subjects/{subject}/versions?verbose=true", self.schema()),
            ("POST", f"/compatibility/subjects/{subject}/versions/latest", self.schema()),
            ("PUT", f"/config/{subject}", self.damaged({"compatibility": "FULL_TRANSITIVE", "normalize": False})),
            ("PUT", f"/mode/{subject}?force=true", self.damaged({"mode": "READWRITE"})),
            ("GET", f"/schemas/ids/{self.random.randint(0, 20)}?format=resolved&subject={subject}", None),
            ("DELETE", f"/subjects/{subject}/versions/latest", None),
            ("DELETE", f"/subjects/{subject}?permanent=true", None),
        ]
        return self.random.choice(choices)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_damaged_requests_get_a_client_error(call: Caller, seed: int) -> None:
    damage = Damage(seed)
    statuses: Counter[int] = Counter()
    for _ in range(150):
        method, path, body = damage.request()
        response = call(method, path, body)
        assert response.status < 500, (method, path, body, response.body)
        statuses[response.status] += 1
        if response.status >= 400:
            assert response.code // (1 if response.code < 1000 else 100) == response.status
    assert statuses[200] > 10, "not all of it was damaged beyond use"
