"""The process in which sessions live: one thread a running cell, without koderz' keys or data.

Requests come as frames over the socket that is its stdin, each with an id; answers go back with the same id, and before
them, for a cell, what it prints and what it asks. When the socket closes, the process ends.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, Protocol

from koderz.sandbox.frames import incoming
from koderz.sandbox.linux import kernel
from koderz.systems.long_context.wasm.messages import Call, StoppedError, packed, unpacked

MISSING = "\0missing"
LARGEST_ANSWER = 64 << 20  # characters of a variable that is read
PROMPTS = 10_000  # of one batch
_THREADS = 512
_ASKING = ("llm_query", "rlm_query")


class Instance(Protocol):
    """The interpreter of one session. A StoppedError from any method is its end."""

    def begin(self, name: str) -> None: ...

    def chunk(self, part: str) -> None: ...

    def commit(self, kind: str) -> None: ...

    def get(self, name: str) -> str: ...

    def run(self, code: str, timeout: float, call: Call) -> str: ...

    def close(self) -> None: ...


class Engine(Protocol):
    """Creates instances."""

    def create(self, memory: int, seed: int) -> Instance: ...


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs the worker. `arguments`: the kind of sessions; for `wasm` also the compiled image."""
    parent = socket.socket(fileno=os.dup(0))
    kernel.die_with_parent()
    kernel.hide_memory()
    Worker(parent, _engine(*arguments)).serve()


def _engine(kind: str, compiled: str) -> Engine:
    if kind == "native":
        from koderz.systems.long_context.wasm.native import NativeEngine

        return NativeEngine()
    from koderz.systems.long_context.wasm.engine import WasmEngine

    return WasmEngine(Path(compiled))


class Worker:
    """Answers requests, each in a thread of its own. At most one request of a session runs at a time."""

    def __init__(self, parent: socket.socket, engine: Engine) -> None:
        self._parent, self._engine = parent, engine
        self._sending = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS)
        self._instances: dict[str, Instance] = {}
        self._cells: dict[str, Cell] = {}  # that run, by session

    def serve(self) -> NoReturn:
        self.tell({"ready": True})
        for _, _, payload in incoming(self._parent.recv):
            head, data = unpacked(payload)
            if head["op"] == "reply":
                if cell := self._cells.get(head["session"]):
                    cell.replies.put(data.decode())
            else:
                self._threads.submit(self._perform, head, data)
        os._exit(0)

    def tell(self, head: dict[str, Any], data: bytes = b"") -> None:
        with self._sending:
            self._parent.sendall(packed(head, data))

    def _perform(self, head: dict[str, Any], data: bytes) -> None:
        try:
            value, answer = getattr(self, f"_{head['op']}")(head, data.decode())
            self.tell({"id": head["id"], **value}, answer)
        except StoppedError as stopped:
            self._drop(head["session"])
            self.tell({"id": head["id"], "stopped": stopped.why, "error": str(stopped)})
        except Exception as error:  # noqa: BLE001 it is told, and fails the request alone
            self._drop(head["session"])
            self.tell(
                {"id": head["id"], "stopped": "crash", "error": f"{type(error).__name__}: {error}"}
            )

    def _drop(self, session: str) -> None:
        if instance := self._instances.pop(session, None):
            instance.close()

    # What may be asked; each gives the head and the data of its answer

    def _create(self, head: dict[str, Any], _data: str) -> tuple[dict[str, Any], bytes]:
        self._instances[head["session"]] = self._engine.create(head["memory"], head["seed"])
        return {}, b""

    def _begin(self, head: dict[str, Any], data: str) -> tuple[dict[str, Any], bytes]:
        self._instances[head["session"]].begin(data)
        return {}, b""

    def _chunk(self, head: dict[str, Any], data: str) -> tuple[dict[str, Any], bytes]:
        self._instances[head["session"]].chunk(data)
        return {}, b""

    def _commit(self, head: dict[str, Any], data: str) -> tuple[dict[str, Any], bytes]:
        self._instances[head["session"]].commit(data)
        return {}, b""

    def _get(self, head: dict[str, Any], data: str) -> tuple[dict[str, Any], bytes]:
        text = self._instances[head["session"]].get(data)
        if text == MISSING:
            return {"missing": True}, b""
        cut = text[:LARGEST_ANSWER]
        return {"cut": len(cut) < len(text)}, cut.encode("utf-8", "backslashreplace")

    def _delete(self, head: dict[str, Any], _data: str) -> tuple[dict[str, Any], bytes]:
        if cell := self._cells.get(head["session"]):  # the instance goes when the cell ends
            cell.call_off()
        else:
            self._drop(head["session"])
        return {}, b""

    def _run(self, head: dict[str, Any], data: str) -> tuple[dict[str, Any], bytes]:
        session = head["session"]
        cell = self._cells[session] = Cell(self, head["id"], head["limit"])
        try:
            return {
                "found": _checked(self._instances[session].run(data, head["timeout"], cell.called))
            }, b""
        finally:
            del self._cells[session]
            if cell.is_called_off:
                self._drop(session)


