"""Spark's Python processes as forks of a server; no Spark is started here."""

import atexit
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from millstream.spark.session import worker_server
from millstream.spark.session.worker_server import WorkerServer
from millstream.spark.session.worker_start import VARIABLE
from tests.waiting import TIMEOUT_SECONDS, until

IS_FORK = "import sys; print('pyspark.worker' in sys.modules)"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerServer]:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache of mine"))
    monkeypatch.setenv(VARIABLE, "")
    started = worker_server._start()
    assert started is not None
    yield started
    atexit.unregister(started._close)
    started._close()


def run(server: WorkerServer, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A process as Spark starts it."""
    return subprocess.run(
        [str(server.python), *arguments], env=os.environ | more, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )


@pytest.mark.skipif(sys.platform != "linux", reason="forks are Linux's alone")
class TestForks:
    def test_a_fork_has_what_spark_gave_and_ends_as_a_process_does(self, server: WorkerServer, tmp_path: Path) -> None:
        module = tmp_path / "given" / "module_of_a_job.py"
        module.parent.mkdir()
        module.write_text("import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['X'], sys.stdin.read())\n")
        module.with_name("failing.py").write_text("import sys; sys.stderr.write('no'); sys.exit(7)\n")
        process = subprocess.Popen(
            [str(server.python), "-m", "module_of_a_job", "one", "two words"],
            env=os.environ | {"PYTHONPATH": f"{module.parent}:{os.environ.get('PYTHONPATH', '')}", "X": "given"},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said, _ = process.communicate("sent", timeout=TIMEOUT_SECONDS)
        assert (said, process.returncode) == (f"['one', 'two words'] {tmp_path} given sent\n", 0)
        failed = run(server, "-m", "failing", PYTHONPATH=f"{module.parent}:{os.environ.get('PYTHONPATH', '')}")
        assert (failed.returncode, failed.stderr) == (7, "no")
        assert run(server, "-c", IS_FORK).stdout == "True\n"
        assert run(server, "-c", "import os; os.kill(os.getpid(), 9)").returncode == 128 + 9

    def test_an_ordinary_process_where_a_fork_would_differ(self, server: WorkerServer, tmp_path: Path) -> None:
        assert run(server, "-c", IS_FORK, OMP_NUM_THREADS="1", PYTHON_UDF_BATCH_SIZE="7").stdout == "True\n"
        assert run(server, "-c", IS_FORK, OMP_NUM_THREADS="7").stdout == "False\n"
        assert run(server, "-c", IS_FORK, PYTHONOPTIMIZE="1").stdout == "False\n"
        assert run(server, "-W", "ignore", "-c", IS_FORK).stdout == "False\n"
        (tmp_path / "pyspark").mkdir()
        (tmp_path / "pyspark" / "__init__.py").touch()
        path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
        assert run(server, "-c", "import pyspark; print(pyspark.__file__)", PYTHONPATH=path).stdout == (
            f"{tmp_path}/pyspark/__init__.py\n"
        )

    def test_a_fork_ends_when_spark_ends_its_process(self, server: WorkerServer) -> None:
        waiting = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
        process = subprocess.Popen([str(server.python), "-c", waiting], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        fork = psutil.Process(int(process.stdout.readline()))
        assert fork.pid != process.pid
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        fork.wait(TIMEOUT_SECONDS)
        process.stdout.close()
        assert run(server, "-c", IS_FORK).stdout == "True\n"

    def test_without_the_server_processes_are_ordinary(self, server: WorkerServer) -> None:
        assert run(server, "-c", IS_FORK).stdout == "True\n"
        server._process.kill()
        server._process.wait(TIMEOUT_SECONDS)
        assert run(server, "-c", IS_FORK).stdout == "False\n"
        assert run(server, "-c", "import sys; sys.exit(7)").returncode == 7

    def test_the_server_ends_with_its_process(self, tmp_path: Path) -> None:
        program = (
            "from millstream.spark.session import worker_server as w\n"
            "print(w.start_worker_server() == w.start_worker_server(), w._server._process.pid, w._server._directory)\n"
        )
        environment = os.environ | {"MILLSTREAM_CACHE": str(tmp_path)}
        ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        same, pid, directory = ended.stdout.split()
        assert same == "True"
        until(lambda: not psutil.pid_exists(int(pid)))
        assert not Path(directory).exists()
