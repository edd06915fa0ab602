"""The graph of a pipeline as nodes and edges of Mermaid, and as a document for the console."""

from typing import Any

from millstream.common import mermaid
from millstream.pipeline.drawing.graph import DEAD_LETTERS, Graph


def to_mermaid(graph: Graph) -> str:
    nodes = [mermaid.Node(box.id, box.kind, box.title, box.detail) for box in graph.boxes]
    edges = [mermaid.Edge(each.begin, each.end, each.label, each.end == DEAD_LETTERS) for each in graph.arrows]
    return mermaid.to_mermaid(nodes, edges)


def to_document(graph: Graph) -> dict[str, Any]:
    """Boxes and arrows as JSON; ids begin with `source:`, `step:` or `sink:`."""
    return {
        "boxes": [[box.id, box.kind, box.title, box.detail] for box in graph.boxes],
        "arrows": [[arrow.begin, arrow.end, arrow.label] for arrow in graph.arrows],
    }
