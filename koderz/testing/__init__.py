"""A model server, factories of runs, and the tests that suites, solvers, providers, engines, sandboxes and sinks pass.

    async with ModelServer({"has_close_elements": "no idea"}, faults={"429": 0.1}) as server:
        ...  # point a client at server.url, then look at server.requests, .counts, .peak_in_flight

    with routed() as router:  # without a server, by routes of respx
        router.post("https://api.openai.com/v1/chat/completions").respond(json=...)

    folder = a_run(tmp_path, [True, False, "unreachable"])  # the files of a run with two results and a fault

From a shell: `python -m koderz.testing --latency-ms 200 --faults 429:0.1`.

Each name is imported from its own module when it is first used: who makes a run's files loads no server.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from koderz.testing.factories import FakeModel, a_journal, a_model, a_plan, a_run
    from koderz.testing.routes import routed
    from koderz.testing.server import ModelServer
    from koderz.testing.service import Answering, NoReply, Replies
    from koderz.testing.streaming import StreamingServer
    from koderz.testing.wire import Request

_HOMES = {
    "factories": ("FakeModel", "a_journal", "a_model", "a_plan", "a_run"),
    "routes": ("routed",),
    "server": ("ModelServer",),
    "service": ("Answering", "NoReply", "Replies"),
    "streaming": ("StreamingServer",),
    "wire": ("Request",),
}

__all__ = [
    "Answering",
    "FakeModel",
    "ModelServer",
    "NoReply",
    "Replies",
    "Request",
    "StreamingServer",
    "a_journal",
    "a_model",
    "a_plan",
    "a_run",
    "routed",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    import importlib

    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"koderz.testing.{home}"), name)
    raise AttributeError(f"module 'koderz.testing' has no attribute {name!r}")
