"""The graph of a pipeline with its rates, as Mermaid, from what the pipeline publishes. Pure; the page shows it."""

from collections.abc import Mapping
from typing import Any

from millstream.common import mermaid

_STEP = "step:"


def graph_text(document: Mapping[str, Any]) -> str:
    """The graph as Mermaid, with the rates of the last batch: out of sources and steps, into sinks and dead letters.

    An arrow from a step has the rows that leave it, which for a route are those of the branch.
    """
    graph = document.get("graph") or {}
    into: dict[str, float] = {}
    out_of: dict[str, float] = {}
    of_steps: dict[str, float] = {}
    for query in document.get("queries") or []:
        for source in query.get("sources") or []:
            box = f"source:{source['source']}"
            out_of[box] = max(out_of.get(box, 0.0), float(source.get("rows_per_second") or 0))
        for step in query.get("steps") or []:
            if step.get("rows_per_second") is not None:
                of_steps[str(step["step"])] = float(step["rows_per_second"])
        outputs = query.get("outputs") or [
            {
                "sink": query["sink"],
                "rows_per_second": query.get("rows_out_per_second"),
                "dead_letters": query.get("dead_letters_total") is not None,
            }
        ]
        for output in outputs:
            box = "dead letters" if output.get("dead_letters") else f"sink:{output['sink']}"
            into[box] = into.get(box, 0.0) + float(output.get("rows_per_second") or 0)
    edges = []
    for begin, end, label in graph.get("arrows") or []:
        dotted = end == "dead letters"
        if dotted:
            found = None
        elif begin.startswith(_STEP):  # the label of an arrow is the branch of a route
            found = of_steps.get(label or begin.removeprefix(_STEP), into.get(end))
        else:
            found = into[end] if end in into else out_of.get(begin)
        texts = [str(label)] if label else []
        texts += [f"{found:,.0f}/s"] if found is not None else []
        edges.append(mermaid.Edge(str(begin), str(end), " · ".join(texts), dotted))
    nodes = [
        mermaid.Node(
            str(id),
            str(kind),
            str(title),
            f"{detail} · {into[id]:,.0f}/s" if id == "dead letters" and id in into else str(detail),
        )
        for id, kind, title, detail in graph.get("boxes") or []
    ]
    return mermaid.to_mermaid(nodes, edges)
