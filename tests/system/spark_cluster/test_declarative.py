"""Declarative pipelines (`spark-pipelines run`) on a cluster: an executor and then the driver are killed.

The command is a client of a Connect server, which is the driver. A run takes what is there and ends, so a supervisor
starts it again and again, as the schedule of users does.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.system.spark_cluster.connect_server import ConnectServer
from tests.system.spark_cluster.pipeline_run import SMALL
from tests.system.spark_cluster.processes import SPARK_HOME, ends_of, kill_tree
from tests.system.spark_cluster.standalone import StandaloneSpark
from tests.system.spark_cluster.strikes import INPUT, OUTPUT, Numbers, Watch, strike

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SPECIFICATION = """
name: doubling
storage: file://{directory}/storage
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATIONS = f"""
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def seen():
    return (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", "BOOTSTRAP")
        .option("subscribe", "{INPUT}")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "number LONG")
        .option("maxOffsetsPerTrigger", 500)
        .option("smallBatchBytes", 0)
        .load()
        .select("value.number")
    )


dp.create_sink("doubled", "millstream", {{"kafka.bootstrap.servers": "BOOTSTRAP", "topic": "{OUTPUT}"}})


@dp.append_flow(target="doubled")
def doubled_flow():
    row = "to_json(named_struct('number', number, 'twice', 2 * number)) AS value"
    return spark.readStream.table("seen").selectExpr("CAST(number AS STRING) AS key", row)
"""


def test_a_declarative_pipeline_reads_and_writes_topics(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.pipelines")
    settings = {
        **SMALL,
        "spark.executor.cores": "1",
        "spark.executor.memory": "500m",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/catalog;create=true",
    }
    with (
        Numbers(ahead=5000) as numbers,
        StandaloneSpark(tmp_path / "spark", workers=1) as spark,
        ConnectServer(tmp_path, spark.url, settings) as server,
    ):
        pipeline = Declarative(tmp_path, numbers.bootstrap, server.url)

        def kill_and_restart() -> None:
            server.kill()
            server.start()
            pipeline.wait()  # the client tries to reach the server for minutes; the new one does not know its run

        watch = Watch(numbers, pipeline.keep_running, lambda: f"{pipeline.told()}\n{server.logs()}\n{spark.logs()}")
        try:
            strike(numbers, watch, spark.executors, kill_and_restart)
            watch.until(lambda: pipeline.ended_well_again(), "no run ends")
            program = [sys.executable, "-m", "tests.system.spark_cluster.connect_client", server.url, "rows", "seen"]
            rows = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
            assert Counter(map(int, rows)) == numbers.expected()
        finally:
            pipeline.kill()


class Declarative:
    """`spark-pipelines run`, again and again."""

    def __init__(self, directory: Path, bootstrap: str, remote: str) -> None:
        self._directory = directory
        (directory / "transformations").mkdir()
        (directory / "transformations" / "doubling.py").write_text(TRANSFORMATIONS.replace("BOOTSTRAP", bootstrap))
        (directory / "spark-pipeline.yml").write_text(SPECIFICATION.format(directory=directory))
        program = SPARK_HOME / "bin" / "spark-pipelines"
        specification = str(directory / "spark-pipeline.yml")
        self._command = [str(program), "run", "--spec", specification, "--remote", remote]
        self._start()

    def keep_running(self) -> bool:
        if self._process.poll() is not None:
            self._start()
        return True

    def ended_well_again(self) -> bool:
        return self._process.poll() == 0

    def wait(self) -> int:
        return self._process.wait()

    def told(self) -> str:
        return ends_of([self._directory / "declarative.log"])

    def kill(self) -> None:
        kill_tree(self._process)

    def _start(self) -> None:
        scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        more = {"PATH": scripts, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK_HOME)}
        with (self._directory / "declarative.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=os.environ | more, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
