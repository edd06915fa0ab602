"""An archive of the classes that Spark loads (AppCDS), so that later JVMs map them instead of parsing them.

The first run lists its classes, which costs nothing. When it has ended, a detached process of low priority makes the
archive from the list. Later runs start with a third to half of the work. An archive belongs to one Java and one Spark,
which are in its name. A JVM that finds the archive unsuitable runs without it.
"""

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from millstream.spark.session.java import JavaRuntime, cache_directory

_LOCK_IS_STALE_AFTER_SECONDS = 900.0
_AWAIT_JVM_SECONDS = 120.0
# Warnings about an archive that does not fit go to stdout by default, where a program's output is.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one Spark."""

    java: JavaRuntime
    path: Path

    @classmethod
    def of(cls, java: JavaRuntime, spark_home: Path, spark_version: str) -> "ClassArchive":
        """The name has the versions and paths of both: another installation has other files."""
        jars = spark_home / "jars"
        changed = jars.stat().st_mtime_ns if jars.exists() else 0
        place = hashlib.sha256(f"{java.home}|{spark_home}|{changed}".encode()).hexdigest()[:10]
        name = f"java-{java.version}-spark-{spark_version}-{place}.jsa"
        return cls(java, cache_directory() / "classes" / name.replace("/", "_").replace("+", "_"))

    @property
    def ready(self) -> bool:
        return self.path.exists()

    def options(self) -> tuple[str, ...]:
        """Options of a new JVM: use the archive if it exists, else write the list of classes."""
        if self.ready:
            return (f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto", *_QUIET)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return (f"-XX:DumpLoadedClassList={self.class_list}", *_QUIET)

    @property
    def class_list(self) -> Path:
        """The list of classes of this process's JVM."""
        return self.path.with_suffix(f".{os.getpid()}.classes")

    def make_in_background(self, jvm_pid: int, class_path: str) -> None:
        """Starts a process that makes the archive when the JVM has ended. Does not wait; a failure leaves no files."""
        if self.ready or not self.class_list.exists():
            return
        # The class path of Spark is long: it goes by stdin rather than as an argument.
        maker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                __name__,
                str(self.java.command),
                str(self.path),
                str(self.class_list),
                str(jvm_pid),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert maker.stdin is not None
        maker.stdin.write(class_path.encode())
        maker.stdin.close()
        # It outlives this process on purpose.
        maker.returncode = 0


def make(java: Path, archive: Path, class_list: Path, jvm_pid: int, class_path: str) -> bool:
    """Waits for the JVM to end, then makes the archive under another name and renames it."""
    deadline = time.monotonic() + _AWAIT_JVM_SECONDS
    while _lives(jvm_pid) and time.monotonic() < deadline:
        time.sleep(0.5)
    lock = archive.with_suffix(".making")
    unfinished = archive.with_suffix(f".{os.getpid()}.unfinished")
    try:
        if archive.exists() or not _take(lock):
            return False
        try:
            dump = [str(java), "-Xshare:dump", *_QUIET, "-Xmx768m", "-XX:+UseSerialGC", "-cp", class_path]
            subprocess.run(
                [*dump, f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={unfinished}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            unfinished.replace(archive)
        finally:
            lock.unlink(missing_ok=True)
    finally:
        class_list.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
    return True


def _take(lock: Path) -> bool:
    """Only one process makes an archive; a stale lock of a killed process is taken over."""
    try:
        if time.time() - lock.stat().st_mtime > _LOCK_IS_STALE_AFTER_SECONDS:
            lock.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    os.nice(15)
    java_command, archive_path, list_path, pid_text = sys.argv[1:]
    make(Path(java_command), Path(archive_path), Path(list_path), int(pid_text), sys.stdin.read())
