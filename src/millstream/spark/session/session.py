"""Starts a Spark session for streams: embedded by default, on a cluster, or over Connect.

It finds Java (or uses that of a wheel), runs Python workers with this interpreter, hides Spark's log except errors, and
sets defaults for fast starts and batches on this machine. Settings of the caller take precedence. On a cluster, only
settings are made that are not the cluster's.
"""

import atexit
import logging
import os
import re
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from millstream.spark.session.class_archive import ClassArchive
from millstream.spark.session.java import (
    JavaNotFoundError,
    JavaRuntime,
    cache_directory,
    find_java,
    quick_spark_home,
    write_atomically,
)
from millstream.spark.session.worker_server import start_worker_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("millstream.spark")


class SparkStartError(Exception):
    """Spark did not start; the text has the reason and the next step."""


def is_embedded(master: str) -> bool:
    """`local`, `local[2]`, `local[*, 3]`; but not the host of that name."""
    return re.fullmatch(r"local(\[.*\])?|local-cluster\[.*\]", master) is not None


_MASTERS = "spark://HOST:7077, yarn, k8s://https://HOST:6443 or local[N]"


def check_master(master: str) -> None:
    """Refuses masters that Spark's launcher would refuse with a text for its own command line."""
    if not (is_embedded(master) or re.match(r"spark://|k8s://|yarn(-client)?$", master)):
        raise SparkStartError(f"--master {master}: write {_MASTERS}")
    if master.startswith("yarn") and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise SparkStartError(
            f"--master {master}: set HADOOP_CONF_DIR (or YARN_CONF_DIR) to the directory with the cluster's "
            "core-site.xml and yarn-site.xml"
        )


def launcher_error(log_file: str | os.PathLike[str], start: int) -> str:
    """The last error in the log of the launcher."""
    with open(log_file, "rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").splitlines()
    reasons = [line.strip() for line in lines if re.search(r"\bError: |Exception: ", line)]
    return f": {reasons[-1]}" if reasons else ""


_ADVICE = {
    "container image": "set --conf spark.kubernetes.container.image=…, an image with Spark and millstream[spark]",
    "nvalid master URL": f"write {_MASTERS}",
    "All masters are unresponsive": "check that the master runs, has this version of Spark, and is reachable",
}


def reason_of(error: BaseException) -> str:
    """The message and the last cause of a Java exception, without stack traces."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.$]*(Exception|Error): ", line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = (telling or lines or [type(error).__name__])[0]
    reason = f"{first} ({causes[-1]})" if causes else first
    return reason + next((f" ({advice})" for known, advice in _ADVICE.items() if known in reason), "")


__all__ = [
    "SLOW_PYTHON",
    "STREAM_SETTINGS",
    "SparkStartError",
    "is_local_path",
    "is_remote",
    "make_current",
    "start_in_background",
    "start_query",
    "start_session",
    "tune",
]

# A short-lived JVM is tuned to start fast, a long-lived one to run fast.
Lifetime = Literal["short", "long"]

_LONGEST_SOCKET_PATH = 100
"""Of a Unix socket on Linux it is 107; Spark's names there are 42 long."""

