"""Pictures of pipelines: what is in them, where it stands, and that they are sound."""

import os
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millstream.pipeline.drawing.graph import Arrow, Box, Graph, graph_of, lay_out, to_mermaid
from millstream.pipeline.drawing.svg import to_svg
from millstream.pipeline.drawing.text import to_text
from millstream.pipeline.skew import Series, bar_text, bars_svg
from tests.system.pipeline.definitions import DOCS, PAYMENTS, SOURCE, documented, look_at, messages, pipeline_text

_SVG = "{http://www.w3.org/2000/svg}"
STEPS = """
checked: {route: {from: orders, branches: {good: amount > 0}, rest: odd}}
paid: {join: {left: good, right: payments, on: order_id, within: 10 minutes}}
per_minute: {window: {from: paid, tumbling: 1 minute, time: at, aggregate: {n: count(*)}}}
"""
SINKS = """
minutes: {from: per_minute, topic: minutes}
odd: {from: odd, table: ./odd}
screen: {from: paid, console: }
"""


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    found = look_at(tmp_path, pipeline_text(SOURCE + PAYMENTS, STEPS, SINKS))
    assert found.pipeline is not None, messages(found)
    return graph_of(found.pipeline)


def test_every_step_has_a_box_and_its_arrows(graph: Graph) -> None:
    assert {box.kind for box in graph.boxes} == {"topic", "route", "join", "window", "table", "console", "dead_letters"}
    arrows = {(arrow.begin, arrow.end): arrow.label for arrow in graph.arrows}
    assert arrows["step:checked", "step:paid"] == "good"
    assert arrows["step:checked", "sink:odd"] == "odd"
    assert arrows["source:payments", "step:paid"] == ""
    assert ("source:orders", "dead letters") in arrows  # what cannot be read
    assert ("step:checked", "dead letters") not in arrows  # its rest is a branch


def test_arrows_lead_to_the_right_and_boxes_do_not_touch(graph: Graph) -> None:
    layout = lay_out(graph)
    for route in layout.routes:
        columns = [layout.column_of[point] for point in route.points]
        assert columns == list(range(columns[0], columns[-1] + 1))
        assert len(columns) > 1
    for column in layout.columns:
        rows = [layout.row_of[name] for name in column if name not in layout.bends]
        assert all(below - above >= 0.999 for above, below in pairwise(rows))
    assert {layout.column_of[box.id] for box in graph.boxes if box.id.startswith("source:")} == {0}
    last = len(layout.columns) - 1
    assert {layout.column_of[box.id] for box in graph.boxes if box.id.startswith("sink:")} == {last}


def test_needless_crossings_are_avoided() -> None:
    """Two lanes that are listed crosswise."""
    boxes = [Box(f"source:{name}", "topic", name, "", 1) for name in "ab"]
    boxes += [Box(f"step:{name}", "sql", name, "", 1) for name in "ba"]
    boxes += [Box(f"sink:{name}", "topic", name, "", 1) for name in "ab"]
    arrows = [Arrow(f"source:{name}", f"step:{name}") for name in "ab"]
    arrows += [Arrow(f"step:{name}", f"sink:{name}") for name in "ab"]
    layout = lay_out(Graph("lanes", tuple(boxes), tuple(arrows)))
    for name in "ab":
        rows = {layout.row_of[f"{part}:{name}"] for part in ("source", "step", "sink")}
        assert max(rows) - min(rows) < 0.01


def test_svg_is_sound_and_says_everything(graph: Graph) -> None:
    text = to_svg(graph)
    root = ElementTree.fromstring(text)
    assert root.tag == f"{_SVG}svg"
    assert "prefers-color-scheme:dark" in text
    written = {element.text for element in root.iter(f"{_SVG}text")}
    for box in graph.boxes:
        assert box.title in written and box.detail in written
    assert {"good", "odd"} <= written
    width = float(root.attrib["width"])
    places = [float(element.attrib["x"]) for element in root.iter(f"{_SVG}text")]
    assert min(places) > 0 and max(places) < width
    assert to_svg(graph) == text  # the same every time


def test_svg_escapes_what_a_file_says() -> None:
    graph = Graph(
        "a<b",
        (Box("source:x", "topic", "x", "json · <&>", 3), Box("sink:y", "topic", "y", "", 4)),
        (Arrow("source:x", "sink:y"),),
    )
    root = ElementTree.fromstring(to_svg(graph))
    assert "json · <&>" in {element.text for element in root.iter(f"{_SVG}text")}


def test_text_has_a_box_for_each_and_arrows(graph: Graph) -> None:
    text = to_text(graph)
    for box in graph.boxes:
        assert f"│ {box.title}" in text
    assert "▶│ paid" in text
    assert re.search(r"┌─+┐", text) and " good " in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_picture_in_the_documentation_is_of_its_file(tmp_path: Path) -> None:
    found = documented(tmp_path)
    assert found.pipeline is not None
    picture = to_svg(graph_of(found.pipeline))
    path = DOCS.parent / "pictures" / "pipeline.svg"
    if os.environ.get("MILLSTREAM_PICTURES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture)
    assert path.read_text() == picture, "draw it again: MILLSTREAM_PICTURES=1 pytest tests/unit/pipeline/test_graph.py"


def test_bars_are_drawn_as_svg_and_text() -> None:
    svg = bars_svg("shares", ["p0", "p1"], [Series("now", [0.9, 0.1]), Series("spread", [0.5, 0.5])], 0.5, "even")
    root = ElementTree.fromstring(svg)
    assert {"p0", "p1", "90.0%", "even"} <= {element.text for element in root.iter(f"{_SVG}text")}
    assert bar_text(1.0, 1.0, 4) == "████"
    assert bar_text(0.5, 1.0, 4) == "██"
    assert bar_text(0.0, 0.0, 4) == ""


def test_mermaid_has_every_box_and_arrow_and_no_markup_of_names(graph: Graph) -> None:
    text = to_mermaid(graph)
    assert text.startswith("flowchart LR\n")
    assert len(re.findall(r"^  n\d+[\[(]", text, re.MULTILINE)) == len(graph.boxes)
    assert len(re.findall(r"--?\.?->", text)) == len(graph.arrows)
    assert '-->|"good"|' in text
    odd = Graph("odd", (Box("a", "sql", 'x"]; click a "javascript:1" <b>', "`d`", 1),), ())
    assert re.fullmatch(r'flowchart LR\n  n0\["[^"<>`]*<br/>[^"<>`]*"\]\n', to_mermaid(odd))
