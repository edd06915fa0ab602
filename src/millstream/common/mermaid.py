"""Graphs as Mermaid text, which GitHub, GitLab, MkDocs and the console draw."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_SHAPES = {"topic": ("([", "])"), "table": ("[(", ")]"), "console": ("[/", "/]"), "dead_letters": ("([", "])")}
_STEP = ("[", "]")


class Node(NamedTuple):
    id: str
    kind: str
    title: str
    detail: str


class Edge(NamedTuple):
    begin: str
    end: str
    label: str = ""
    dotted: bool = False


def to_mermaid(nodes: Iterable[Node], edges: Iterable[Edge]) -> str:
    """A flow chart from left to right. Edges whose nodes are not there are left out."""
    ids = {}
    lines = ["flowchart LR"]
    for number, node in enumerate(nodes):
        ids[node.id] = f"n{number}"
        lines.append(f"  n{number}{_shape(node)}")
    for edge in edges:
        if edge.begin in ids and edge.end in ids:
            line = "-.->" if edge.dotted else "-->"
            label = f'|"{_escaped(edge.label)}"|' if edge.label else ""
            lines.append(f"  {ids[edge.begin]} {line}{label} {ids[edge.end]}")
    return "\n".join(lines) + "\n"


def _shape(node: Node) -> str:
    begin, end = _SHAPES.get(node.kind, _STEP)
    detail = f"<br/>{_escaped(node.detail)}" if node.detail and node.detail != node.title else ""
    return f'{begin}"{_escaped(node.title)}{detail}"{end}'


def _escaped(text: str) -> str:
    """Mermaid's entities for the characters that end a label, or are read as HTML or Markdown; on one line."""
    return re.sub(r"[^\w .,:;/()+*=·…%-]", lambda found: f"#{ord(found[0])};", " ".join(text.split()))
