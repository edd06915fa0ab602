"""Two clusters in network namespaces, with delay and loss between them: cuts, kills, failover, reverse."""

import subprocess
import sys

import pytest

from tests.repository import REPOSITORY
from tests.system.chaos import containment


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_sides_are_equal_after_cuts_kills_failover_and_reverse() -> None:
    if not containment.is_possible():
        pytest.skip("network namespaces cannot be made here")
    command = [*containment.unshare(), sys.executable, "-m", "tests.system.mirror.far_clusters"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=850)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert done.stdout.count("\n0 anomalies") == 3  # histories: of both sides, and of the west after the way back
    assert "equal, byte for byte" in done.stdout
