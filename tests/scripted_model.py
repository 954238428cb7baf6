"""A model server for tests of agents, on three wires: it has commands run by any tool it is offered, then ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMAND = "sed 's/.*/Hello, &!/' names.txt > greeting.txt"
_LAST = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # how mini-swe-agent is told
_PARAMETERS = {"exec_command": "cmd", "shell": "command", "Bash": "command", "bash": "command"}
_RESULTS = ('"function_call_output"', '"tool_result"', '"role": "tool"')


class ScriptedModel:
    """What is asked of it, and how it answers: `status` other than 200 is an error, `last` those of its last reply."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.last: dict[str, Any] = {}  # of the last reply: `status`, `message` of the error, `finish_reason` of a chat
        self.commands = [COMMAND]
        self.text = "Done."  # of its last reply
        self.tools: list[tuple[str, dict[str, Any]]] = []  # of an MCP server, with arguments, in place of commands
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[str] = []  # of each request

    def env(self) -> dict[str, str]:
        """The variables by which koderz finds it."""
        keys = {"OPENAI_API_KEY": "sk-openai-0123456789", "ANTHROPIC_API_KEY": "sk-ant-0123456789"}
        return {"OPENAI_BASE_URL": f"{self.url}/v1", "ANTHROPIC_BASE_URL": self.url, **keys}

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body))
        if self.tools:
            return self._of_server(path, body)
        name = next((name for name in map(_name, body.get("tools") or ()) if name in _PARAMETERS), "")
        said = json.dumps(body.get("input") or body.get("messages"))
        told = sum(map(said.count, _RESULTS))
        commands = [*self.commands, *([_LAST] if name == "bash" else [])]
        if not name or told >= len(commands):
            answer = _WIRES[path](self.text, None)
            if "finish_reason" in self.last:
                answer["choices"][0]["finish_reason"] = self.last["finish_reason"]
            return {**answer, "koderz-last": True}
        given = {_PARAMETERS[name]: commands[told], **({"description": "edit"} if name == "Bash" else {})}
        return _WIRES[path]("", (f"call_{told}", name, given))

    def _of_server(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The next call of an MCP server's tool, by the name under which the agent offers it."""
        told = sum(map(json.dumps(body.get("input") or body.get("messages")).count, _RESULTS))
        if told >= len(self.tools):
            return _WIRES[path](self.text, None)
        wanted, given = self.tools[told]
        offered = [(each, inner) for each in body["tools"] for inner in each.get("tools") or [each]]
        ((outer, tool),) = [pair for pair in offered if _name(pair[1]).rpartition("__")[2] == wanted]
        answer = _WIRES[path]("", (f"call_{told}", _name(tool), given))
        if outer is not tool:
            answer["output"][0]["namespace"] = outer["name"]
        return answer


@contextmanager
def scripted_model() -> Iterator[ScriptedModel]:
    """The server on loopback, for as long as the context lasts."""
    model = ScriptedModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "m"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model.headers.append(str(self.headers))
            answer = model.answer(self.path.partition("?")[0], body)
            own = model.last if answer.pop("koderz-last", False) else {}
            status = own.get("status", model.status)
            if not status:
                self.connection.shutdown(2)
                return
            if status == 200 and body.get("stream") and self.path == "/v1/responses":
                self._send(200, _events(answer), "text/event-stream")
                return
            self._send(status, answer if status == 200 else {"error": {"message": own.get("message", "as told")}})

        def _send(self, status: int, body: Mapping[str, Any] | str, kind: str = "application/json") -> None:
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("name") or (tool.get("function") or {}).get("name"))


def _chat(text: str, call: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if call:
        function = {"name": call[1], "arguments": json.dumps(call[2])}
        message["tool_calls"] = [{"id": call[0], "type": "function", "function": function}]
    finish = "tool_calls" if call else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def _responses(text: str, call: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item: dict[str, Any] = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    if call:
        arguments = json.dumps(call[2])
        item = {"type": "function_call", "id": "fc_1", "call_id": call[0], "name": call[1], "arguments": arguments}
    usage = {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1050,
    }
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [item], "usage": usage}


def _events(answer: dict[str, Any]) -> str:
    """The answer of /v1/responses as a stream."""
    events = [
        {"type": "response.created", "response": {**answer, "output": [], "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": answer["output"][0]},
        {"type": "response.completed", "response": answer},
    ]
    return "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)


def _messages(text: str, call: Any) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": text}
    if call:
        block = {"type": "tool_use", "id": f"toolu_{call[0]}", "name": call[1], "input": call[2]}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [block],
        "stop_reason": "tool_use" if call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1000, "output_tokens": 50},
    }


_WIRES = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}
