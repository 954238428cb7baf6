"""Services of tasks without workloads: a server under load, or a command that reports its own figures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from koderz.errors import KoderzError
from koderz.settings.options import Field, fields_of
from koderz.suites.loads import SandboxedLoad, find_load

PORT = 8000  # of the loopback that a server has to itself

METRICS = {
    "serving": ("mean_ttft_ms", "mean_tpot_ms", "output_throughput"),
    "throughput": ("tokens_per_second",),
    "latency": ("avg_latency",),
}
"""The figures that may decide, by the kind of task; of several, the one with the human's largest gain."""

ABSENT = "a server is put under load by the system serving, which this installation of koderz lacks"
_LOAD = "completions"

_PLACEHOLDER = re.compile(r"\$|<\w+>|^[A-Z][A-Z_]+$|^(MODEL|BS|INPUT_LEN|OUTPUT_LEN)\b")
_SEVERAL = frozenset({"&&", "||", ";", "|", "&", ">"})
_OF_SERVERS = {
    "--tensor-parallel-size": "--tp",
    "-tp": "--tp",
    "--tp": "--tp",
    "--tp-size": "--tp",
    "--dtype": "--dtype",
    "--quantization": "--quantization",
    "--kv-cache-dtype": "--kv-cache-dtype",
    "--trust-remote-code": "--trust-remote-code",
    "--max-model-len": "--max-model-len",
}
"""Options of a load's command that describe the server, with SGLang's names for them."""


@dataclass(frozen=True, slots=True)
class Service:
    """A server started from a tree, with its load; or a command that measures a tree itself."""

    argv: tuple[str, ...]  # has {port}; of a command, which isn't a server, {output}: its JSON
    bench: tuple[str, ...] = ()  # the load, in serve-bench's words
    metric: str = ""  # the figure that decides; empty: one of `METRICS`
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()  # what isn't as it was stated
    refused: str = ""  # why it can't be run

    def load(self) -> Any:
        """The options of the load for the server. Raises KoderzError for invalid words."""
        return read_load(self.bench)

    def words(self, **values: object) -> list[str]:
        """The command with its port, or the file of its figures, filled in."""
        found = [*self.argv]
        for name, value in values.items():
            found = [word.replace(f"{{{name}}}", str(value)) for word in found]
        return found


def can_serve() -> bool:
    """Whether this installation can put a server under load."""
    return find_load(_LOAD) is not None


def server_load() -> SandboxedLoad:
    """The load for servers. Raises KoderzError if this installation has none."""
    if (load := find_load(_LOAD)) is None:
        raise KoderzError(ABSENT)
    return load


def read_load(words: Sequence[str]) -> Any:
    """The options of the load described by serve-bench's flags. Raises KoderzError for others."""
    options = server_load().options
    known = _known_flags(options)
    given: dict[str, Any] = {}
    for flag, values in _options(words):
        if flag not in known:
            raise KoderzError(f"a load has no {flag}; it has serve-bench's: koderz perf serve-bench --help")
        field = known[flag]
        value = " ".join(values) if values or field.plain_type is not bool else "true"
        given[field.name] = field.read(value, flag, lax=True)
    return options(**given)


def _known_flags(options: type) -> dict[str, Field]:
    return {flag: field for field in fields_of(options).values() for flag in _flags(field)}


def _flags(field: Field) -> tuple[str, ...]:
    return field.about.flags or (field.flag,)


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words up to the next one."""
    for place, word in enumerate(words):
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            yield flag, [value] if equals else [*takewhile(lambda word: not word.startswith("-"), words[place + 1 :])]


def service_of(command: str, model: str = "") -> Service:
    """The service of ISO-Bench's `perf_command`. One that can't be run has the reason in `refused`."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return Service((), refused=f"its command can't be read: {error}")
    count = sum(1 for _ in takewhile(lambda word: re.match(r"[A-Za-z_]\w*=", word), words))
    environment = tuple((name, value) for name, _, value in (word.partition("=") for word in words[:count]))
    words = words[count:]
    why = _refused(words)
    if why:
        return Service(tuple(words), environment=environment, refused=why)
    if any(kind in command for kind in ("throughput", "latency")):
        argv = words if "--output-json" in words else [*words, "--output-json", "{output}"]
        return Service(tuple(argv), environment=environment)
    flags = {flag: values for flag, values in _options(words) if flag != "-m"}
    model = " ".join(flags.get("--model", ())) or model
    if not can_serve():
        return Service(tuple(words), environment=environment, refused=ABSENT)
    if not model:
        return Service(tuple(words), environment=environment, refused="its command names no model")
    bench, notes = _bench(flags)
    return Service(
        (*_server(command, model), *_of_server(flags, sglang="sglang" in command)),
        tuple(bench),
        environment=environment,
        notes=tuple(notes),
    )


def _refused(words: Sequence[str]) -> str:
    if not words:
        return "its command is empty"
    if several := next((word for word in words if word in _SEVERAL or word.endswith(";")), ""):
        return f"its command is more than one ({several})"
    if placeholder := next((word for word in words if _PLACEHOLDER.search(word)), ""):
        return f"its command has a placeholder: {placeholder}"
    if foreign := next((word for word in words if re.search(r"(^|=)(/|~|\.\./)", word)), ""):
        return f"its command names a path of another machine: {foreign}"
    return ""


def _server(command: str, model: str) -> tuple[str, ...]:
    if "sglang" in command:
        return ("python3", "-m", "sglang.launch_server", "--model-path", model, "--port", "{port}")
    return ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", "{port}")


def _of_server(flags: dict[str, list[str]], *, sglang: bool) -> Iterator[str]:
    for flag, theirs in _OF_SERVERS.items():
        if flag in flags:
            of_vllm = "--tensor-parallel-size" if theirs == "--tp" else flag
            yield theirs if sglang else of_vllm
            yield from flags[flag]


def _bench(flags: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """The words of the load, and notes on changes: datasets that aren't here become random words."""
    here = {*_known_flags(server_load().options)}
    here -= {"--dataset-name", "--dataset-path", "--tokenizer", "--backend", "--endpoint", "--label"}
    bench = [word for flag, values in flags.items() if flag in here for word in (flag, *values)]
    notes = []
    dataset = " ".join(flags.get("--dataset-name", ("random",)))
    if dataset != "random":
        notes.append(f"--dataset-name {dataset} → random")
    for theirs, ours in (("--input-len", "--random-input-len"), ("--output-len", "--random-output-len")):
        if theirs in flags and ours not in flags:
            bench += [ours, *flags[theirs]]
    if " ".join(flags.get("--backend", ())) == "openai-chat":
        bench += ["--backend", "openai-chat"]
    known = here | {*_OF_SERVERS, "--dataset-name", "--dataset-path", "--tokenizer", "--backend", "--endpoint"}
    known |= {"--label", "--model", "--host", "--port", "--base-url", "--save-result", "--input-len", "--output-len"}
    notes += [f"{flag} isn't applied" for flag in flags if flag not in known]
    return bench, notes
