"""A candidate's socket carried over a pipe."""

from __future__ import annotations

import os
import socket
from threading import Thread

from koderz.sandbox.frames import frame, take
from koderz.sandbox.judge.relay import DATA, FULL, GONE, FarEnd


def test_relay_carries_bytes_both_ways_and_hangs_up() -> None:
    source, to_relay = os.pipe()
    (sink, from_relay), (control, zygote), (ours, candidate) = (socket.socketpair() for _ in range(3))
    end = FarEnd(control, source, sink.fileno())
    end.take_on(ours, 7)
    running = Thread(target=end.run, daemon=True)
    with sink, from_relay, control, zygote, ours, candidate:
        candidate.settimeout(60)
        from_relay.settimeout(60)
        os.write(to_relay, frame(DATA, b"of another", 6) + frame(DATA, b"hello", 7) + frame(GONE, b"", 7))
        running.start()
        assert (candidate.recv(64), candidate.recv(64)) == (b"hello", b"")

        candidate.sendall(b"reply")
        candidate.shutdown(socket.SHUT_WR)
        carried, found = bytearray(), list[tuple[bytes, int, bytes]]()
        while (GONE, 7, b"") not in found:
            carried += from_relay.recv(64)
            while each := take(carried, FULL):
                found.append(each)
        assert found == [(DATA, 7, b"reply"), (GONE, 7, b"")]

        os.close(to_relay)
        running.join(60)
        assert not running.is_alive()
    os.close(source)
