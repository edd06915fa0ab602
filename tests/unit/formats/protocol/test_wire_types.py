"""The types of the wire messages: current, and mypy finds a wrong or forgotten field in a handler by them."""

import runpy
from pathlib import Path

import pytest
from mypy import api as mypy

from millstream.formats.protocol import wire_types
from millstream.formats.protocol.schema import request_schema

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())

RIGHT = """
from millstream.formats.protocol.wire_types import HeartbeatRequest, HeartbeatResponse, ListGroupsResponse

def heartbeat(request: HeartbeatRequest) -> HeartbeatResponse:
    return {"error_code": len(request.group_id)}

def list_groups() -> ListGroupsResponse:
    return {"groups": [{"group_id": "g", "protocol_type": "", "group_state": "Stable", "group_type": "classic"}]}
"""
WRONG = {
    "a field that the request does not have": ("request.group_id", "request.grup_id", "has no attribute"),
    "a field that the response does not have": ('"error_code":', '"eror_code":', "Extra key"),
    "a forgotten field": (', "group_type": "classic"', "", "Missing key"),
    "a value of another type": ("len(request.group_id)", "request.group_id", "Incompatible types"),
}


def check(program: str, directory: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    file = directory / f"{name}.py"  # one for each program: mypy's cache goes by size and second
    file.write_text(program)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    out, problem, _ = mypy.run(["--strict", "--config-file=", f"--cache-dir={directory.parent / 'cache'}", str(file)])
    return out + problem


def test_the_stub_file_is_what_the_tool_writes() -> None:
    tool = runpy.run_path(str(ROOT / "tools/generate_wire_types.py"))
    written = (ROOT / "src/millstream/formats/protocol/wire_types.pyi").read_text()
    assert tool["generate"]() == written, "run tools/generate_wire_types.py"


def test_a_right_handler_passes_and_wrong_ones_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Success" in check(RIGHT, tmp_path, "right", monkeypatch)
    for number, (title, (right, wrong, expected)) in enumerate(WRONG.items()):
        assert RIGHT.count(right) == 1, title
        found = check(RIGHT.replace(right, wrong), tmp_path, f"wrong{number}", monkeypatch)
        assert expected in found, f"{title}: {found}"


def test_annotations_name_classes_that_exist_at_run_time() -> None:
    assert isinstance(request_schema("heartbeat").root.new(), wire_types.HeartbeatRequest)
    assert wire_types.HeartbeatResponse is dict
    with pytest.raises(AttributeError, match="Nothing"):
        _ = wire_types.Nothing  # type: ignore[attr-defined]
