"""A graph as Mermaid text, for Markdown pages: GitHub, GitLab and MkDocs draw it. Rates are on the arrows, if given."""

import re
from collections.abc import Mapping

from millstream.pipeline.drawing.graph import DEAD_LETTERS, Arrow, Box, Graph

_SHAPES = {"topic": ("([", "])"), "table": ("[(", ")]"), "console": ("[/", "/]"), "dead_letters": ("([", "])")}
_STEP = ("[", "]")


def to_mermaid(graph: Graph, labels: Mapping[Arrow, str] | None = None) -> str:
    """`labels`: a text for an arrow, such as its rate, after the name of its branch."""
    ids = {box.id: f"n{index}" for index, box in enumerate(graph.boxes)}
    lines = ["flowchart LR", *(f"  {ids[box.id]}{_node(box)}" for box in graph.boxes)]
    for arrow in graph.arrows:
        texts = [text for text in (arrow.label, (labels or {}).get(arrow, "")) if text]
        line = "-.->" if arrow.end == DEAD_LETTERS else "-->"
        label = f'|"{_escaped(" · ".join(texts))}"|' if texts else ""
        lines.append(f"  {ids[arrow.begin]} {line}{label} {ids[arrow.end]}")
    return "\n".join(lines) + "\n"


def _node(box: Box) -> str:
    begin, end = _SHAPES.get(box.kind, _STEP)
    detail = f"<br/><small>{_escaped(box.detail)}</small>" if box.detail and box.detail != box.title else ""
    return f'{begin}"<b>{_escaped(box.title)}</b>{detail}"{end}'


def _escaped(text: str) -> str:
    """Mermaid's entities for the characters that end a label or are read as HTML or Markdown."""
    return re.sub(r'[#"<>&`\\]', lambda found: f"#{ord(found[0])};", text)
