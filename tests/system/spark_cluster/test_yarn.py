"""A pipeline on Hadoop's own YARN, of which an executor and then the driver are killed."""

import sys
from pathlib import Path

import pytest

from tests.system.spark_cluster.pipeline_run import SMALL, Run
from tests.system.spark_cluster.processes import SMALL_JVM
from tests.system.spark_cluster.strikes import Numbers, pipeline_file, strike_pipeline
from tests.system.spark_cluster.yarn import Yarn
from tools import hadoop_yarn
from tools.apache_kafka import ToolchainMissingError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SETTINGS = {
    **{name: value for name, value in SMALL.items() if name != "spark.cores.max"},
    "spark.driver.host": "127.0.0.1",
    "spark.pyspark.python": sys.executable,
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memoryOverhead": "600m",
    "spark.yarn.am.memory": "256m",
    "spark.yarn.am.extraJavaOptions": SMALL_JVM,
    # Containers take them from the disk; else each start would copy 400 MB.
    "spark.yarn.jars": f"local:{hadoop_yarn.SPARK_JARS}/*",
}


def test_an_executor_and_the_driver_die(tmp_path: Path) -> None:
    try:
        hadoop_yarn.class_path()
    except ToolchainMissingError as reason:
        pytest.skip(f"Hadoop's mini cluster cannot be had here: {reason}")
    with Numbers() as numbers, Yarn(tmp_path / "yarn", nodes=2) as yarn:
        run = Run(
            tmp_path,
            numbers.bootstrap,
            pipeline_file(tmp_path),
            ["--master", "yarn"],
            settings={**SETTINGS, "spark.yarn.stagingDir": f"file://{tmp_path / 'staging'}"},
            environment={"HADOOP_CONF_DIR": str(yarn.settings_directory)},
        )
        strike_pipeline(numbers, run, yarn.executors, yarn.logs)
        assert len(yarn.applications()) == 2  # one for each driver
