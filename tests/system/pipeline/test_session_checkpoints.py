"""The checkpoint files of a session on this machine's disk, under kill -9 of the JVM that writes them."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.pipeline.checkpoint_writer import is_whole

KILLS = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    chance = random.Random(7)
    written = 0
    for _ in range(KILLS):
        program = [sys.executable, "-m", "tests.system.pipeline.checkpoint_writer", str(directory)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None and writer.stderr is not None
            word, _, pid = writer.stdout.readline().strip().partition(" ")
            assert word == "ready", writer.stderr.read()
            time.sleep(chance.uniform(0.5, 2.0))
            os.kill(int(pid), signal.SIGKILL)
            writer.kill()
        numbers = sorted(int(path.name) for path in directory.glob("[0-9]*"))
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > written, "nothing was written before the kill"
        written = len(numbers)
        torn = [path.name for path in directory.glob("[!.]*") if not is_whole(path.read_bytes())]
        assert torn == []
        assert not list(directory.glob(".*.crc"))  # each would be one more process for a file
