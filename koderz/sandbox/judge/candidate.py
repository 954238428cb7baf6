"""The candidate's process: loads a program and answers calls to it, over one socket.

Everything here shares its process with the untrusted program, so nothing here is believed: the
program may rewrite it, answer in its place, or end it. The judge takes what arrives as data.
"""

from __future__ import annotations

import _sitebuiltins
import atexit
import builtins
import io
import os
import signal
import sys
import types
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from types import CodeType
from typing import Any, NamedTuple, NoReturn

from koderz.sandbox.frames import frame, incoming
from koderz.sandbox.judge import wire

FILE = "<candidate>"
EAGER = 32  # answers of a batch that are sent at once each, before they are gathered
PATIENCE = 0.002  # seconds that an answer of a batch may wait for others
GATHERED = 48 << 10  # bytes
MESSAGE_LIMIT = 500  # characters of an exception's text
_UNFLUSHED = 120  # the status of an interpreter that can't write what is left

_SOCKET, _UNIX = "socket.__new__", 1  # a pair of sockets is allowed
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = """
    os.exec os.fork os.forkpty os.kill os.killpg os.posix_spawn os.spawn os.system subprocess.Popen
    os.chmod os.chown os.link os.mkdir os.remove os.rename os.rmdir os.symlink os.truncate os.utime os.setxattr
    socket.bind socket.connect socket.sendto socket.getaddrinfo socket.gethostbyname
    resource.setrlimit resource.prlimit
"""
_REFUSED = frozenset(_EVENTS.split())
"""Events of the interpreter that announce what no candidate may do."""

Call = Callable[..., bytes]


class Request(NamedTuple):
    """First message from the judge to a candidate."""

    program: str
    entry_point: str  # empty for a program that reads stdin and writes stdout
    output_limit: int  # bytes a call may print
    # of CPU that a call may take; 0 for no limit. A program can lift it, but not that of the judge
    call_seconds: float
    test: str = ""  # only where tests have to run in this process
    token: str = ""  # what these tests return
    # source that defines `load(program, entry_point, file)`, which returns what is called
    harness: str = ""
    # the program is run once, from the candidate's stdin to the judge, who reads what it writes
    as_process: bool = False


def prepare() -> Printed:
    """Prepare, before the fork, what all candidates share: pages that a fork writes to have to be copied."""
    printed = Printed(Channel())
    sys.addaudithook(_hook(printed.channel))
    sys.stdout = sys.stderr = printed.text()
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    return printed


