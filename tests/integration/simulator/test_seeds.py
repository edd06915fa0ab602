"""200 seeds (`SEEDS=...` for another number) through faults of all kinds.

They need no more than CPU time, and a fifth of all that `make test` needs. So they begin first, in processes of low
priority, and run while other tests wait for clients and nodes. They are several tests, so that the worker that runs
them gets no other file too early: it would wait behind the last seed.
"""

import os

import pytest

from millstream.simulator.scenarios import Options
from millstream.simulator.seeds import run_seeds

SEEDS = int(os.environ.get("SEEDS", "200"))
AT_ONCE = 25
NICENESS = 5
FAULT_KINDS = 18
"""So many kinds of faults happen in every 25 seeds, and more in all."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, AT_ONCE))
def test_every_seed_keeps_the_invariants(first: int) -> None:
    seeds = range(first, min(first + AT_ONCE, SEEDS + 1))
    results = list(run_seeds(seeds, Options(), processes=os.cpu_count() or 1, niceness=NICENESS))
    failed = [f"seed {each.seed}: {each.violation}" for each in results if not each.ok]
    assert not failed, "\n".join(failed)
    happened = {fault for each in results for fault in each.faults}
    assert len(happened) >= FAULT_KINDS or len(seeds) < AT_ONCE, f"some faults never happened: {happened}"
    assert sum(each.acked for each in results) > 40 * len(seeds)
