"""The same agreement on Apache Kafka: it rests on what every broker does with producer epochs."""

from collections.abc import Iterator

import pytest

from tests.integration.registry.test_agreement import (  # noqa: F401
    test_a_changed_producer_id_shuts_out_those_who_still_use_the_old_one,
    test_a_registry_that_was_overtaken_decides_again,
    test_incompatible_schemas_that_race_are_decided_one_after_the_other,
    test_racing_registries_never_give_a_schema_two_ids_nor_an_id_two_schemas,
    test_records_of_a_writer_that_follows_no_rules_do_not_break_ids,
)
from tests.integration.registry.test_topic_format import test_what_is_written_is_in_the_format_of_others  # noqa: F401
from tools import apache_kafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apache_kafka.ApacheKafkaBroker]:
    directory = tmp_path_factory.mktemp("kafka") / "data"
    with apache_kafka.ApacheKafkaBroker(apache_kafka.resolve(), directory, jvm=("-Xms256m", "-Xmx512m")) as running:
        yield running