def serve(printed: Printed, descriptor: int) -> NoReturn:
    """Answers until the judge hangs up. Called once, in a process that ends with it."""
    channel = printed.channel
    channel.descriptor = descriptor
    request = Request(*channel.receive())
    if request.as_process:
        run_as_process(channel, request.program)
    printed.limit = request.output_limit
    function = _loaded(channel, request, printed)
    if request.call_seconds:
        function = _timed(function, request.call_seconds)
    if request.test:
        function = partial(_run_tests, request)

    def call(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
        printed.bytes = 0
        return _answer(function, arguments, keywords)

    while True:
        arguments, keywords = channel.receive()
        if keywords is None:
            _answer_ahead(channel, call, arguments)
        else:
            channel.send(call(arguments, keywords))


def _hook(channel: Channel) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook that tells the judge, once, that the program tries what containment refuses. It may be taken out."""
    told = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal told
        if told or channel.descriptor < 0:
            return
        asks = (event == "open" and _writes(arguments)) or (
            event == _SOCKET and arguments[1] != _UNIX
        )
        if asks or event in _REFUSED:
            told = True
            channel.send(frame(wire.REFUSED))

    return hook


def _writes(arguments: tuple[Any, ...]) -> bool:
    """Whether a file is opened to be changed, by the arguments of the event `open`: path, mode, flags."""
    flags = arguments[2] if len(arguments) > 2 else 0
    return (
        isinstance(arguments[0], (str, bytes)) and isinstance(flags, int) and bool(flags & _CHANGES)
    )


class Channel:
    """Whole frames in, whole frames out; ends the process when the judge is gone."""

    def __init__(self) -> None:
        self.descriptor = -1
        self._frames = incoming(lambda size: os.read(self.descriptor, size))

    def receive(self) -> Any:
        for kind, _, payload in self._frames:
            return wire.from_trusted(payload) if kind == wire.MARSHALLED else wire.loads(payload)
        os._exit(0)

    def send(self, data: bytes) -> None:
        sent = os.write(self.descriptor, data)
        while sent < len(data):
            sent += os.write(self.descriptor, data[sent : sent + (1 << 20)])


class Printed(io.RawIOBase):
    """Where prints go: nowhere, counted; too many end the process, which no `except` can stop."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.bytes = 0
        self.limit = 0
        self.kept: list[bytes] | None = None

    def text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(
            io.BufferedWriter(self), encoding="utf-8", errors="backslashreplace"
        )

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def close(self) -> None:
        """Stays open when a stream on top of it is dropped."""

    def write(self, data: Any) -> int:
        self.bytes += len(data)
        if self.bytes > self.limit:
            self.channel.send(frame(wire.PRINTED))
            os._exit(0)
        if self.kept is not None:
            self.kept.append(bytes(data))
        return len(data)


def _report(error: BaseException) -> list[Any]:
    """`[type, nearest built-in type, message, [[line, function], …]]` of an exception."""
    base = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    try:
        message = str(error)[:MESSAGE_LIMIT]
    except BaseException:  # noqa: BLE001 - the text comes from the program's own code
        message = ""
    # lines of the program from the outermost in: at most the first three and the last five
    trace = error.__traceback__
    places = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            places.append([trace.tb_lineno, trace.tb_frame.f_code.co_name])
        trace = trace.tb_next
    return [
        type(error).__name__,
        base.__name__,
        message,
        places if len(places) <= 8 else places[:3] + places[-5:],
    ]


def _timed(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The function, which ends the process when a call takes so much CPU."""

    def timed(*arguments: Any, **keywords: Any) -> Any:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            return function(*arguments, **keywords)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return timed


def _answer(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> bytes:
    try:
        return frame(wire.VALUE, wire.dumps_result(function(*arguments, **keywords)))
    except wire.NotPlainError as error:
        return frame(wire.UNPLAIN, wire.dumps(str(error)[:MESSAGE_LIMIT]))
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is its answer
        return frame(wire.RAISED, wire.dumps(_report(error)))


def _answer_ahead(channel: Channel, call: Call, inputs: Iterable[bytes]) -> None:
    """Answers many calls without waiting for each to be asked.

    The first ones leave at once, so that a hang or a death is seen where it happens.
    """
    gathered = bytearray()
    left = perf_counter()
    for number, arguments in enumerate(inputs):
        gathered += call(wire.from_trusted(arguments), {})
        if number < EAGER or len(gathered) > GATHERED or perf_counter() - left > PATIENCE:
            channel.send(bytes(gathered))
            gathered.clear()
            left = perf_counter()
    if gathered:
        channel.send(bytes(gathered))


def _loaded(channel: Channel, request: Request, printed: Printed) -> Callable[..., Any]:
    """The function to be called. A program that can't be loaded says why, and ends."""
    module = types.ModuleType("__candidate__")
    sys.modules[module.__name__] = module
    cause = "syntax"
    try:
        if request.harness:
            return _loaded_by(request)
        code = compile(request.program, FILE, "exec", dont_inherit=True)
        if not request.entry_point:
            return lambda text="": _script(code, text, printed)
        cause = "exception"
        exec(code, module.__dict__)  # noqa: S102 - to run it is what this process is for
        cause = "no_entry_point"
        function: Callable[..., Any] = module.__dict__[request.entry_point]
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is why it doesn't load
        kind, base, message, places = _report(error)
        if request.harness and not (isinstance(error, SyntaxError) and error.filename == FILE):
            cause = (
                "no_entry_point" if isinstance(error, LookupError) and not places else "exception"
            )
        if isinstance(error, SyntaxError):
            message, places = str(error.msg)[:MESSAGE_LIMIT], [[error.lineno or 0, "<module>"]]
        channel.send(frame(wire.UNLOADED, wire.dumps([cause, kind, base, message, places])))
        os._exit(0)
    return function


def _loaded_by(request: Request) -> Callable[..., Any]:
    """The function by the harness of a suite."""
    harness: dict[str, Any] = {"__name__": "harness"}
    exec(compile(request.harness, "<harness>", "exec", dont_inherit=True), harness)  # noqa: S102 - koderz' own
    function: Callable[..., Any] = harness["load"](request.program, request.entry_point, FILE)
    return function


def run_as_process(channel: Channel, program: str) -> NoReturn:
    """Runs the program as an interpreter does that is started for it, and ends with its exit code.

    Its stdout is the socket to the judge. After an exception this also gets a report of it, for people: the exit code
    has said already that the program failed.
    """
    import threading  # which is there already, see `zygote.preload`

    descriptor, channel.descriptor = channel.descriptor, -1  # no frame gets between what it prints
    os.dup2(descriptor, 1)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name, ends in (("exit", "Ctrl-D (i.e. EOF)"), ("quit", "Ctrl-D (i.e. EOF)")):
        setattr(builtins, name, _sitebuiltins.Quitter(name, ends))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = FILE
    printed, report = sys.stdout, list[Any]()
    try:
        exec(compile(program, FILE, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - as above
        status = 0
    except SystemExit as error:
        code = error.code
        status = code & 0xFF if isinstance(code, int) else int(code is not None)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is how it ended
        status, report = 1, _report(error)
        if isinstance(error, SyntaxError) and error.filename == FILE:
            report[2:] = str(error.msg)[:MESSAGE_LIMIT], [[error.lineno or 0, "<module>"]]
    try:
        vars(threading)["_shutdown"]()
        atexit._run_exitfuncs()
        main.__dict__.clear()  # files that nobody closed are written
        for stream in (sys.stdout, printed):
            stream.flush()
    except BaseException:  # noqa: BLE001 - as an interpreter does
        status = status or _UNFLUSHED
    if report:
        channel.descriptor = descriptor
        channel.send(wire.REPORTED + wire.dumps(report))
    os._exit(status)


def _script(code: CodeType, text: str, printed: Printed) -> str:
    """Run a whole program with `text` on stdin and return what it writes to stdout."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    printed.kept = []
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    sys.stdout = printed.text()
    try:
        exec(code, main.__dict__)  # noqa: S102 - as above
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    sys.stdout.flush()
    return b"".join(printed.kept).decode("utf-8", "replace")


def _run_tests(request: Request) -> str:
    """Program and tests in one process, for tests that reach into what they test. Not proof against forgery."""
    namespace = sys.modules["__candidate__"].__dict__
    exec(compile(request.test, "<test>", "exec", dont_inherit=True), namespace)  # noqa: S102 - trusted
    if "check" in namespace:
        namespace["check"](namespace[request.entry_point])
    else:
        import unittest  # loaded for the few suites that use it: it would make every fork dearer

        loader = unittest.TestLoader()
        for case in [value for value in namespace.values() if isinstance(value, type)]:
            if issubclass(case, unittest.TestCase):
                loader.loadTestsFromTestCase(case).debug()
    return request.token
