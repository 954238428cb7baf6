"""The guest in a contained process, as `app` is in WASM. It runs in one namespace with `frames` and `repl`.

Clock and randomness are replaced as far as Python lets them be; a cell that reaches the real ones is noticed where it
is replayed and asks otherwise.
"""

import datetime
import json
import os
import random
import time

EPOCH = 1_700_000_000


def serve(descriptor):
    """Answers requests until the other side hangs up."""
    channel = Channel(descriptor)
    repl = Repl(channel.call)
    while True:
        head, data = channel.receive()
        operation = head["op"]
        if operation == "seed":
            make_repeatable(int(data))
        if operation in ("begin", "chunk", "commit", "get", "run"):
            data = getattr(repl, operation)(data) or ""
        channel.send({"said": True}, data)


class Channel:
    """Receives and sends whole frames; ends the process when the other side is gone."""

    def __init__(self, descriptor):
        self._descriptor = descriptor
        self._frames = incoming(lambda size: os.read(descriptor, size))

    def call(self, name, payload):
        self.send({"call": name}, payload)
        return self.receive()[1]

    def receive(self):
        for _, _, payload in self._frames:
            head, _, data = payload.partition(b"\n")
            return json.loads(head), data.decode()
        os._exit(0)

    def send(self, head, data):
        view = memoryview(frame(b"m", json.dumps(head).encode() + b"\n" + data.encode()))
        while view:
            view = view[os.write(self._descriptor, view[: 1 << 20]) :]


def make_repeatable(seed):
    """Makes clock and randomness the same in every session with this seed."""
    entropy, ticks = random.Random(seed), iter(range(1, 1 << 62))

    def clock():
        return next(ticks) / 1e6

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(EPOCH, tz)

        @classmethod
        def utcnow(cls):
            return cls.fromtimestamp(EPOCH, datetime.UTC).replace(tzinfo=None)

        today = now

    class Date(datetime.date):
        @classmethod
        def today(cls):
            return cls.fromtimestamp(EPOCH)

    datetime.datetime, datetime.date = Datetime, Date
    time.time, time.time_ns = (lambda: float(EPOCH)), (lambda: EPOCH * 10**9)
    time.monotonic = time.perf_counter = time.process_time = time.thread_time = clock
    time.monotonic_ns = time.perf_counter_ns = time.process_time_ns = lambda: int(clock() * 1e9)
    os.urandom = random._urandom = entropy.randbytes
    os.getrandom = lambda size, flags=0: entropy.randbytes(size)
    random.seed(seed)
