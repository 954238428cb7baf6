"""The namespace in which the cells of a session run, with the functions they may call; for WASM and native guests.

Nothing here is believed by whoever runs it: a cell may rewrite all of it.
"""

import io
import itertools
import json
import linecache
import sys
import time
import traceback

BRIEF = 1024  # characters of JSON that a variable may take to be shown by its value
SHOWN = 1000  # variables
LINES = 2000  # that leave at once, one by one; later ones are gathered
GATHERED = 8192  # characters
PATIENCE = 0.01  # seconds that gathered text may wait for more
MISSING = "\0missing"
FILE = "<repl>"

_now = time.monotonic  # the real one, whatever cells get to see


class Writer(io.TextIOBase):
    """Sends prints to the host line by line, so that those of a stopped cell are kept."""

    def __init__(self, call, stream):
        self._call, self._stream = call, stream
        self._parts, self._size, self._lines, self._sent = [], 0, 0, _now()
        self._full = False

    def writable(self):
        return True

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not self._full and text:
            self._parts.append(text)
            self._size += len(text)
            if "\n" in text:
                self._lines += 1
                if self._lines <= LINES or self._size >= GATHERED or _now() - self._sent > PATIENCE:
                    self.flush()
            elif self._size >= GATHERED:
                self.flush()
        return len(text)

    def flush(self):
        if self._parts:
            text = "".join(self._parts).encode("utf-8", "backslashreplace").decode()
            self._parts, self._size, self._sent = [], 0, _now()
            self._full = self._call(self._stream, text) == "full"


class Repl:
    """One persistent namespace. `call(name, payload)` reaches the host and returns a text."""

    def __init__(self, call):
        self._call = call
        self._name, self._parts = "", []
        self._out = self._err = None
        self.namespace = {
            "__name__": "__main__",
            "answer": {"content": "", "ready": False},
            "llm_query": lambda prompt, model=None: self._ask("llm_query", [prompt], model)[0],
            "llm_query_batched": lambda prompts, model=None: self._ask("llm_query", prompts, model),
            "rlm_query": lambda prompt, model=None: self._ask("rlm_query", [prompt], model)[0],
            "rlm_query_batched": lambda prompts, model=None: self._ask("rlm_query", prompts, model),
            "SHOW_VARS": lambda: str({name: type(value).__name__ for name, value in self._own()}),
            "FINAL_VAR": self.text_of,
        }
        self._given = frozenset([*self.namespace, "__builtins__"])

    # A variable in parts, since a text of many megabytes is not to be there twice

    def begin(self, name):
        self._name, self._parts = name, []

    def chunk(self, part):
        self._parts.append(part)

    def commit(self, kind):
        parts, self._parts = self._parts, []
        text = parts[0] if len(parts) == 1 else "".join(parts)
        self.namespace[self._name] = json.loads(text) if kind == "json" else text

    def get(self, name):
        """The text of a variable."""
        return self.text_of(name) if name in self.namespace else MISSING

    def text_of(self, name):
        name = str(name).strip().strip("\"'")
        if name not in self.namespace:
            return f"Error: there is no variable {name}; there are {', '.join(name for name, _ in self._own())}"
        return _writable(str(self.namespace[name]))

    def run(self, code):
        """The result of a cell as JSON. Its prints have been sent before."""
        out, err = self._out, self._err = Writer(self._call, "out"), Writer(self._call, "err")
        sys.stdout, sys.stderr = out, err
        linecache.cache[FILE] = (len(code), None, code.splitlines(True), FILE)
        error = None
        try:
            exec(compile(code, FILE, "exec"), self.namespace)
        except BaseException as raised:
            error = _told(raised)
            err.write(_traced(raised))
        out.flush()
        err.flush()
        answer = self.namespace.get("answer")
        done = isinstance(answer, dict) and answer.get("ready") is True
        return json.dumps(
            {
                "error": error,
                "locals": {name: _brief(value) for name, value in self._own()[:SHOWN]},
                "final_answer": _writable(str(answer.get("content"))) if done else None,
            }
        )

    def _own(self):
        """The variables that cells made."""
        return [(k, v) for k, v in self.namespace.items() if k not in self._given and not k.startswith("_")]

    def _ask(self, name, prompts, model):
        if isinstance(prompts, str):
            raise TypeError(f"{name}_batched takes a list of prompts, not one text")
        for stream in (self._out, self._err):
            stream.flush()
        asked = {"prompts": [_writable(str(prompt)) for prompt in prompts], "model": model and str(model)}
        return json.loads(self._call(name, json.dumps(asked))) if asked["prompts"] else []


def _told(raised):
    try:
        return _writable(f"{type(raised).__name__}: {raised}")[:BRIEF]
    except BaseException:
        return type(raised).__name__


def _traced(raised):
    try:
        trace = raised.__traceback__ and raised.__traceback__.tb_next  # without the line that runs the cell
        return "".join(traceback.format_exception(type(raised), raised, trace, limit=-20))
    except BaseException:
        return _told(raised) + "\n"


def _writable(text):
    """The text without halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode()


def _brief(value):
    """The value if it is short as JSON, else its type and size."""
    try:
        if _room(value, BRIEF) >= 0 and len(json.dumps(value, allow_nan=False)) <= BRIEF:
            return value
    except BaseException:
        pass
    try:
        return f"<{type(value).__name__}, {len(value)}>"
    except BaseException:
        return f"<{type(value).__name__}>"


def _room(value, left):
    """The number of characters left of `left` after a value, roughly; reading stops when there are none."""
    if isinstance(value, str):
        return left - len(value) - 2
    if isinstance(value, dict):
        value = itertools.chain.from_iterable(value.items())
    elif not isinstance(value, (list, tuple)):
        return left - 1
    for item in value:
        left = _room(item, left - 1)
        if left < 0:
            break
    return left
