"""Processes of Spark's clusters: JVMs started from PySpark's own files, found and killed by process id."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyspark

from millstream.spark.session.java import find_java

SPARK_HOME = Path(pyspark.__file__).parent
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def start(command: Sequence[str], log: Path, more: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Starts a daemon whose output goes to a file."""
    environment = os.environ | {"JAVA_HOME": str(find_java().home), "PYTHONWARNINGS": "ignore", **more}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def executors_below(pid: int) -> list[psutil.Process]:
    """The JVMs of executors that a worker, a NodeManager or a driver has started."""
    below = psutil.Process(pid).children(recursive=True)
    # YARN starts an executor by a shell whose command line names it too.
    return [each for each in below if name_of(each) == "java" and "CoarseGrainedExecutorBackend" in command_of(each)]


def kill_tree(process: "subprocess.Popen[bytes]") -> list[int]:
    """kill -9: the process and all below it; the first is killed first, so that it starts nothing again."""
    if process.poll() is not None:
        return []
    parent = psutil.Process(process.pid)
    tree = [parent, *parent.children(recursive=True)]
    for each in tree:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            pass
    process.wait()
    return [each.pid for each in tree]


def ends_of(files: Sequence[Path], size: int = 3000) -> str:
    """What logs say at their ends, for the message of a failed test."""
    found = [path for path in files if path.is_file()]
    return "\n".join(f"{path.name}: …{path.read_text(errors='replace')[-size:]}" for path in found)


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
