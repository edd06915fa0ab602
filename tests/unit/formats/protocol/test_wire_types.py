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


def check(programs: dict[str, str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What one run of mypy finds in each program, by their names."""
    files = {name: directory / f"{name}.py" for name in programs}
    for name, file in files.items():
        file.write_text(programs[name])
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    options = ["--strict", "--config-file=", "--cache-dir=/dev/null", "--no-error-summary", "--show-absolute-path"]
    out, problem, _ = mypy.run([*options, *map(str, files.values())])
    assert not problem, problem
    return {
        name: "\n".join(line for line in out.splitlines() if line.startswith(f"{file}:"))
        for name, file in files.items()
    }


def test_the_stub_file_is_what_the_tool_writes() -> None:
    tool = runpy.run_path(str(ROOT / "tools/generate_wire_types.py"))
    written = (ROOT / "src/millstream/formats/protocol/wire_types.pyi").read_text()
    assert tool["generate"]() == written, "run tools/generate_wire_types.py"


def test_a_right_handler_passes_and_wrong_ones_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {"right": RIGHT}
    for title, (right, wrong, _) in WRONG.items():
        assert RIGHT.count(right) == 1, title
        programs[title.replace(" ", "_")] = RIGHT.replace(right, wrong)
    found = check(programs, tmp_path, monkeypatch)
    assert found["right"] == ""
    for title, (_, _, expected) in WRONG.items():
        assert expected in found[title.replace(" ", "_")], f"{title}: {found}"


def test_annotations_name_classes_that_exist_at_run_time() -> None:
    assert isinstance(request_schema("heartbeat").root.new(), wire_types.HeartbeatRequest)
    assert wire_types.HeartbeatResponse is dict
    with pytest.raises(AttributeError, match="Nothing"):
        _ = wire_types.Nothing  # type: ignore[attr-defined]
