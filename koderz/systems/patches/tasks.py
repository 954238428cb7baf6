"""A task: a repository at a commit, a human's answer, and the work that is timed."""

from __future__ import annotations

import hashlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import msgspec

from koderz.errors import KoderzError
from koderz.settings.options import Field, fields_of
from koderz.suites import task_digest
from koderz.suites.dataset import require_keys
from koderz.suites.loads import SandboxedLoad, find_load
from koderz.systems.workspaces.git import inner_path

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
            raise KoderzError(
                f"a load has no {flag}; it has serve-bench's: koderz perf serve-bench --help"
            )
        field = known[flag]
        value = " ".join(values) if values or field.plain_type is not bool else "true"
        given[field.name] = field.read(value, flag, lax=True)
    return options(**given)


def _known_flags(options: type) -> dict[str, Field]:
    return {
        flag: field
        for field in fields_of(options).values()
        for flag in field.about.flags or (field.flag,)
    }


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words up to the next one."""
    for place, word in enumerate(words):
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            yield (
                flag,
                [value]
                if equals
                else [*takewhile(lambda word: not word.startswith("-"), words[place + 1 :])],
            )


def service_of(command: str, model: str = "") -> Service:
    """The service of ISO-Bench's `perf_command`. One that can't be run has the reason in `refused`."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return Service((), refused=f"its command can't be read: {error}")
    count = sum(1 for _ in takewhile(lambda word: re.match(r"[A-Za-z_]\w*=", word), words))
    environment = tuple(
        (name, value) for name, _, value in (word.partition("=") for word in words[:count])
    )
    words = words[count:]
    if not words:
        why = "its command is empty"
    elif several := next((word for word in words if word in _SEVERAL or word.endswith(";")), ""):
        why = f"its command is more than one ({several})"
    elif placeholder := next((word for word in words if _PLACEHOLDER.search(word)), ""):
        why = f"its command has a placeholder: {placeholder}"
    elif foreign := next((word for word in words if re.search(r"(^|=)(/|~|\.\./)", word)), ""):
        why = f"its command names a path of another machine: {foreign}"
    else:
        why = ""
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


def _server(command: str, model: str) -> tuple[str, ...]:
    if "sglang" in command:
        return ("python3", "-m", "sglang.launch_server", "--model-path", model, "--port", "{port}")
    return (
        "python3",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        "--port",
        "{port}",
    )


def _of_server(flags: dict[str, list[str]], *, sglang: bool) -> Iterator[str]:
    for flag, theirs in _OF_SERVERS.items():
        if flag in flags:
            of_vllm = "--tensor-parallel-size" if theirs == "--tp" else flag
            yield theirs if sglang else of_vllm
            yield from flags[flag]