# Spark's default for checkpoints goes through Hadoop's FileContext, which on a local disk forks `readlink` some twenty
# times a batch. This one renames with rename(2). Is it as safe? Looked up in Spark and Hadoop, and
# tried with kill -9: of a JVM that writes files (tests/system/pipeline/test_session_checkpoints.py) and, with this
# manager, of drivers in the middle of batches (tests/system/spark_exactly_once).
#  - both write a temporary file beside the target and rename it; RawLocalFileSystem renames with rename(2), so a name
#    has its old content or its new one. FileContext is weaker when it overwrites: it deletes the target first.
#  - both check "is it there?" before they rename without overwriting, and neither does so atomically on a local disk;
#    two drivers on one checkpoint are kept apart by neither (pipelines take a lock for that, see pipeline/state.py).
#  - both rename `.name.crc` after the data. A kill between the two leaves new data with the old checksum only where a
#    state file is overwritten, and that is a file of a batch not yet committed: the batch is run again from the version
#    before, and writes both again. Offsets and commits are never overwritten, and a missing .crc is not an error.
#  - neither calls fsync: both survive kill -9 and may lose the last batches in a power cut.
# Embedded sessions also leave Hadoop's `.crc` files out: without Hadoop's native library each new file is a process
# `chmod`, so a batch had four, and has two. What a checksum found is found without it, except for a disk that changes
# bits: an empty or cut file of offsets or commits does not parse, and files of state have checksums of Spark's own.
# Renaming removes the `.crc` file of an earlier session.
# So it is used where checkpoints are known to be on this machine's disk, and nowhere else: on HDFS FileContext's rename
# is atomic without overwriting, which this one's is not.
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def start_session(
    name: str,
    *,
    master: str = "local[*]",
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
    lifetime: Lifetime = "long",
    checkpoints: str | None = None,
    log_file: str | os.PathLike[str] | None = None,
    archive_classes: bool = False,
) -> "SparkSession":
    """A session with good settings for streams.

    master           `local[*]`, `spark://…`, `yarn`, `k8s://…`; as Spark takes it
    remote           Spark Connect: `sc://host:port`, or `local[2]` to start a server here; then master is not used
    settings         Spark's own, which win over ours
    lifetime         `short`: a JVM that starts fast (first compiler only, serial collector), for a minute or two
    checkpoints      where queries will keep theirs, if it is known: on this machine's disk that is faster
    log_file         Spark's warnings go there rather than to stderr
    archive_classes  keep an archive of Spark's classes in the user's cache: made after the first run, used from then on
    """
    given = dict(settings or {})
    _refuse_foreign_names(given)
    # A warning of PySpark 4.3 at the first use of Arrow; the parts of pandas 3 in use are tested.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    embedded = is_embedded(master if remote is None else remote)
    wanted = {**_common_settings(master if remote is None else remote), **(_embedded_settings() if embedded else {})}
    if checkpoints is not None and is_local_path(checkpoints) and "spark.hadoop.fs.defaultFS" not in given:
        wanted[_MANAGER] = _LOCAL_CHECKPOINTS
    if remote is not None and not embedded:
        return _connect(name, remote, given)
    if remote is None:
        check_master(master)
        if not embedded:
            # The launcher prepares Python programs for a cluster manager if it knows which one.
            wanted["spark.master"] = master
    _choose_python(master if remote is None else remote, given)
    _start_jvm(embedded, wanted, given, lifetime, log_file, archive_classes)
    session = _open(name, master, remote, {**wanted, **given})
    chosen = {**wanted, **given}.get(_MANAGER) == _LOCAL_CHECKPOINTS
    if embedded and remote is None and chosen and "spark.hadoop.fs.file.impl" not in given:
        _write_local_files_quickly(session, permissions=lifetime == "long")
    return session


def _write_local_files_quickly(session: "SparkSession", *, permissions: bool) -> None:
    """This JVM writes local files without `.crc` files beside them, and sets permissions without a process `chmod`.

    `permissions`: whether the latter, which takes a tenth of a second now and saves some 7 ms of work for each file.
    """
    jvm: Any = session._jvm
    configuration = session._jsc.hadoopConfiguration()
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration)
    local.setWriteChecksum(False)
    if not permissions:
        return
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(_LOCAL_FILES)
        files = compiler.getClassLoader().loadClass("millstream.LocalFiles").newInstance()
        files.initialize(jvm.java.net.URI.create("file:///"), configuration)
        wrapped = loader.loadClass("org.apache.hadoop.fs.FilterFileSystem").getDeclaredField("fs")
        wrapped.setAccessible(True)
        wrapped.set(local, files)
    except Exception as error:
        if type(error).__module__.split(".")[0] != "py4j":
            raise
        _log.debug("permissions of local files are set by processes: %s", error)  # another version of Spark or Hadoop


