"""Loads: requests sent to a server that a suite starts itself, and the figures of its answers.

A load comes with a system, as one of its `loads`; a suite finds it by name, so that no system imports another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Running
from koderz.settings.systems import added
from koderz.types import Measure


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The figures of a load, and the answers by which two servers are compared."""

    figures: Mapping[str, float]
    checks: Sequence[str]  # whole answers to a few short requests, sent before the load
    answers: Sequence[str]  # answers under load


class SandboxedLoad(ABC):
    """A load on a server that runs in a sandbox."""

    options: ClassVar[type]
    """A dataclass of options, whose flags describe one load."""

    measures: ClassVar[Sequence[Measure]]
    """The figures that it yields."""

    @abstractmethod
    async def find_model(self, running: Running, port: int, options: Any, seconds: float) -> str:
        """The name of the model that the server lists. `seconds`: limit of one request.

        Raises OSError or ValueError while the server doesn't answer; an empty name: it lists none.
        """

    @abstractmethod
    async def send(
        self, running: Running, port: int, model: str, options: Any, *, seed: int, seconds: float
    ) -> LoadResult:
        """Sends the checks and the load. Raises LoadError if a request fails, OSError or ValueError if none is sent."""


class LoadError(Exception):
    """A server answered a request with an error."""


def find_load(name: str) -> SandboxedLoad | None:
    """The load that a system adds under a name; None if this installation has none. Raises KoderzError if broken."""
    load = added("loads", name)
    if load is None:
        return None
    if not (isinstance(load, type) and issubclass(load, SandboxedLoad)):
        raise KoderzError(f"load {name!r}: {load!r} is no subclass of koderz.suites.loads.Load")
    return load()
