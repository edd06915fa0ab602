"""The live view of a shared query: a row for each output, what is read once, and expectations that are not met."""

import io

from rich.console import Console

from millstream.pipeline.engine.live_view import LiveView
from tests.unit.pipeline.shared_progress import SHARED


def test_a_table_with_a_row_for_each_output() -> None:
    paper = io.StringIO()
    screen = Console(file=paper, force_terminal=True, width=150, no_color=True)
    view = LiveView("shop", screen)
    view.show(SHARED)
    screen.print(view.render())
    rows = {line.split("  ")[0]: line.split() for line in paper.getvalue().splitlines()}
    assert rows["sales"] == ["sales", "orders", "67", "8,765", "33", "3,100", "7", "1.5", "s"]
    assert rows["lake"] == ["lake", "66", "4,199"]
    assert rows["checked (dead letters)"][-2:] == ["1", "701"]
    assert "expectations that are not met: priced.has_price 21 (drop)" in paper.getvalue()
    assert "positive" not in paper.getvalue()


def test_a_line_without_a_terminal() -> None:
    paper = io.StringIO()
    view = LiveView("shop", Console(file=paper, width=300))
    with view:
        view.show(SHARED)
    assert paper.getvalue() == (
        "sales, lake, checked (dead letters): batch 7; orders 67 rows/s, lag 8,765; "
        "priced.has_price not met 21 times (drop); out 8,000; took 1500 ms\n"
    )
