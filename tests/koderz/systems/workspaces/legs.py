"""A timed command that works when it is told to, and a talk with it."""

from __future__ import annotations

import asyncio
import socket

from koderz.sandbox.workspace import Ended, Running

LEG = """
import os, sys
print("begun", flush=True)
os.write(4, b"ready")
while os.read(3, 10):
    if not os.fork():
        sum(range(5_000_000))
        os._exit(0)
    os.wait()
    os.write(4, b"done")
sys.exit(3)
"""


async def talked(leg: Running) -> tuple[bytes, int, int, Ended]:
    """What a timed command answers, the nanoseconds that it used while it waited and worked, and how it ended."""
    loop = asyncio.get_running_loop()
    said = await loop.sock_recv(leg.channel, 100)
    if not said:
        return b"", 0, 0, await leg.ended
    before = await leg.cpu()
    waited = await leg.cpu() - before
    await loop.sock_sendall(leg.channel, b"go")
    said += await loop.sock_recv(leg.channel, 100)
    used = await leg.cpu() - before
    leg.channel.shutdown(socket.SHUT_WR)
    return said, waited, used, await leg.ended
