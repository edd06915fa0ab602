"""A SPARK_HOME from which Python workers start three times as fast.

Spark puts `python/lib/pyspark.zip` of its home in front of every worker's path. Modules in a zip are compiled anew in
every process: 1.1 s of work for each worker, planner and stream reader. PySpark was installed by pip here and lies in
site-packages with its compiled files, so a home that has everything but that zip lets workers find it there.

Only for workers on this machine: a cluster that is sent PySpark as that zip needs the real home.
"""

import os
import zlib
from pathlib import Path

from millstream.spark.session.user_cache import cache_directory


def quick_spark_home(real: Path) -> Path:
    """A directory of links to all that is in the real home but `python`; the real one if links cannot be made."""
    home = cache_directory() / "spark" / f"home-{zlib.crc32(str(real.resolve()).encode()):08x}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for entry in real.iterdir():
            if entry.name not in ("python", "__pycache__"):
                _link(home / entry.name, entry.resolve())
    except OSError:
        return real
    return home


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(link)
