"""The environment of a real node."""

import asyncio
import random

from millstream.node.runtime.real_environment import real_environment


def test_ids_cannot_be_predicted() -> None:
    """Topic ids, which clients see, and incarnation ids, by which brokers prove themselves, come from one source: who
    sees enough of a usual generator knows all of its numbers, also the earlier ones."""
    loop = asyncio.new_event_loop()
    try:
        assert isinstance(real_environment(loop).randomness, random.SystemRandom)
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
