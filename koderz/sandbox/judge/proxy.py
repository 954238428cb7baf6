"""The candidate as the tests see it: a function whose calls happen in another process."""

from __future__ import annotations

import builtins
import contextlib
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from koderz.sandbox.frames import OversizeError, frame, take
from koderz.sandbox.judge import wire

# The kinds of loss that no frame tells of
NOT_PROXIABLE = b"?"  # the tests hand the candidate what can't be sent, such as a function
BROKEN = b"!"  # the candidate sends what no answer looks like
TOO_LARGE = b"+"  # an answer is longer than any frame may be

_LAST_LINE = 1 << 31  # that a line of a program can be

_READ = 256 << 10
_REFUSAL = frame(wire.REFUSED)


class LostCandidate(BaseException):
    """The candidate can answer no more; `kind` is the frame that said so, empty when it just went.

    Not an Exception, so that tests don't catch it by chance; and it stays lost, so that tests which catch
    everything can't make a pass of it.
    """

    def __init__(self, kind: bytes = b"", payload: Any = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.payload = payload


class CandidateError(Exception):
    """An exception of the candidate's that isn't a built-in one."""


class Raised(NamedTuple):
    """An exception in the candidate, and the one that stands for it among the tests."""

    name: str
    message: str
    places: tuple[tuple[int, str], ...]  # line and function, from the outermost in
    error: Exception

    @classmethod
    def read(cls, report: Any) -> Self:
        """Lost for a report that isn't one."""
        match report:
            case [str(name), str(base), str(message), [*places]]:
                lines = tuple(map(_place, places[:8]))
                named = name[:80] if name[:80].isidentifier() else "Exception"
                return cls(
                    named, said := message[:500], lines, _EXCEPTIONS.get(base, CandidateError)(said)
                )
        raise LostCandidate(BROKEN)


class Proxy:
    """Calls the candidate over its socket. What it gets back is plain data, or an exception by name."""

    def __init__(self, connection: socket.socket, name: str, *, foresees: bool = True) -> None:
        self.__name__ = self.__qualname__ = name
        self.foresees = foresees
        self.calls = 0
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.result: Any = None
        self.raised: Raised | None = None
        self.lost: LostCandidate | None = None
        self.foresaw = False
        self.astray = False  # waits for answers that were foreseen and aren't asked for
        # the arguments of each call, unless one can't be written so
        self.made: list[bytes] | None = []
        self.strays = False  # bytes came that answered nothing
        self.refused = False  # it says that it tried what containment refuses
        self.skipped = 0  # the number of a call that isn't made; 0: none
        self._connection = connection
        self._buffer = bytearray()
        self._ahead: deque[bytes] = deque()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.calls += 1
        self.arguments = (arguments, keywords)
        self.result = None
        if self.calls == self.skipped:
            raise LostCandidate
        try:
            self.result = self._asked(arguments, keywords)
        except LostCandidate as lost:
            self.lost = lost
            raise
        return self.result

    def ahead(self, inputs: Iterable[Iterable[Any]]) -> None:
        """Sends the arguments of calls that will follow in this order, so that answers are there when asked.

        A hint and no more: a call that comes otherwise is asked in the ordinary way.
        """
        if not self._ahead:
            with contextlib.suppress(ValueError, TypeError):
                self._start(
                    self._expecting([wire.to_untrusted(tuple(arguments)) for arguments in inputs])
                )

    def _expecting(self, calls: Sequence[bytes]) -> list[tuple[Any, ...]]:
        if not (self.foresees and calls):
            return []
        self._ahead.extend(calls)
        self.foresaw = True
        return [(calls, None)]

    def _start(self, requests: Iterable[tuple[Any, ...]]) -> None:
        """Sends what needs no answer yet. A candidate that is gone already is found lost at the next call."""
        frames = [frame(wire.MARSHALLED, wire.to_untrusted(request)) for request in requests]
        with contextlib.suppress(LostCandidate):
            self._send(b"".join(frames))

    def greet(self, request: tuple[Any, ...], calls: Sequence[bytes] = ()) -> None:
        """Tells the candidate what to load, and what it will most likely be asked."""
        self._start([request, *self._expecting(calls)])

    def renew(self, connection: socket.socket) -> None:
        """Goes on with another candidate of the same program, which has been asked nothing."""
        self._connection, self.lost = connection, None
        self._buffer.clear()
        self._ahead.clear()

    def finish(self) -> None:
        """Looks at what came and answered nothing, once the tests have ended."""
        if self.lost or self._ahead:
            return
        with contextlib.suppress(OSError):
            self._buffer += self._connection.recv(_READ, socket.MSG_DONTWAIT)
        self.strays = self.strays or bool(self._buffer.replace(_REFUSAL, b""))
        self.refused = self.refused or _REFUSAL in self._buffer

    def _receive(self) -> tuple[bytes, bytes]:
        """The next answer's kind and payload. Lost for an end, or a frame that is too long."""
        while True:
            try:
                while not (found := take(self._buffer, wire.FRAME_LIMIT)):
                    self._buffer += self._more()
            except OversizeError:
                raise LostCandidate(TOO_LARGE) from None
            kind, _, payload = found
            if kind != wire.REFUSED:
                return kind, payload
            self.refused = True

    def _more(self) -> bytes:
        try:
            data = self._connection.recv(_READ)
        except OSError:
            data = b""
        if not data:
            raise LostCandidate
        return data

    def _asked(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self.lost:
            raise LostCandidate(self.lost.kind, self.lost.payload)
        if not self._is_next(arguments, keywords):
            self._drop_predictions()
            self.strays = self.strays or bool(self._buffer.replace(_REFUSAL, b""))
            self._ask(_encoded(arguments, keywords))
        kind, payload = self._receive()
        value = _decoded(payload)
        if kind == wire.RAISED:
            self.raised = Raised.read(value)
            raise self.raised.error
        # the kinds of loss that are this side's own aren't a candidate's to choose
        if kind != wire.VALUE:
            raise LostCandidate(kind, value) if kind in wire.LOSSES else LostCandidate(BROKEN)
        return value

    def _is_next(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether the answer to this call is on its way already. Notes the call, for the next candidate."""
        if keywords or self.made is None:
            self.made = None
            return False
        try:
            call = wire.to_untrusted(arguments)
        except ValueError:
            self.made = None
            return False
        self.made.append(call)
        if not self._ahead or self._ahead[0] != call:
            return False
        self._ahead.popleft()
        return True

    def _drop_predictions(self) -> None:
        self.astray = bool(self._ahead)
        while self._ahead:
            self._receive()
            self._ahead.popleft()
        self.astray = False

    def _ask(self, data: bytes) -> None:
        try:
            self._send(data)
        except LostCandidate:
            # A candidate that ends while it loads, or prints, says why first, and may be gone before it is asked.
            # All that it said is here. One that only reads no more is lost, too: nobody waits for what it may say.
            self._connection.setblocking(False)
            while (said := self._receive())[0] not in wire.LOSSES:
                pass
            raise LostCandidate(said[0], _decoded(said[1])) from None

    def _send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise LostCandidate from error


def _place(place: Any) -> tuple[int, str]:
    match place:
        case [int(line), str(function)] if 0 <= line <= _LAST_LINE:
            return int(line), function[:80]
    raise LostCandidate(BROKEN)


def _encoded(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
    try:
        return frame(wire.MARSHALLED, wire.to_untrusted((arguments, keywords)))
    except ValueError:
        pass
    try:
        return frame(wire.TAGGED, wire.dumps((arguments, keywords)))
    except wire.ForeignError as error:
        raise LostCandidate(NOT_PROXIABLE, str(error)) from error
    except wire.NotPlainError as error:
        # made of the candidate's own results: no reason to trust it more
        raise LostCandidate(wire.UNPLAIN, str(error)) from error


def _decoded(payload: bytes) -> Any:
    try:
        return wire.loads(payload) if payload else None
    except wire.NotPlainError as error:
        raise LostCandidate(BROKEN) from error


_NO_TEXT_MAKES = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError, ExceptionGroup)
_ENDS_LOOPS = (StopIteration, StopAsyncIteration)  # of the tests, early
_EXCEPTIONS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and kind not in (*_NO_TEXT_MAKES, *_ENDS_LOOPS)
}
