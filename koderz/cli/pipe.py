"""Output that goes into a pipe, whose reader may stop early."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def while_read() -> Iterator[None]:
    """Lets whoever reads the output go before its end, as `head` does: what would still come is dropped, and said
    to nobody, so that a command ends with the exit code that it has anyway.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if _has_reader():
            raise  # then it was another pipe
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _has_reader() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not poll.poll(0)
