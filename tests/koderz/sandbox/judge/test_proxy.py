"""The candidate as its tests call it."""

from __future__ import annotations

import socket

import pytest

from koderz.sandbox.frames import frame
from koderz.sandbox.judge import wire
from koderz.sandbox.judge.proxy import LostCandidate, Proxy

ANSWER = frame(wire.VALUE, wire.dumps(3))


@pytest.mark.parametrize(
    ("said", "kind", "payload"),
    [
        (frame(wire.UNLOADED, wire.dumps(["no_entry_point"])), wire.UNLOADED, ["no_entry_point"]),
        (frame(wire.PRINTED), wire.PRINTED, None),
        (ANSWER + frame(wire.PRINTED), wire.PRINTED, None),
        (ANSWER, b"", None),
        (b"", b"", None),
    ],
)
def test_candidate_that_is_gone_before_it_is_asked_has_said_why(said: bytes, kind: bytes, payload: object) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(said)
        with pytest.raises(LostCandidate) as raised:
            Proxy(ours, "f")(1)

    assert (raised.value.kind, raised.value.payload) == (kind, payload)


def test_candidate_that_only_reads_no_more_is_lost_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.shutdown(socket.SHUT_RD)
        with pytest.raises(LostCandidate) as raised:
            Proxy(ours, "f")(1)

    assert raised.value.kind == b""
