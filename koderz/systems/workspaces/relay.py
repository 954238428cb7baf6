"""Hands connections to a port of the loopback on to a Unix socket. Run in a container by whatever python3 it has.

It ends at once, and goes on as a process behind it, as soon as it listens.
"""

import contextlib
import os
import socket
import sys
import threading


def main(port: str, path: str) -> None:
    listening = socket.create_server(("127.0.0.1", int(port)))
    if os.fork():
        os._exit(0)
    while True:
        near, _ = listening.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(path)
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_hand_on, args=(source, target), daemon=True).start()


def _hand_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(*sys.argv[1:])
