"""The graph of a pipeline on the console: rates out of sources and steps, into sinks and dead letters."""

from typing import Any

from millstream.console.pipeline_graph import graph_text

GRAPH = {
    "boxes": [
        ["source:orders", "topic", "orders", "json"],
        ["step:priced", "sql", "priced", "sql"],
        ["sink:out", "topic", "out", "json"],
        ["sink:lake", "table", "lake", "delta"],
        ["dead letters", "topic", "shop.dead-letters", "dead letters"],
    ],
    "arrows": [
        ["source:orders", "step:priced", ""],
        ["step:priced", "step:priced", "again"],
        ["step:priced", "sink:out", "good"],
        ["step:priced", "sink:lake", ""],
        ["step:priced", "dead letters", ""],
    ],
}


def query(name: str, rate: float, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    sources = [{"source": "orders", "rows_per_second": rate}]
    return {"query": name, "sink": name, "sources": sources, "outputs": outputs, "rows_out_per_second": 7.0}


def lines(*queries: dict[str, Any]) -> list[str]:
    return graph_text({"graph": GRAPH, "queries": list(queries)}).splitlines()


def edges(*queries: dict[str, Any]) -> list[str]:
    return [line for line in lines(*queries) if "--" in line or "-." in line]


def test_rates_of_a_shared_query_and_of_one_alone() -> None:
    shared = [
        {"sink": "out", "rows_per_second": 1200.0, "dead_letters": False},
        {"sink": "priced (dead letters)", "rows_per_second": 3.0, "dead_letters": True},
    ]
    found = lines(query("shop.orders.sinks", 1234.0, shared), query("lake", 1000.0, []))
    into_step, within, into_out, into_lake, letters = [line for line in found if "--" in line or "-." in line]
    assert "1,234/s" in into_step  # of two queries that read a source, the faster
    assert "/s" not in within
    assert "good · 1,200/s" in into_out
    assert "7/s" in into_lake
    assert "/s" not in letters
    assert any("dead letters · 3/s" in line for line in found)


def test_rates_out_of_steps_and_branches() -> None:
    graph = {
        "boxes": [
            ["step:priced", "sql", "priced", ""],
            ["step:checked", "route", "checked", ""],
            ["step:minutes", "window", "minutes", ""],
            ["sink:refunds", "topic", "refunds", ""],
            ["dead letters", "topic", "letters", ""],
        ],
        "arrows": [
            ["step:priced", "step:checked", ""],
            ["step:checked", "step:minutes", "good"],
            ["step:checked", "sink:refunds", "refunds"],
            ["step:priced", "dead letters", ""],
        ],
    }
    steps = [
        {"step": "priced", "rows_per_second": 1500.0},
        {"step": "good", "rows_per_second": 1400.0},
        {"step": "unknown", "rows_per_second": None},
    ]
    outputs = [{"sink": "refunds", "rows_per_second": 90.0, "dead_letters": False}]
    text = graph_text({"graph": graph, "queries": [{**query("shop.orders.sinks", 1.0, outputs), "steps": steps}]})
    into_route, good, refunds, letters = [line for line in text.splitlines() if "--" in line or "-." in line]
    assert "1,500/s" in into_route
    assert "good · 1,400/s" in good
    assert "refunds · 90/s" in refunds  # rows that only a sink reads are counted by the sink
    assert "/s" not in letters


def test_without_queries_there_are_no_rates() -> None:
    assert not any("/s" in line for line in lines())
    assert len(edges()) == len(GRAPH["arrows"])
