"""A sink whose driver is killed at a chosen point of its commit, once: only for tests.

Points: `before-decision` (all tasks have finished), `after-decision` (no transaction is ended), `between-ends` (one of
them is). The file `died` in the directory of the environment's DYING_DIRECTORY says that it has happened.
"""

import os
import signal
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.raw_client.transactions import EndResult, Identity, Transactions
from millstream.spark.sink import sink as sink_settling
from millstream.spark.sink.sink import BatchWriter, StreamWriter
from pyspark_millstream import DefaultSource

FOREACH_BATCH = "foreach-batch:"
POINTS = ("before-decision", "after-decision", "between-ends")


def kill_the_driver() -> None:
    """kill -9 of the JVM above this process, and of the program that started it; then of this process."""
    (Path(os.environ["DYING_DIRECTORY"]) / "died").touch()
    above = psutil.Process().parents()
    java = [each for each in above if "java" in each.name()]
    program = [each for each in above if "copier" in " ".join(each.cmdline())]
    for each in (*java, *program):
        each.kill()
    os.kill(os.getpid(), signal.SIGKILL)


class _Dying(Transactions):
    def end_all(self, identities: Collection[Identity], *, commit: bool) -> list[EndResult]:
        if commit:
            if os.environ["DYING_POINT"] == "between-ends":
                self.end(next(iter(identities)), commit=True)
            kill_the_driver()
        return super().end_all(identities, commit=commit)


class DyingWriter(StreamWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        may_die = batchId >= 2 and not (Path(os.environ["DYING_DIRECTORY"]) / "died").exists()
        if may_die and os.environ["DYING_POINT"] == "before-decision":
            kill_the_driver()
        writes = [each for each in messages if each is not None]
        settler = sink_settling.committer_of(self._options, writes[0].sink)  # type: ignore[attr-defined]
        if may_die:
            settler._transactions = _Dying(settler._cluster)
        settler.commit(batchId, writes)  # type: ignore[arg-type]


class DyingBatchWriter(BatchWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        assert self._options.app_id is not None and self._options.version is not None
        committer = sink_settling.committer_of(self._options, self._options.app_id)
        if self._options.version >= 2 and not (Path(os.environ["DYING_DIRECTORY"]) / "died").exists():
            committer._transactions = _Dying(committer._cluster)
        super().commit(messages)


class DyingSink(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "millstream-dying"

    def writer(self, schema: StructType, overwrite: bool) -> DyingBatchWriter:
        return DyingBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802 - Spark's name
        return DyingWriter(self.options, schema, overwrite)