def _bench(flags: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """The words of the load, and notes on changes: datasets that aren't here become random words."""
    here = {*_known_flags(server_load().options)}
    here -= {
        "--dataset-name",
        "--dataset-path",
        "--tokenizer",
        "--backend",
        "--endpoint",
        "--label",
    }
    bench = [word for flag, values in flags.items() if flag in here for word in (flag, *values)]
    notes = []
    dataset = " ".join(flags.get("--dataset-name", ("random",)))
    if dataset != "random":
        notes.append(f"--dataset-name {dataset} → random")
    for theirs, ours in (
        ("--input-len", "--random-input-len"),
        ("--output-len", "--random-output-len"),
    ):
        if theirs in flags and ours not in flags:
            bench += [ours, *flags[theirs]]
    if " ".join(flags.get("--backend", ())) == "openai-chat":
        bench += ["--backend", "openai-chat"]
    known = here | {
        *_OF_SERVERS,
        "--dataset-name",
        "--dataset-path",
        "--tokenizer",
        "--backend",
        "--endpoint",
    }
    known |= {
        "--label",
        "--model",
        "--host",
        "--port",
        "--base-url",
        "--save-result",
        "--input-len",
        "--output-len",
    }
    notes += [f"{flag} isn't applied" for flag in flags if flag not in known]
    return bench, notes


GITHUB = "https://github.com/"  # which rows leave out
KINDS = ("workload", "serving", "throughput", "latency")

PROMPT = (
    "Make this repository's code faster without changing what it returns. What is timed isn't shown; "
    "the repository's tests have to pass."
)


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources that measuring a task needs."""

    cores: int = 1
    minutes: float = 5.0  # that it may take, for estimates
    processes: bool = False  # whether what is timed may start processes; their CPU counts
    memory_mb: int = 4096  # the most that what is timed may take


@dataclass(frozen=True, slots=True)
class Canned:
    """A patch that comes with a task, and its kind."""

    kind: str
    diff: str


@dataclass(frozen=True, slots=True)
class Conventions:
    """The conventions of the file that a task is read from."""

    # the workloads are a benchmark's own test scripts, made for an image of its own
    published: bool = False
    # a script's check takes the result to be checked before the expected one
    checked_first: bool = False
    slow_start: bool = False  # a server loads a whole model before it is ready
    clustered: bool = False  # tasks of one repository resemble each other


CONVENTIONS = {
    "own": Conventions(),
    "gso": Conventions(published=True, clustered=True),
    "iso": Conventions(published=True, checked_first=True, slow_start=True),
}
"""Conventions by the format that a task's record names."""


@dataclass(frozen=True, slots=True)
class PerfTask:
    """One commit: the code before it, the human's change, and the workloads by which both are timed."""

    id: str
    base_commit: str
    human_commit: str = ""  # where it is known
    human_patch: str = ""  # a diff against base; empty: what human_commit has
    repo: str = ""  # a path, bundle or URL; empty where `files` are all there is
    files: Mapping[str, str] = field(default_factory=dict)  # of a generated repository, by path
    # pinned requirements of base and of the human's answer, where it is these
    wheels: tuple[tuple[str, ...], ...] = ()
    path: str = "."  # what goes first on the import path
    workloads: Mapping[str, str] = field(default_factory=dict)  # sources by name
    tests: tuple[str, ...] = ()  # files that pytest runs, as they are in base
    install: tuple[str, ...] = ()  # commands
    prompt: str = PROMPT
    needs: Needs = Needs()
    canned: tuple[Canned, ...] = ()
    service: Service | None = None  # instead of workloads
    kind: str = "workload"  # one of `KINDS`
    format: str = "own"  # a key of `CONVENTIONS`
    # that it shares with others, as its row says; empty: that of its format's conventions
    cluster: str = ""

    @property
    def conventions(self) -> Conventions:
        """The conventions of the task's format."""
        return CONVENTIONS[self.format]

    @property
    def digest(self) -> str:
        """A digest of everything that a verdict may depend on."""
        fields = msgspec.to_builtins(self)
        del fields["cluster"]  # on which no verdict depends
        told = msgspec.json.encode(fields, order="deterministic").decode()
        return task_digest("performance", told)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The figures that may decide; empty if time does."""
        if self.service is None:
            return ()
        return (self.service.metric,) if self.service.metric else METRICS[self.kind]

    @property
    def exported(self) -> tuple[str, ...]:
        """The commits whose trees are taken from `repo`."""
        if not self.repo:
            return ()
        # published rows name the commit that counts
        is_patched = self.human_patch and not self.conventions.published
        return (self.base_commit,) if is_patched else (self.base_commit, self.human_commit)

    @property
    def commits(self) -> tuple[str, ...]:
        """The names by which the task can be chosen: its human commit, and its id."""
        return tuple(filter(None, (self.human_commit, self.id)))


@dataclass(frozen=True, slots=True)
class _Row:
    """A task as written in tasks.toml."""

    repo: str
    base_commit: str = ""
    human_commit: str = ""
    human_patch: str = ""
    id: str = ""
    path: str = "."
    workloads: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    prompt: str = PROMPT
    needs: Needs = Needs()
    serve: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    kind: Literal["", "throughput", "latency"] = ""
    bench: str = ""
    metric: str = ""
    cluster: str = ""


def read_tasks(path: Path) -> tuple[PerfTask, ...]:
    """The tasks of a tasks.toml, whose files lie beside it. Raises KoderzError, which says what is wrong."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KoderzError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise KoderzError(f"{path}: {error}") from None
    require_keys(table, ("tasks",), str(path))
    rows = table.get("tasks")
    if not isinstance(rows, list) or not rows:
        raise KoderzError(f"{path} has no [[tasks]]")
    return unique(
        path, [_task(path, f"[[tasks]] number {number}", row) for number, row in enumerate(rows, 1)]
    )


def unique(path: Path, tasks: Sequence[PerfTask]) -> tuple[PerfTask, ...]:
    """The tasks. Raises KoderzError if two have the same id."""
    ids = [task.id for task in tasks]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise KoderzError(f"{path}: two tasks have the id {twice[0]}")
    return tuple(tasks)


def _task(path: Path, where: str, table: Any) -> PerfTask:
    if isinstance(table, dict):
        require_keys(table, _Row.__slots__, f"{path}: {where}")
        needs = table.get("needs")
        require_keys(
            needs if isinstance(needs, dict) else {}, Needs.__slots__, f"{path}: {where}: needs"
        )
    try:
        row = msgspec.convert(table, _Row)
    except msgspec.ValidationError as error:
        raise KoderzError(f"{path}: {where}: {error}") from None
    if not row.base_commit or not (row.human_commit or row.human_patch):
        raise KoderzError(f"{path}: {where}: give base_commit, and human_commit or human_patch")
    service = _service(path, where, row)
    if bool(row.workloads) == bool(service):
        raise KoderzError(f"{path}: {where}: give workloads, or serve, or command and kind")
    for inner in (*row.tests, *([row.path] if row.path != "." else [])):
        inner_path(inner)
    human = _beside(path, row.human_patch) if row.human_patch else ""
    repo = row.repo if "://" in row.repo else str(path.parent.absolute() / row.repo)
    return PerfTask(
        id=row.id
        or f"{Path(repo).stem}-{(row.human_commit or hashlib.sha256(human.encode()).hexdigest())[:7]}",
        base_commit=row.base_commit,
        human_commit=row.human_commit,
        human_patch=human,
        repo=repo,
        path=row.path,
        workloads={
            Path(name).stem: workload(path.parent / name, _beside(path, name))
            for name in row.workloads
        },
        tests=row.tests,
        install=row.install,
        prompt=row.prompt,
        needs=row.needs,
        service=service,
        kind=row.kind or ("serving" if service else "workload"),
        cluster=row.cluster,
    )


def _service(path: Path, where: str, row: _Row) -> Service | None:
    """The server or command that a row names instead of workloads."""
    if bool(row.command) != bool(row.kind) or (row.command and row.serve):
        raise KoderzError(
            f"{path}: {where}: kind, throughput or latency, goes with command; serve with neither"
        )
    place = "{port}" if row.serve else "{output}"
    if (argv := row.serve or row.command) and not any(place in word for word in argv):
        raise KoderzError(f"{path}: {where}: {' '.join(argv)} has no {place}")
    if row.bench and not row.serve:
        raise KoderzError(f"{path}: {where}: bench goes with serve")
    if not row.serve:
        return Service(argv, (), row.metric) if argv else None
    if not can_serve():
        return Service(argv, (), row.metric, refused=ABSENT)
    if row.metric and row.metric not in {measure.name for measure in server_load().measures}:
        raise KoderzError(
            f"{path}: {where}: a load has no metric {row.metric!r}; write one such as mean_ttft_ms"
        )
    try:
        words = shlex.split(row.bench)
        load = read_load(words)
    except (KoderzError, ValueError) as error:
        raise KoderzError(f"{path}: {where}: bench: {error}") from None
    # The path of its dataset is the one seen from here.
    dataset = str(load.dataset_path)
    words = [str(path.parent.absolute() / word) if word == dataset else word for word in words]
    return Service(argv, tuple(words), row.metric)


def workload(name: object, source: str) -> str:
    """The source of a workload. Raises KoderzError if it isn't Python, or lacks `inputs` or `call`."""
    import ast

    try:
        found = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError) as error:
        raise KoderzError(f"{name} is no Python: {error}") from None
    for wanted, shown in (("inputs", "inputs(rng, i)"), ("call", "call(x)")):
        if wanted not in found:
            raise KoderzError(f"{name}: a workload defines {shown}")
    return source