_LOCAL_FILES = """\
package millstream;

import java.io.IOException;
import java.nio.file.Files;
import java.util.EnumSet;
import java.nio.file.attribute.PosixFilePermission;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
        int bits = permission.toShort();
        if ((bits & ~0777) != 0) {
            super.setPermission(path, permission);
            return;
        }
        PosixFilePermission[] all = PosixFilePermission.values();
        EnumSet set = EnumSet.noneOf(PosixFilePermission.class);
        for (int i = 0; i < all.length; i++) {
            if ((bits >> (8 - i) & 1) != 0) set.add(all[i]);
        }
        Files.setPosixFilePermissions(pathToFile(path).toPath(), set);
    }
}
"""
"""Compiled by the compiler that Spark has for its own code. Without Hadoop's native library, which is in no wheel,
Hadoop starts a process `chmod` for each new file: two for each batch."""


def tune(builder: "SparkSession.Builder", *, checkpoints: str | None = None) -> "SparkSession.Builder":
    """Gives a session that you build yourself what `start_session` knows. Call it last, before `getOrCreate()`.

        spark = tune(SparkSession.builder.appName("orders").master("local[4]"), checkpoints="/data").getOrCreate()

    Your own settings stay. `checkpoints`: where the queries will keep theirs; on this machine's disk that is faster.
    Java and Python are chosen as by `start_session`, unless JAVA_HOME and PYSPARK_PYTHON are set. If Spark's JVM runs
    already (`spark-submit`, a notebook), it keeps its own: docs/spark-session.md has the lines for its start.
    """
    from pyspark.core.context import SparkContext

    given = {name: str(value) for name, value in builder._options.items()}
    remote = given.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if remote is not None and not is_embedded(remote):
        return builder  # settings of a Connect server are its own
    master = remote or given.get("spark.master", os.environ.get("MASTER", "local[*]"))
    embedded = is_embedded(master)
    wanted = _common_settings(master) | ({"spark.sql.shuffle.partitions": _shuffle_partitions()} if embedded else {})
    if checkpoints is not None and is_local_path(checkpoints) and "spark.hadoop.fs.defaultFS" not in given:
        wanted[_MANAGER] = _LOCAL_CHECKPOINTS
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _choose_python(master, given)
        _choose_java()
        _choose_spark_home(embedded)
        if embedded:
            wanted["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile=file:{_logging_file()}"
    else:
        fixed = sorted(wanted.keys() & _AT_START_ONLY - given.keys())
        warnings.warn(
            f"Spark runs already: make sure that it was started with {', '.join(fixed)} (docs/spark-session.md)",
            stacklevel=2,
        )
        wanted = {name: value for name, value in wanted.items() if name not in _AT_START_ONLY}
    for name, value in wanted.items():
        if name not in given:
            builder = builder.config(name, value)
    return builder


_STARTS = 9
SLOW_PYTHON = "Python worker failed to connect back"
"""Spark waits ten seconds for a new Python process. That time is fixed, and too short on a busy machine."""


def start_query(start: Callable[[], "StreamingQuery"]) -> "StreamingQuery":
    """Starts a streaming query, and starts it again if Spark gave up on a slow Python process.

        query = start_query(frame.writeStream.format("millstream").options(**options).start)

    Returns when the sources of the query have started. A query that failed for another reason is returned as it is:
    `query.exception()` has the reason, and `awaitTermination` raises it.
    """
    for _ in range(_STARTS - 1):
        query = start()
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            time.sleep(0.05)
        if SLOW_PYTHON not in str(query.exception() or ""):
            return query
        _log.warning("Spark did not wait long enough for a Python process; the query is started again")
    return start()


def start_in_background(name: str, **options: Any) -> "Future[SparkSession]":
    """`start_session` in a thread: the JVM takes seconds in which other things can be done."""
    result: Future[SparkSession] = Future()

    def run() -> None:
        try:
            result.set_result(start_session(name, **options))
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, name="spark-start", daemon=True).start()
    return result


