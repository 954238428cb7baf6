"""What the process that feeds the sinks is told, and what it tells: a JSON object a line, each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be projected."""

    folder: str  # of the run
    sinks: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)  # see Source.options
    follow: bool = False  # go on with what is added, until told to finish
    patient: bool = True  # try again where a sink is down
    renew: Sequence[str] = ()  # sinks whose target is to be made anew first, where they can


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a sink is with its job."""

    sink: str
    state: Literal["working", "waiting", "down", "done"]
    reason: str = ""
    records: int = 0  # that the target has
    total: int = 0  # that the journal holds, as far as is known
    over: bool = False  # nothing more will be tried


FINISH = b"finish\n"
_job = msgspec.json.Decoder(Job)
_status = msgspec.json.Decoder(Status)


def encoded(message: Job | Status) -> bytes:
    """As a line."""
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)


def job_of(line: bytes) -> Job:
    """Raises msgspec.DecodeError."""
    return _job.decode(line)


def status_of(line: bytes) -> Status:
    """Raises msgspec.DecodeError."""
    return _status.decode(line)
