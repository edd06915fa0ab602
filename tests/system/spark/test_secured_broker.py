"""Source and sink with a broker that requires authentication, and secrets that no plan shows."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.raw_client import Cluster
from millstream.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow  # a Spark session of its own
SECRET = "spark-password-77"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedBroker]:
    own = f'{PLAIN} username="node" password="{SECRET}-n" user_node="{SECRET}-n" user_spark="{SECRET}";'
    settings = {
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": own,
    }
    with EmbeddedBroker(settings, security_protocol="SASL_PLAINTEXT") as broker:
        yield broker


def options(broker: EmbeddedBroker, password: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "spark",
        "kafka.sasl.password": password,
    }


def test_source_and_sink_log_in(spark: SparkSession, secured: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text(f"spark={SECRET}\n")
    reference = f"${{file:{tmp_path}/secrets.properties:spark}}"
    given = options(secured, reference)
    settings = {name.removeprefix("kafka."): value for name, value in options(secured, SECRET).items()}
    del settings["bootstrap.servers"]
    with Cluster(secured.bootstrap_servers, settings) as cluster:
        cluster.create_topic("secured-by-spark", 1, 1)
    rows = spark.createDataFrame([(b"k", b"one"), (b"k", b"two")], "key binary, value binary")
    rows.write.format("millstream").options(**given).option("topic", "secured-by-spark").mode("append").save()
    read = spark.read.format("millstream").options(**given).option("subscribe", "secured-by-spark").load()
    assert sorted(bytes(row.value) for row in read.collect()) == [b"one", b"two"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        read.explain(extended=True)
    assert "millstream" in shown.getvalue()
    assert SECRET not in shown.getvalue()


def test_a_wrong_password_is_an_error_that_does_not_show_it(spark: SparkSession, secured: EmbeddedBroker) -> None:
    given = options(secured, "wrong-and-not-shown")
    with pytest.raises(PySparkException) as refused:
        spark.read.format("millstream").options(**given).option("subscribe", "secured-by-spark").load().collect()
    assert "check user and password" in str(refused.value)
    assert "wrong-and-not-shown" not in str(refused.value)
