"""`python -m tests.system.chaos`: one campaign, in namespaces of its own; the exit code says whether it was clean."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests.previous_version import NoSourceError, previous_source
from tests.system.chaos import containment, nemeses
from tests.system.chaos.campaign import Plan, run
from tests.system.chaos.nodes import SYSTEMS
from tests.system.chaos.workload import RATE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=90.0, help="strike for so long; every fault at least once")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rate", type=float, default=RATE, help="records per second of each of three producers")
    parser.add_argument("--system", choices=sorted(SYSTEMS), default="millstream")
    parser.add_argument("--secured", action="store_true", help="TLS, SCRAM, ACLs and audit; one more fault")
    parser.add_argument("--tiered", action="store_true", help="the topic is tiered to an S3 server; its faults too")
    parser.add_argument(
        "--upgrades", action="store_true", help="nodes begin with the previous version; upgrades and rollbacks too"
    )
    possible = nemeses.ALL + nemeses.OF_SECURED + nemeses.OF_TIERED + nemeses.OF_UPGRADES
    names = [each.__name__ for each in possible]
    parser.add_argument("--only", action="append", default=[], choices=names, help="only this nemesis (repeatable)")
    parser.add_argument("--keep", type=Path, help="keep logs and history in this directory, also when all went well")
    chosen = parser.parse_args()
    if chosen.secured and chosen.system != "millstream":
        parser.error("--secured: the files of `millstream security init` are for Millstream; leave out --system")
    if chosen.tiered and chosen.system != "millstream":
        parser.error("--tiered: Apache Kafka has no object store of its own; leave out --system")
    if not chosen.tiered and set(chosen.only) & {each.__name__ for each in nemeses.OF_TIERED}:
        parser.error("--only with a fault of the store needs --tiered")
    if chosen.upgrades and chosen.system != "millstream":
        parser.error("--upgrades: the previous version is one of Millstream; leave out --system")
    if not chosen.upgrades and set(chosen.only) & {each.__name__ for each in nemeses.OF_UPGRADES}:
        parser.error("--only with a change of versions needs --upgrades")
    if "ReplaceCertificates" in chosen.only and not chosen.secured:
        parser.error("--only ReplaceCertificates needs --secured")
    if not containment.was_attempted():
        command, environment = containment.command(sys.argv[1:])
        return subprocess.run(command, env=environment).returncode

    signal.signal(signal.SIGTERM, _leave)
    directory = chosen.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    contained = containment.is_contained()
    try:
        previous = previous_source(directory / "previous") if chosen.upgrades else None
    except NoSourceError as problem:
        parser.error(f"--upgrades: {problem}")
    plan = Plan(
        chosen.seed,
        chosen.seconds,
        chosen.nodes,
        chosen.system,
        tuple(chosen.only),
        directory,
        contained,
        chosen.secured,
        chosen.tiered,
        chosen.rate,
        previous,
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
    """By the ordinary way out, so that the nodes are stopped."""
    sys.exit(128 + number)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of clients that hang must not keep a finished campaign
