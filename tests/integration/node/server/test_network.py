"""Connections between nodes whose link is cut: they break while it is still cut, and new ones can be made afterwards.

Two hosts in network namespaces, as in the chaos tests. Nothing here waits for the cut to end: a connection that is left
to TCP alone would repeat its bytes for a quarter of an hour, and these tests would run into their time limit.
"""

import os
import subprocess
import sys

import pytest

from tests.repository import REPOSITORY
from tests.system.chaos import containment

_SERVER = """
import asyncio, sys

async def serve():
    async def talk(reader, writer):
        while data := await reader.read(100):
            if data != b"wait":
                writer.write(data)
    server = await asyncio.start_server(talk, "0.0.0.0", int(sys.argv[1]))
    print("up", flush=True)
    await server.serve_forever()

asyncio.run(serve())
"""

_CLIENT = """
import asyncio, sys
from millstream.node.server.network import SocketNetwork

async def outcome(transport):
    loop, found = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    def readable():
        try:
            count = transport.receive_into(memoryview(bytearray(100)))
        except BlockingIOError:
            return
        except OSError as error:
            count = type(error).__name__
        if not found.done():
            found.set_result(count)
    transport.watch_readable(readable)
    result = await found
    transport.watch_readable(None)
    return result

def told():
    return asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

async def main():
    network = SocketNetwork(asyncio.get_running_loop())
    address = sys.argv[1], int(sys.argv[2])
    waiting, sending = [await network.connect(*address) for _ in range(2)]
    for transport in (waiting, sending):
        transport.send(b"hello")
        assert await outcome(transport) == 5
    waiting.send(b"wait")
    print("connected", flush=True)
    await told()  # the link is cut
    sending.send(b"lost")
    broken = [await outcome(transport) for transport in (waiting, sending)]
    try:
        await network.connect(*address)
        broken.append("connected")
    except OSError as error:
        broken.append(type(error).__name__)
    print(*broken, flush=True)
    await told()  # the link is whole again
    again = await network.connect(*address)
    again.send(b"hello")
    print(await outcome(again), flush=True)

asyncio.run(main())
"""

_RUN = """
import subprocess, sys
from tests.system.chaos.network import KAFKA_PORT, Bridged

server_program, client_program, *cut = sys.argv[1:]
network = Bridged(2)

def start(node, program, *arguments):
    command = [*network.command_prefix(node), sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

server = start(2, server_program, str(KAFKA_PORT))
assert server.stdout.readline() == "up\\n"
client = start(1, client_program, network.kafka_address(2)[0], str(KAFKA_PORT))
assert client.stdout.readline() == "connected\\n"
for link in cut:
    network.cut(*map(int, link.split(">")))
print("cut", file=client.stdin, flush=True)
broken = client.stdout.readline().split()
network.heal()
print("healed", file=client.stdin, flush=True)
print(*broken, client.stdout.readline().strip())
client.kill()
server.kill()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cut", [("1>2", "2>1"), ("1>2",), ("2>1",)], ids=["both ways", "mute", "deaf"])
def test_connections_break_while_the_link_is_cut_and_new_ones_are_made_when_it_is_whole(cut: tuple[str, ...]) -> None:
    if not containment.is_possible():
        pytest.skip("network namespaces are not permitted here")
    command = [*containment.unshare(), sys.executable, "-c", _RUN, _SERVER, _CLIENT, *cut]
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    waiting, sending, connecting, again = done.stdout.split()
    assert waiting == sending == "TimeoutError", "bytes that nobody acknowledges break the connection"
    assert connecting == "TimeoutError", "an attempt to connect is given up"
    assert again == "5"
