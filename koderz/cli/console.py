"""Output of commands: results on standard output, progress and warnings on standard error."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from koderz.errors import StorageError
from koderz.streams import plain, steers

LINE_EVERY = 5.0  # seconds between two lines of progress where there is no terminal


def say(text: str = "", *, after: str = "") -> None:
    """Prints a line of results; `after` is a text from `link` to put at its end."""
    with while_read():
        sys.stdout.write(f"{plain(text)}{after and ' '}{after}\n")


def say_all(lines: Iterable[str]) -> None:
    """Prints lines of results at once."""
    with while_read():
        sys.stdout.writelines(f"{plain(line)}\n" for line in lines)


def data_output() -> IO[bytes]:
    """Standard output for data. On a terminal, characters that could steer it are escaped as in JSON."""
    return cast("IO[bytes]", _TerminalData()) if sys.stdout.isatty() else sys.stdout.buffer


class _TerminalData(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = bytes(data).decode("utf-8", "backslashreplace")
        sys.stdout.write("".join(_escaped(char) if steers(char) else char for char in text))
        return len(data)


def _escaped(char: str) -> str:
    """The character as a JSON escape: `\u009b`, or two of these beyond the first 65,536."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


@contextmanager
def while_read() -> Iterator[None]:
    """Lets whoever reads the output go before its end, as `head` does: what would still come is dropped, and said
    to nobody, so that a command ends with the exit code that it has anyway.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not poll.poll(0):  # standard output has a reader, so it was another pipe
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def print_json(document: Any) -> None:
    """Prints JSON, indented, on standard output."""
    with while_read():
        data_output().write(_as_json(document))


def save_json(path: Path, document: Any) -> None:
    """Writes JSON as `print_json` prints it. Raises StorageError if that fails."""
    from koderz_tracker.files import write_whole

    with writing(path):
        write_whole(path, [_as_json(document)])


def _as_json(document: Any) -> bytes:
    import orjson

    from koderz_tracker.records import as_dict

    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(document, default=as_dict, option=option)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The display of a session: with `quiet` only errors, with `json` nothing else on standard output."""

    json: bool = False
    quiet: bool = False
    wait: bool = False
    # the command that shows a run which goes on without this machine
    check: str = "benchmark watch"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises StorageError if writing the file or folder in the block fails."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} can't be written ({error.strerror})") from None


def link(text: str, address: str) -> str:
    """A clickable link in a terminal; elsewhere the address itself."""
    address = plain(address)
    if not address or not (sys.stdout.isatty() and is_live()):
        return address
    return f"\x1b]8;;{address}\x1b\\{text}\x1b]8;;\x1b\\"


def warn(text: str) -> None:
    """Prints a line on standard error."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def is_live() -> bool:
    """Whether animation and colour are allowed on standard error."""
    return (
        sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def shortened(text: str, width: int) -> str:
    """The text cut to at most so many characters, ending in an ellipsis if cut."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def sink_title(name: str) -> str:
    """The name of a sink in messages."""
    return {"mlflow": "MLflow", "memory": "the memory store"}.get(name, name)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 run`, `2 runs`."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def elapsed(seconds: float) -> str:
    """A duration as `1:02:03`, or `2:03` below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
