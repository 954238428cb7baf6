"""A model server on loopback, and the tests that suites, solvers, providers, engines, sandboxes and sinks have to pass.

    async with ModelServer({"has_close_elements": "no idea"}, faults={"429": 0.1}) as server:
        ...  # point a client at server.url, then look at server.requests, .counts, .peak_in_flight

    with routed() as router:  # without a server, by routes of respx
        router.post("https://api.openai.com/v1/chat/completions").respond(json=...)

From a shell: `python -m koderz.testing --latency-ms 200 --faults 429:0.1`.
"""

from koderz.testing.replies import Answering, NoReply, Replies
from koderz.testing.routes import routed
from koderz.testing.server import ModelServer
from koderz.testing.streaming import StreamingServer
from koderz.testing.wire import Request

__all__ = ["Answering", "ModelServer", "NoReply", "Replies", "Request", "StreamingServer", "routed"]