class Cell:
    """The functions that a running cell can call. They raise StoppedError if it has to stop."""

    def __init__(self, worker: Worker, request: int, limit: int) -> None:
        self.replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.is_called_off = False
        self._worker, self._request = worker, request
        self._left = limit  # bytes that it may yet print; negative once there were more

    def call_off(self) -> None:
        """Makes the cell stop at its next call."""
        self.is_called_off = True
        self.replies.put(None)

    def called(self, name: str, payload: str) -> str:
        if self.is_called_off:
            raise StoppedError("cut", "it was called off")
        if name in ("out", "err"):
            return self._printed(name, payload)
        if name not in _ASKING:
            raise StoppedError("crash", "it calls what isn't there")
        self._worker.tell({"id": self._request, "event": "call", "name": name, **_asked(payload)})
        reply = self.replies.get()
        if reply is None:
            raise StoppedError("cut", "it was called off")
        return reply

    def _printed(self, stream: str, text: str) -> str:
        if self._left < 0:
            return "full"
        data = text.encode("utf-8", "backslashreplace")
        part = (
            data if len(data) <= self._left else data[: self._left].decode(errors="ignore").encode()
        )
        self._left -= len(data)
        truncated = self._left < 0
        self._worker.tell(
            {"id": self._request, "event": "print", "stream": stream, "truncated": truncated}, part
        )
        return "full" if truncated else ""


def _asked(payload: str) -> dict[str, Any]:
    """The prompts and the model in a cell's request, whose JSON may be anything."""
    try:
        asked = json.loads(payload)
        prompts, model = asked["prompts"], asked["model"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise StoppedError("crash", "what it asks is garbled") from None
    fine = (
        isinstance(prompts, list)
        and 0 < len(prompts) <= PROMPTS
        and all(isinstance(one, str) for one in prompts)
    )
    if not (fine and (model is None or isinstance(model, str))):
        raise StoppedError(
            "crash", f"what it asks is garbled: 1 to {PROMPTS:,} texts, and a model's name or none"
        )
    return {"prompts": prompts, "model": model}


def _checked(said: str) -> dict[str, Any]:
    """The guest's answer on a cell, checked for its form."""
    try:
        found = json.loads(said)
        error, variables, final = found["error"], found["locals"], found["final_answer"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise StoppedError("crash", "the session's answer is garbled") from None
    texts = all(one is None or isinstance(one, str) for one in (error, final))
    if not (
        texts
        and isinstance(variables, dict)
        and len(variables) <= 10_000
        and len(said) < LARGEST_ANSWER
    ):
        raise StoppedError("crash", "the session's answer is garbled")
    return {"error": error, "locals": variables, "final_answer": final}
