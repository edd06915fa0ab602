"""Many seeds in several processes."""

import os

import pytest

from millstream.simulator import seeds
from millstream.simulator.results import Result
from millstream.simulator.scenarios import Options


def test_a_crash_of_a_process_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int, options: Options) -> Result:
        if seed == 3:
            os._exit(139)
        return Result(seed, None)

    monkeypatch.setattr(seeds, "simulate", run)
    with pytest.raises(RuntimeError, match=r"crashed in seed .* or a later one.*--seed N"):
        list(seeds.run_seeds(range(1, 50), Options(), processes=2))
