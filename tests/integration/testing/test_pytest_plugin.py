"""The fixtures, as a project that installed Millstream sees them."""

import subprocess
import sys

import millstream
from millstream.testing import EmbeddedBroker


def test_the_topic_is_fresh_and_named_after_the_test(millstream_broker: EmbeddedBroker, millstream_topic: str) -> None:
    assert millstream_topic.startswith("test_the_topic_is_fresh_and_named_after_the_test-")
    with millstream.connect(millstream_broker.bootstrap_servers) as client:
        topic = client.describe_topic(millstream_topic)
    assert (len(topic.partitions), topic.records) == (1, 0)


def test_importing_the_plugin_costs_almost_nothing() -> None:
    script = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import millstream.testing.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = ["millstream", "millstream.compilation", "millstream.testing", "millstream.testing.pytest_plugin"]
    assert done.stdout.strip() == str([*modules, "millstream.version"])
