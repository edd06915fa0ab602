"""The table of cases in `compatibility_cases.yaml`, each asked both ways."""

import base64
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from millstream.registry.formats import ParsedSchema
from millstream.registry.registering import FORMATS

TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parent / "compatibility_cases.yaml").read_text()
)
CASES = [pytest.param(kind, case, id=f"{kind}: {case['rule']}") for kind, cases in TABLE.items() for case in cases]


def compiled(text: str) -> str:
    """As a descriptor in base64: by protoc within this process, since a process for each of so many takes long."""
    with tempfile.TemporaryDirectory() as directory:
        content = text if text.startswith("syntax") else f'syntax = "proto3"; {text}'
        (Path(directory) / "case.proto").write_text(content)
        out = Path(directory) / "out"
        assert protoc.main(["protoc", f"-I{directory}", f"--descriptor_set_out={out}", "case.proto"]) == 0
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return base64.b64encode(file.SerializeToString()).decode()


@cache
def parsed(kind: str, text: str) -> ParsedSchema:
    return FORMATS[kind].parse(compiled(text) if kind == "PROTOBUF" else json.dumps(yaml.safe_load(text)), ())


def expected(verdict: Any) -> list[str]:
    return [] if verdict == "yes" else [verdict] if isinstance(verdict, str) else verdict


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_each_case_has_the_expected_problems(kind: str, case: dict[str, Any]) -> None:
    old, new = parsed(kind, case["old"]), parsed(kind, case["new"])
    backward, forward = new.problems_reading(old), old.problems_reading(new)
    assert [problem.kind for problem in backward] == expected(case["backward"]), backward
    assert [problem.kind for problem in forward] == expected(case["forward"]), forward
    for problem in backward + forward:
        assert problem.path.startswith("/"), "it says where"
        assert len(problem.text) > 20, "and what to do"


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_every_schema_reads_what_it_wrote_itself(kind: str, case: dict[str, Any]) -> None:
    for text in (case["old"], case["new"]):
        schema = parsed(kind, text)
        again = FORMATS[kind].parse(schema.canonical, ()) if kind != "PROTOBUF" else schema
        assert again.canonical == schema.canonical
        assert again.problems_reading(schema) == []


def test_the_table_is_large_enough() -> None:
    assert len(CASES) >= 60
    assert set(TABLE) == set(FORMATS)
