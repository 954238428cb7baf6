"""Sessions without WASM: a process each, contained like a candidate of the judge."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from koderz.sandbox import frames
from koderz.sandbox.frames import take
from koderz.sandbox.judge.forks import Zygote
from koderz.sandbox.launch import ENVIRONMENT, command
from koderz.sandbox.linux import isolation, support
from koderz.systems.long_context.wasm.messages import Call, StoppedError, packed, unpacked

_HERE = Path(__file__).parent
GUEST = (Path(frames.__file__), _HERE / "guest/repl.py", _HERE / "guest/native.py")
LARGEST = 256 << 20  # bytes of one frame
_CPU = 1e6  # seconds: what limits a cell is its deadline
_PUT_SECONDS = 60.0


class NativeEngine:
    """Creates session processes. Exits with a message if the system can't contain them."""

    def __init__(self) -> None:
        layers = support.available()
        if not isolation.contained(layers):
            sys.exit(
                "this machine has no Landlock and seccomp to contain a native session; take --session wasm"
            )
        self.isolation = isolation.label(layers)
        self._guest = "\n".join(path.read_text(encoding="utf-8") for path in GUEST)

    def create(self, memory: int, seed: int) -> NativeInstance:
        """A new process. `memory`: the bytes of its address space."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                command("koderz.sandbox.judge.zygote", [str(theirs.fileno())]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
                cwd="/",
            )
        return NativeInstance(
            Zygote(ours, process.wait, isolation.LAYERS, {}, self._guest), memory, seed
        )


class NativeInstance:
    """One session's process. A StoppedError from any method is its end."""

    def __init__(self, zygote: Zygote, memory: int, seed: int) -> None:
        self._zygote = zygote
        self._connection = zygote.spawn(_CPU, memory)
        self._buffer = bytearray()
        self._asked("seed", str(seed))

    def begin(self, name: str) -> None:
        self._asked("begin", name)

    def chunk(self, part: str) -> None:
        self._asked("chunk", part)

    def commit(self, kind: str) -> None:
        self._asked("commit", kind)

    def get(self, name: str) -> str:
        return self._asked("get", name)

    def run(self, code: str, timeout: float, call: Call) -> str:
        """The guest's answer to a cell. `call` handles its requests; their time doesn't count, except prints."""
        return self._asked("run", code, timeout, call)

    def close(self) -> None:
        """Ends the process and its zygote."""
        self._connection.close()
        with self._zygote:
            pass

    def _asked(
        self, operation: str, data: str, timeout: float = _PUT_SECONDS, call: Call | None = None
    ) -> str:
        until = time.monotonic() + timeout
        try:
            self._send({"op": operation}, data, until)
            while True:
                head, body = self._received(until)
                if head.get("said") is True:
                    return body
                name = head.get("call")
                if call is None or not isinstance(name, str):
                    raise StoppedError("crash", "it called out of turn")
                began = time.monotonic()
                reply = call(name, body)
                if name not in ("out", "err"):
                    until += time.monotonic() - began
                self._send({}, reply, until)
        except TimeoutError:
            raise StoppedError("deadline", "Request timed out") from None
        except (EOFError, OSError):
            raise StoppedError("crash", "the interpreter ended") from None
        except (ValueError, AttributeError, RecursionError):
            raise StoppedError("crash", "the session's answer is garbled") from None

    def _send(self, head: dict[str, Any], data: str, until: float) -> None:
        self._connection.settimeout(_left(until))
        self._connection.sendall(packed(head, data.encode("utf-8", "backslashreplace")))

    def _received(self, until: float) -> tuple[dict[str, Any], str]:
        while not (found := take(self._buffer, LARGEST)):
            self._connection.settimeout(_left(until))
            part = self._connection.recv(1 << 20)
            if not part:
                raise EOFError
            self._buffer += part
        head, data = unpacked(found[2])
        return head, data.decode()


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
