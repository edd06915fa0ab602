"""`python -m benchmarks.failover`: SIGSTOP, isolation, mute and deaf, of a leader and of the controller.

python -m benchmarks.failover --rounds 5                 # medians of five of each fault
python -m benchmarks.failover --only stop --victim leader
python -m benchmarks.failover --overload 60              # three times more to do than the machine can
python -m benchmarks.failover --system kafka             # the same against Apache Kafka
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.failover import faults
from benchmarks.failover.measuring import Bench, Outage
from tests.system.chaos import containment
from tests.system.chaos.nodes import SYSTEMS

_INSIDE = "MILLSTREAM_FAILOVER_CONTAINED"
_VICTIMS = ("leader", "controller")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each fault strikes")
    parser.add_argument("--only", action="append", choices=sorted(faults.FAULTS), help="only this fault (repeatable)")
    parser.add_argument("--victim", action="append", choices=_VICTIMS, help="only this victim (repeatable)")
    parser.add_argument("--longest", type=float, default=20.0, help="how long a fault lasts at most, in seconds")
    parser.add_argument("--overload", type=float, default=0.0, help="no faults: so many seconds of load, and fencings")
    parser.add_argument("--cut", type=float, default=0.0, help="cuts of so many seconds, and the time after they heal")
    parser.add_argument("--times", type=int, default=3, help="busy loops for each core under --overload")
    parser.add_argument("--system", choices=sorted(SYSTEMS), default="millstream")
    parser.add_argument("--keep", type=Path, help="keep the nodes' logs in this directory")
    chosen = parser.parse_args()
    if _INSIDE not in os.environ:
        possible = containment.is_possible()
        command = [*(containment.unshare() if possible else []), sys.executable, "-m", "benchmarks.failover"]
        environment = {**os.environ, _INSIDE: "yes" if possible else "no"}
        return subprocess.run([*command, *sys.argv[1:]], env=environment).returncode
    directory = chosen.keep or Path(tempfile.mkdtemp(prefix="failover-"))
    directory.mkdir(parents=True, exist_ok=True)
    with Bench(chosen.system, directory, contained=os.environ[_INSIDE] == "yes") as bench:
        if chosen.overload:
            return _overload(bench, chosen.overload, chosen.times)
        if chosen.cut:
            return _cuts(bench, chosen.cut, chosen.rounds)
        wanted = [each for each in bench.possible if not chosen.only or each in chosen.only]
        _say(f"faults: {', '.join(wanted)}; logs in {directory}")
        outages: list[Outage] = []
        for number in range(chosen.rounds):
            for fault in wanted:
                for victim in chosen.victim or _VICTIMS:
                    outages.append(bench.outage(fault, victim, longest_s=chosen.longest))
                    _say(f"round {number + 1}: {_line(outages[-1:])}")
    print("\nmedians (worst) in seconds: first ack where the victim led | on all partitions | of librdkafka | in sync")
    for fault in wanted:
        for victim in chosen.victim or _VICTIMS:
            print(_line([each for each in outages if (each.fault, each.victim) == (fault, victim)]), flush=True)
    return 0


def _overload(bench: Bench, seconds: float, times: int) -> int:
    found = bench.overload(seconds, times=times, cores=len(os.sched_getaffinity(0)), say=_say)
    print(
        f"{found.processes} busy loops on {found.cores} cores for {found.seconds:g} s: {found.acknowledged} writes "
        f"acknowledged, longest silence of a writer {found.longest_silence:.2f} s, {found.elections} elections, "
        f"{len(found.fenced)} brokers fenced"
    )
    for line in found.fenced:
        print(f"  {line}")
    return 1 if found.fenced else 0


def _cuts(bench: Bench, seconds: float, rounds: int) -> int:
    if not bench.cluster.network.can_cut:
        print("links cannot be cut here: network namespaces are not permitted")
        return 1
    for cut in faults.CUTS:
        found = [bench.healing(cut, seconds) for _ in range(rounds)]
        writes, in_sync = _median([each.every_partition for each in found]), _median([each.in_sync for each in found])
        _say(f"{cut:8} for {seconds:g} s: every partition takes writes after {writes}, all in sync after {in_sync}")
    return 0


def _line(outages: Sequence[Outage]) -> str:
    first = outages[0]
    columns = ("led_by_victim", "every_partition", "librdkafka", "in_sync_after_healing")
    shown = " | ".join(_median([getattr(each, column) for each in outages]) for column in columns)
    return f"{first.fault:8} of {first.victim:10} {shown}"


def _median(values: Sequence[float | None]) -> str:
    """A fault that outlasted the measurement counts as the longest."""
    ordered = sorted(float("inf") if each is None else each for each in values)
    return f"{statistics.median_low(ordered):6.2f} ({ordered[-1]:6.2f})"


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # clients that hang must not keep a finished measurement