def _beside(path: Path, name: str) -> str:
    place = path.parent / name
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise KoderzError(f"{path}: {place} can't be read: {error}") from None


def chosen(tasks: Sequence[PerfTask], commits: Sequence[str]) -> list[str]:
    """The ids of the tasks named by id, or by 7 or more digits of the human commit.

    Raises KoderzError for one that is unknown or ambiguous.
    """
    return list(dict.fromkeys(_named(tasks, name) for name in commits))


def _named(tasks: Sequence[PerfTask], name: str) -> str:
    if any(task.id == name for task in tasks):
        return name
    found = [
        task.id for task in tasks if len(name) >= 7 and task.human_commit.startswith(name.lower())
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise KoderzError(
            f"the commit {name} is that of {len(found)} tasks: {', '.join(found[:5])}; name one of these"
        )
    raise KoderzError(
        f"there is no task or human commit {name!r}; write an id such as {tasks[0].id}, or at least 7 digits of a "
        "commit: koderz perf tasks lists them"
    )


def read_commits(path: Path) -> list[str]:
    """The first word of each line; `#` begins a comment. Raises KoderzError if there is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise KoderzError(f"--commits-file {path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise KoderzError(f"--commits-file {path} can't be read: {error}") from None
    found = [words[0] for line in lines if (words := line.partition("#")[0].split())]
    if not found:
        raise KoderzError(f"--commits-file {path} names no commit; write one a line")
    return found
