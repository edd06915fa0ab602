"""A request passes few files on its way to storage, and the design says how many."""

import re
import subprocess
import sys

from tests.repository import REPOSITORY

ROW = re.compile(r"^(.+?) +(\d+) files of the node \(at most (\d+)\), (\d+) of others$", re.M)


def test_each_request_passes_no_more_files_than_the_design_says() -> None:
    done = subprocess.run(
        [sys.executable, "tools/hops.py"], cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=True
    )
    rows = ROW.findall(done.stdout)
    assert len(rows) == 6, done.stdout
    page = (REPOSITORY / "docs" / "DESIGN.md").read_text()
    for name, files, limit, others in rows:
        assert int(files) <= int(limit), done.stdout
        row = f"| {name} | {files} | {limit} | {others} |"
        assert row in page, f"docs/DESIGN.md does not have the row {row}"
