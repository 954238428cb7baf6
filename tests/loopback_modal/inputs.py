"""The queue of inputs and their outputs, on disk: ten thousand of them cost no memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from modal_proto import api_pb2

from tests.loopback_modal.store import Bells, Store, new_id

_COLUMNS = "seq, id, call, idx, function, attempt, body, container, started, finished, output"


@dataclass(frozen=True, slots=True)
class Input:
    """One input: `waiting`, `running` in a container, or done, and then with its output."""

    seq: int
    id: str
    call: str
    idx: int
    function: str
    attempt: int
    body: bytes
    container: str
    started: float | None
    finished: int | None
    output: bytes | None


class Inputs:
    """Rings a call's id when it has an output more, and `FUNCTION/waiting` when there is work for a function."""

    def __init__(self, store: Store, bells: Bells) -> None:
        self._sql, self._bells = store.sql, bells
        self._finished = self._number("SELECT coalesce(max(finished), 0) FROM input")

    def put(self, call: str, function: str, idx: int, body: bytes) -> str:
        """The new input's id."""
        one = new_id("in")
        self._sql.execute(
            "INSERT INTO input (id, call, idx, function, state, body) VALUES (?, ?, ?, ?, 'waiting', ?)",
            (one, call, idx, function, body),
        )
        self._bells.ring(f"{function}/waiting")
        return one

    def take(self, function: str, container: str) -> Input | None:
        """The input that has waited longest, now running in that container."""
        query = (
            "UPDATE input SET state = 'running', container = ?, started = ? WHERE seq = (SELECT seq FROM input "
            f"WHERE function = ? AND state = 'waiting' ORDER BY seq LIMIT 1) RETURNING {_COLUMNS}"
        )
        row = self._sql.execute(query, (container, time.time(), function)).fetchone()
        return Input(*row) if row else None

    def finish(self, one: Input, output: api_pb2.FunctionGetOutputsItem) -> None:
        """Keeps an output, unless the input is done already; its arguments are forgotten."""
        self._finished += 1
        self._sql.execute(
            "UPDATE input SET state = 'done', finished = ?, output = ?, body = NULL WHERE seq = ? AND state != 'done'",
            (self._finished, output.SerializeToString(), one.seq),
        )
        self._bells.ring(one.call)

    def put_back(self, one: Input, *, attempt: int) -> None:
        """Has it run again, before all later ones."""
        self._sql.execute(
            "UPDATE input SET state = 'waiting', container = '', attempt = ? WHERE seq = ? AND state = 'running'",
            (attempt, one.seq),
        )
        self._bells.ring(f"{one.function}/waiting")

    def put_back_all(self) -> None:
        """What ran when the server went away runs again."""
        self._sql.execute("UPDATE input SET state = 'waiting', container = '' WHERE state = 'running'")

    def find(self, input_id: str) -> Input | None:
        row = self._sql.execute(f"SELECT {_COLUMNS} FROM input WHERE id = ?", (input_id,)).fetchone()
        return Input(*row) if row else None

    def running(self, container: str) -> list[Input]:
        return self._where("container = ? AND state = 'running'", container)

    def unfinished(self, call: str) -> list[Input]:
        return self._where("call = ? AND state != 'done'", call)

    def of_call(self, call: str) -> list[Input]:
        return self._where("call = ?", call)

    def waiting(self, function: str) -> list[Input]:
        return self._where("function = ? AND state = 'waiting'", function)

    def functions_waiting(self) -> list[str]:
        rows = self._sql.execute("SELECT DISTINCT function FROM input WHERE state = 'waiting'")
        return [row[0] for row in rows]

    def outputs(self, call: str, *, first: int, last: int, limit: int) -> Iterator[Input]:
        """Those of a range of places, both ends included."""
        query = "call = ? AND idx BETWEEN ? AND ? AND finished IS NOT NULL ORDER BY idx LIMIT ?"
        return iter(self._where(query, call, first, last, limit))

    def outputs_after(self, call: str, finished: int, *, limit: int) -> Iterator[Input]:
        """Those that came after a certain one, as they came."""
        query = "call = ? AND finished > ? ORDER BY finished LIMIT ?"
        return iter(self._where(query, call, finished, limit))

    def count_unfinished(self, call: str, *, first: int = 0, last: int = 1 << 62) -> int:
        query = "SELECT count(*) FROM input WHERE call = ? AND state != 'done' AND idx BETWEEN ? AND ?"
        return self._number(query, call, first, last)

    def count_open(self, function: str) -> int:
        """How many wait or run."""
        return self._number(
            "SELECT count(*) FROM input WHERE function = ? AND state IN ('waiting', 'running')", function
        )

    def count(self, call: str) -> int:
        return self._number("SELECT count(*) FROM input WHERE call = ?", call)

    def forget(self, call: str) -> None:
        self._sql.execute("DELETE FROM input WHERE call = ?", (call,))
        self._bells.ring(call)

    def _where(self, condition: str, *values: object) -> list[Input]:
        query = f"SELECT {_COLUMNS} FROM input WHERE {condition}"  # conditions are this module's own
        return [Input(*row) for row in self._sql.execute(query, values)]

    def _number(self, query: str, *values: object) -> int:
        return int(self._sql.execute(query, values).fetchone()[0])
