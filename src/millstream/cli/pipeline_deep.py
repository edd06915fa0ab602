"""`millstream pipeline validate --deep`: the broker, the registry and Spark are asked too."""

from typing import TYPE_CHECKING

from millstream.cli.pipeline_files import needs
from millstream.cli.pipeline_spark import short_session

if TYPE_CHECKING:
    from millstream.pipeline.model import Pipeline
    from millstream.pipeline.problems import Problems


def check_deep(pipeline: "Pipeline", problems: "Problems") -> None:
    with needs():
        import pyspark  # noqa: F401  # told before anybody is asked

        from millstream.pipeline.deep_check import check_schemas, check_tables, check_topics, check_with_spark
    check_topics(pipeline, problems)
    check_tables(pipeline, problems)
    check_schemas(pipeline, problems)
    if problems.has_errors:
        return
    with short_session(f"validate {pipeline.name}", "local[1]", pipeline.spark) as session:
        check_with_spark(pipeline, session, problems)
