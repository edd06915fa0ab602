"""`python -m tests.system.exactly_once`: one campaign; exit code 0 if each input was copied exactly once."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests.system.chaos.nodes import SYSTEMS
from tests.system.exactly_once import strikes
from tests.system.exactly_once.campaign import Plan, run
from tests.system.exactly_once.lanes import LIBRARIES, USUAL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.exactly_once", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="strike for so long")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--system", choices=sorted(SYSTEMS), default="millstream")
    parser.add_argument(
        "--library",
        action="append",
        default=[],
        choices=sorted(LIBRARIES),
        help=f"this one (repeatable; {', '.join(USUAL)} if none)",
    )
    names = [each.__name__ for each in strikes.ALL]
    parser.add_argument("--only", action="append", default=[], choices=names, help="only this strike (repeatable)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the nodes")
    parser.add_argument("--transaction-version", type=int, choices=(0, 1, 2), help="of the cluster; the newest if none")
    parser.add_argument(
        "--careless", action="store_true", help="confluent-kafka's copiers do it wrong: must be noticed"
    )
    parser.add_argument("--tiered", action="store_true", help="the topics are tiered to an S3 server")
    parser.add_argument("--keep", type=Path, help="keep logs and history in this directory, also when all went well")
    chosen = parser.parse_args()

    signal.signal(signal.SIGTERM, _leave)
    directory = chosen.keep or Path(tempfile.mkdtemp(prefix="exactly-once-"))
    directory.mkdir(parents=True, exist_ok=True)
    libraries = tuple(chosen.library or USUAL)
    settings = dict(each.split("=", 1) for each in chosen.set)
    plan = Plan(
        chosen.seed,
        chosen.seconds,
        chosen.nodes,
        chosen.system,
        directory,
        libraries,
        tuple(chosen.only),
        settings,
        chosen.transaction_version,
        chosen.careless,
        chosen.tiered,
    )
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)

    summary = run(plan, say)
    print(f"\n{summary}", flush=True)
    if summary.clean and chosen.keep is None:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"\nlogs and history: {directory}")
    return 0 if summary.clean else 1


def _leave(number: int, _: FrameType | None) -> None:
    """By the ordinary way out, so that the processes are stopped."""
    sys.exit(128 + number)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of clients that hang must not keep a finished campaign
