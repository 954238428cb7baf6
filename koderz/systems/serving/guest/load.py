"""Sends requests to a loopback port at their due times, and notes when each part of the answers came.

Run beside a server, where koderz can't reach that from outside, by whatever python3 there is (3.8 or later). It reads
its order as JSON, and writes a line of JSON with all parts after it, compressed.
"""

import asyncio
import json
import sys
import time
import zlib

LOOK = 0.005  # seconds between two looks at how late the event loop is


class Load:
    """Requests to a server, some of them at once."""

    def __init__(self, order):
        self._order, self._room, self._begun = order, order["room"], time.perf_counter()
        self._places = None

    async def done(self):
        """The exchange of each request, and the delays of this process."""
        requests, lags = [request.encode() for request in self._order["requests"]], []
        self._places = asyncio.Semaphore(
            self._order["at_once"] or len(requests) + self._order["warmups"]
        )
        await asyncio.gather(*(self._exchanged(requests[0]) for _ in range(self._order["warmups"])))
        looking = asyncio.ensure_future(look(lags))
        self._begun = time.perf_counter()
        tasks = []
        for request, due in zip(requests, self._order["due"]):
            wait = self._begun + due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.ensure_future(self._exchanged(request)))
        found = await asyncio.gather(*tasks)
        looking.cancel()
        return found, lags

    async def _exchanged(self, request):
        told = {"error": "", "parts": []}
        waiting = time.perf_counter()
        async with self._places:
            started = time.perf_counter()
            told["queued"], told["start"] = started - waiting, started - self._begun
            seconds = self._order["seconds"]
            try:
                await asyncio.wait_for(self._exchange(request, told["parts"]), seconds)
            except asyncio.TimeoutError:  # noqa: UP041 not the same before Python 3.11
                told["error"] = f"no whole answer within {seconds:g} seconds"
            except (OSError, ValueError) as error:
                told["error"] = f"{type(error).__name__}: {error}"
            told["ended"] = time.perf_counter() - self._begun
        return told

    async def _exchange(self, request, parts):
        reader, writer = await asyncio.open_connection("127.0.0.1", self._order["port"])
        try:
            writer.write(request)
            part = b"-"
            while part:
                part = await reader.read(1 << 16)
                parts.append((time.perf_counter() - self._begun, part))
                self._room -= len(part)
                if self._room < 0:
                    raise ValueError("the answers are too large")
        finally:
            writer.close()


async def look(lags):
    while True:
        due = time.perf_counter() + LOOK
        await asyncio.sleep(LOOK)
        lags.append(max(0.0, time.perf_counter() - due))


def main():
    order = json.load(sys.stdin)
    found, lags = asyncio.run(Load(order).done())
    content = b"".join(part for each in found for _, part in each["parts"])
    for each in found:
        each["parts"] = [(when, len(part)) for when, part in each["parts"]]
    told = json.dumps({"exchanges": found, "lags": lags}).encode()
    sys.stdout.buffer.write(zlib.compress(told + b"\n" + content, 1))


main()
