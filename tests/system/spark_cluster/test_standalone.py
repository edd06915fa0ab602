"""A pipeline on a standalone cluster, of which an executor and then the driver are killed."""

from pathlib import Path

import pytest

from tests.system.spark_cluster.pipeline_run import SMALL, Run
from tests.system.spark_cluster.standalone import StandaloneSpark
from tests.system.spark_cluster.strikes import Numbers, pipeline_file, strike_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_an_executor_and_the_driver_die(tmp_path: Path) -> None:
    with Numbers() as numbers, StandaloneSpark(tmp_path / "spark", workers=1) as spark:
        settings = {**SMALL, "spark.executor.cores": "1", "spark.executor.memory": "500m"}
        where = ["--master", spark.url]
        run = Run(tmp_path, numbers.bootstrap, pipeline_file(tmp_path), where, settings=settings)
        strike_pipeline(numbers, run, spark.executors, spark.logs)
