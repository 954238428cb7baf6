"""Python in WASM: one engine a process, and one instance a session."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wasmtime import Config, Engine, Store, WasiConfig, WasmtimeError, component

from koderz.systems.long_context.wasm.messages import Call, StoppedError

TICK = 0.05  # seconds an epoch
EPOCH = 1_700_000_000  # what a session's clock always says, in Unix seconds
SETTINGS = "epochs, components, stack 1 MB"  # whatever changes compiled code changes this
_STACK = 1 << 20  # bytes; above the 2 MB of an async stack wasmtime aborts the process
_PUT_SECONDS = 60.0


class Ticker:
    """Counts epochs while any guest computes, and costs nothing otherwise."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._computing = 0
        threading.Thread(target=self._tick, daemon=True).start()

    def computing(self, change: int) -> None:
        """Counts a guest that begins (+1) or ends (-1) to compute."""
        with self._changed:
            self._computing += change
            self._changed.notify()

    def _tick(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._computing)
            time.sleep(TICK)
            self._engine.increment_epoch()


class WasmEngine:
    """The objects that all instances of a process share."""

    def __init__(self, compiled: Path) -> None:
        """`compiled`: native code, which is loaded without checks; see `image`."""
        self.engine = new_engine()
        self.component = component.Component.deserialize_file(self.engine, str(compiled))
        self.ticker = Ticker(self.engine)

    def create(self, memory: int, seed: int) -> WasmInstance:
        """A new instance. `memory` in bytes."""
        return WasmInstance(self, memory, seed)


class WasmInstance:
    """One session's interpreter. A StoppedError from any method is its end."""

    def __init__(self, shared: WasmEngine, memory: int, seed: int) -> None:
        self._ticker = shared.ticker
        self._call: Call | None = None
        self._until = 0.0
        self._store = Store(shared.engine)
        self._store.set_wasi(WasiConfig())  # no folder, environment, argument, stream or socket
        self._store.set_limits(memory_size=memory)
        self._store.set_epoch_deadline(round(_PUT_SECONDS / TICK))
        instance = self._linker(shared.engine, random.Random(seed)).instantiate(  # noqa: S311
            self._store, shared.component
        )
        self._functions = {}
        for name in ("begin", "chunk", "commit", "run", "get"):
            found = instance.get_func(self._store, name)
            assert found is not None
            self._functions[name] = found

    def begin(self, name: str) -> None:
        self._computed("begin", name)

    def chunk(self, part: str) -> None:
        self._computed("chunk", part)

    def commit(self, kind: str) -> None:
        self._computed("commit", kind)

    def get(self, name: str) -> str:
        return str(self._computed("get", name))

    def run(self, code: str, timeout: float, call: Call) -> str:
        """The guest's answer to a cell. `call` handles its requests; their time doesn't count, except prints."""
        self._call = call
        try:
            return str(self._computed("run", code, timeout=timeout))
        finally:
            self._call = None

    def close(self) -> None:
        """Does nothing, since the garbage collector frees the instance."""

    def _computed(self, function: str, *arguments: str, timeout: float = _PUT_SECONDS) -> Any:
        self._until = time.monotonic() + timeout
        self._arm()
        self._ticker.computing(+1)
        try:
            value = self._functions[function](self._store, *arguments)
            self._functions[function].post_return(self._store)
        except WasmtimeError as error:
            raise _stopped(str(error)) from None
        finally:
            self._ticker.computing(-1)
        return value

    def _arm(self) -> None:
        self._store.set_epoch_deadline(max(1, round((self._until - time.monotonic()) / TICK)))

    def _reached(self, _store: Any, name: str, payload: str) -> str:
        """Handles the guest's `call`, and extends its deadline by the time that a model takes."""
        if self._call is None:
            raise StoppedError("crash", "it called out of turn")
        if name in ("out", "err"):
            return self._call(name, payload)
        began = time.monotonic()
        self._ticker.computing(-1)
        try:
            return self._call(name, payload)
        finally:
            self._ticker.computing(+1)
            self._until += time.monotonic() - began
            self._arm()

    def _linker(self, engine: Engine, entropy: random.Random) -> component.Linker:
        """The linker of an instance, which replaces the host's clock and randomness by repeatable ones."""
        linker = component.Linker(engine)
        linker.allow_shadowing = True
        linker.add_wasip2()

        def now(_store: Any) -> Any:
            value: Any = component.Record()
            value.seconds, value.nanoseconds = EPOCH, 0
            return value

        with linker.root() as root:
            root.add_func("call", self._reached)
            with root.add_instance("wasi:clocks/wall-clock@0.2.9") as clock:
                clock.add_func("now", now)
                clock.add_func("resolution", now)
            with root.add_instance("wasi:random/random@0.2.9") as source:
                source.add_func("get-random-bytes", lambda _store, size: entropy.randbytes(size))
                source.add_func("get-random-u64", lambda _store: entropy.getrandbits(64))
        return linker


def new_engine() -> Engine:
    config = Config()
    config.epoch_interruption = True
    config.wasm_component_model = True
    config.max_wasm_stack = _STACK
    return Engine(config)


def main(arguments: Sequence[str]) -> None:
    """Compiles one file into another, in a process of its own, as it takes 400 MB. `arguments`: both paths."""
    source, target = arguments
    Path(target).write_bytes(component.Component.from_file(new_engine(), source).serialize())
    sys.exit()


def _stopped(text: str) -> StoppedError:
    """The reason for which wasmtime ended an instance."""
    if "wasm trap: interrupt" in text:
        return StoppedError("deadline", "Request timed out")
    if "call stack exhausted" in text:
        return StoppedError("crash", "RecursionError: the interpreter's stack is used up")
    lines = text.strip().splitlines() or ["no reason given"]
    return StoppedError(
        "crash", f"the interpreter ended: {json.dumps(lines[-1].strip())[1:-1]:.200}"
    )