def is_remote(session: "SparkSession") -> bool:
    """Whether a session goes over Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def make_current(session: "SparkSession") -> None:
    """For this thread: Spark finds Python sources and sinks through the active session of the thread."""
    if not is_remote(session):
        classes = type(session)._get_j_spark_session_class(session._jvm)
        classes.setActiveSession(session._jsparkSession)


def is_local_path(location: str) -> bool:
    """Whether a checkpoint's location is a directory on this machine."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", location)
    return scheme is None or scheme[1].lower() == "file"


def _refuse_foreign_names(settings: Mapping[str, str]) -> None:
    for name in settings:
        if not name.startswith("spark."):
            raise SparkStartError(
                f"{name} is not a Spark setting: these begin with `spark.` (did you mean spark.{name}?)"
            )


STREAM_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch then adds the changes of the state to the checkpoint, not a copy of all of it.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings for every stream; they can be set on an open session too."""


def _common_settings(master: str) -> dict[str, str]:
    settings = {
        **STREAM_SETTINGS,
        "spark.ui.showConsoleProgress": "false",
        # Of Spark's timeouts for a slow Python process, this one is a setting; `start_query` handles the other.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    # Over TCP each task waits 40 ms for a delayed acknowledgement.
    if hasattr(socket, "AF_UNIX") and len(tempfile.gettempdir()) + 43 < _LONGEST_SOCKET_PATH:
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        if master.startswith("yarn"):
            # By default they are in the temporary directory, which YARN puts into the container's: too long a path.
            settings["spark.python.unix.domain.socket.dir"] = "/tmp"  # nosec B108
    return settings


def _embedded_settings() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark's default of 200 is for clusters. A query keeps the number of its first run.
        "spark.sql.shuffle.partitions": _shuffle_partitions(),
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"millstream-warehouse-{os.getuid()}"),
    }


_AT_START_ONLY = frozenset(
    {
        "spark.ui.showConsoleProgress",
        "spark.python.authenticate.socketTimeout",
        "spark.python.unix.domain.socket.dir",
        "spark.python.unix.domain.socket.enabled",
    }
)
"""Settings that a running Spark does not change."""


def _shuffle_partitions() -> str:
    return str(max(2, min(os.cpu_count() or 2, 8)))


def _choose_java() -> JavaRuntime:
    try:
        java = find_java()
    except JavaNotFoundError as error:
        raise SparkStartError(str(error)) from error
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _choose_spark_home(embedded: bool) -> str:
    """With SPARK_HOME set, the launcher does not start a Python process to find it."""
    from pyspark.find_spark_home import _find_spark_home

    if (chosen := os.environ.get("SPARK_HOME")) is None:
        real = _find_spark_home()
        chosen = os.environ["SPARK_HOME"] = str(quick_spark_home(Path(real))) if embedded else real
    return chosen


def _choose_python(master: str, settings: Mapping[str, str]) -> None:
    """Workers on this machine run this interpreter; a cluster chooses its own."""
    # PySpark reads only the environment; the settings are for spark-submit.
    for setting, variable in (("python", "PYSPARK_PYTHON"), ("driver.python", "PYSPARK_DRIVER_PYTHON")):
        if chosen := settings.get(f"spark.pyspark.{setting}"):
            os.environ[variable] = chosen
    embedded = is_embedded(master)
    here = embedded or re.match(r"spark://(localhost|127\.|\[::1\])", master)
    if here and "spark.pyspark.python" not in settings:
        # Tasks run the first one, processes for Python data sources the second one.
        variables = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
        if embedded and all(os.environ.get(each) in (None, sys.executable) for each in variables):
            python = str(start_worker_server() or sys.executable)
            os.environ.update(dict.fromkeys(variables, python))
        for each in variables:
            os.environ.setdefault(each, sys.executable)


def _connect(name: str, remote: str, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not remote.startswith("sc://"):
        raise SparkStartError(f"--remote {remote}: write sc://host:port, or local[N] to start a Connect server here")
    try:
        builder = SparkSession.builder.remote(remote).appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.version  # noqa: B018  # the first call that goes over the wire
        return session
    except (PySparkException, OSError, RuntimeError) as error:
        raise SparkStartError(f"no Spark Connect server responds at {remote}: {reason_of(error)}") from error


def _start_jvm(
    embedded: bool,
    wanted: dict[str, str],
    given: Mapping[str, str],
    lifetime: Lifetime,
    log_file: str | os.PathLike[str] | None,
    archive_classes: bool,
) -> None:
    """Start the JVM of the driver, unless this process has one; its stderr goes to the log file."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.version import __version__ as spark_version

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    java = _choose_java()
    spark_home = _choose_spark_home(embedded)
    # The launcher is a JVM too, which runs for half a second.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    archive = ClassArchive.of(java, Path(spark_home), spark_version) if archive_classes else None
    options = _java_options(java, lifetime, log_file, archive)
    wanted["spark.driver.defaultJavaOptions"] = " ".join(options)
    with ExitStack() as stack:
        # Its own process session: Ctrl-C reaches only this process, which stops the queries after their batch.
        process: dict[str, Any] = {"start_new_session": True}
        logged_before = 0
        if log_file is not None:
            log = stack.enter_context(open(log_file, "ab"))
            process["stderr"], logged_before = log, log.tell()
        conf = SparkConf(loadDefaults=False).setAll(list({**wanted, **given}.items()))
        try:
            gateway = launch_gateway(conf, process)  # type: ignore[no-untyped-call]
        except PySparkException as error:
            where = "" if log_file is None else f"{launcher_error(log_file, logged_before)}; see {log_file}"
            raise SparkStartError(f"Spark's JVM did not start with {java.command} ({java.version}){where}") from error
    SparkContext._ensure_initialized(gateway=gateway)
    if archive is not None and not archive.ready and gateway.proc is not None:
        # Registered after py4j's own exit handlers, and so called before them, while the JVM still runs.
        class_path = gateway.jvm.System.getProperty("java.class.path")
        atexit.register(archive.make_in_background, gateway.proc.pid, class_path)


