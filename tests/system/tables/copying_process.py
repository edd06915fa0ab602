"""A process to be killed: copies topics into their tables, batch after batch; with `once` until all is there."""

import sys

from millstream.raw_client import Cluster
from millstream.tables.copier import CopyOptions
from millstream.tables.server import ServeOptions, TableServer
from millstream.tables.settings import Warehouse, find_tables
from tests.system.tables.conftest import DEAD_LETTERS, run_here


def main(bootstrap: str, place: str, how: str) -> None:
    copy = CopyOptions(
        warehouse=Warehouse(place),
        bootstrap=bootstrap,
        dead_letter_topic=DEAD_LETTERS,
        max_records=200,
        compact_after=4,
    )
    with Cluster(bootstrap) as cluster:
        assert find_tables(cluster)
    server = TableServer(ServeOptions(copy=copy, interval_s=0.01, discover_s=0.5, once=how == "once"), run_here)
    print("running", flush=True)
    if not server.run():
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