def _java_options(
    java: JavaRuntime, lifetime: Lifetime, log_file: str | os.PathLike[str] | None, archive: ClassArchive | None
) -> list[str]:
    options = [f"-Dlog4j2.configurationFile=file:{_logging_file()}"]
    if log_file is not None:
        options.append("-Dmillstream.log.level=warn")
    if lifetime == "short":
        options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    if archive is not None:
        options += archive.options()
    return options


_LOGGING = """\
# Written by Millstream. Errors of Spark, and its warnings only where they go to a file; progress is shown by us.
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
rootLogger.level = ${sys:millstream.log.level:-error}
rootLogger.appenderRef.console.ref = console
# What these say of a failed query or task, the query's exception says too.
logger.execution.name = org.apache.spark.sql.execution
logger.execution.level = ${sys:millstream.log.level:-off}
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = ${sys:millstream.log.level:-off}
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = ${sys:millstream.log.level:-off}
"""


def _logging_file() -> Path:
    path = cache_directory() / "log4j2.properties"
    if not path.exists() or path.read_text() != _LOGGING:
        write_atomically(path, _LOGGING.encode())
    return path


def _open(name: str, master: str, remote: str | None, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    builder = builder.master(master) if remote is None else builder.remote(remote)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        # A wrong master or setting is an error of py4j, not a PySparkException.
        if not isinstance(error, PySparkException) and type(error).__module__.split(".")[0] not in ("py4j", "pyspark"):
            raise
        reason = reason_of(error)
        raise SparkStartError(f"Spark did not start on {remote or master}: {reason}") from error
