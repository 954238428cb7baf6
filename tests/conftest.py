"""What tests of every kind use: the real command in a folder of its own, with nothing of the user's about it."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from koderz.settings.paths import cache_folder
from tests.forks import Fork, Forks, forks

WASM_CACHE = cache_folder() / "wasm"  # the user's own: building the image takes a minute
PATIENCE = 300  # seconds after which something is given up for which a machine that is at leisure takes a moment

hypothesis.settings.register_profile(  # the same examples each time, and no limit of time
    "steady", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")
NOISY = "on a machine that others use, base may be off from itself, which is a fault"
"""Why a test that measures times is run again."""
MEASUREMENT = ("perf", "run", "koderz-mini__revenue", "--mode", "human", "--gso-strict", "--max-blocks", 1)
"""A command that measures and ends well on a busy machine, too, since GSO's points decide after one block."""

_STARTED: list[Fork] = []  # by the test that runs

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has its background processes ignore


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The library of event loops for tests that are coroutine functions: each has a loop of its own."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _own_runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that tests share with other processes lies where the user's processes share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: some tests wait, and each process takes six seconds to load what it needs."""
    del config
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded stays to the end: no collection of garbage looks through it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nothing runs on a Modal account or a GPU, or makes images, unless `-m` asks for `modal`, `gpu` or `docker`.

    What times processes comes first: it goes one at a time on a machine, and would be left at the end. A test of a
    program that others made is run up to twice more if it fails, and no other test is.
    """
    unasked = [mark for mark in ("modal", "docker", "gpu") if mark not in config.option.markexpr]
    left = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: not item.path.name.startswith("test_perf"))
    for item in items:
        if mark := item.get_closest_marker("others"):
            if not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0].strip()):
                raise pytest.UsageError(f"{item.nodeid}: pytest.mark.others needs the reason why the test may fail")
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))
            item.user_properties.append(("others", mark.args[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where `--durations` asks for the slowest tests, what each folder's tests took stands below them."""
    if not config.option.durations:
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = report.nodeid.partition("::")[0].rpartition("/")[0]
                seconds["/".join(folder.split("/")[:4])] += report.duration
    terminalreporter.section("seconds of tests by folder, over all workers")
    for folder, total in sorted(seconds.items(), key=lambda row: -row[1]):
        terminalreporter.write_line(f"{total:8.0f} {folder}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines name each test that failed first and passed when it was run again, and why it may fail."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker, which reports to another process
        return
    again, failed, broken = (
        {
            report.nodeid: dict(report.user_properties).get("others")
            for report in reporter.stats.get(kind, ())
            if isinstance(report, pytest.TestReport)  # and not of a file that can't be collected
        }
        for kind in ("rerun", "failed", "error")
    )
    for test in sorted(again.keys() - failed.keys() - broken.keys()):
        line = f"flaky: {test} failed, and passed when it was run again: {again[test]}"
        reporter.write_line(line, yellow=True, bold=True)


@dataclass(frozen=True)
class Shell:
    """A folder in which `koderz` is run."""

    folder: Path

    def __call__(
        self,
        *arguments: object,
        code: int | Collection[int] = 0,
        env: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> Done:
        """Runs the command and checks its exit code. `fresh`: in an interpreter that has loaded nothing."""
        with Path(os.devnull).open() as nothing, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            streams = (nothing, out, err)
            environ = self.environment(env)
            read_at_start = {name for name in env or () if name.startswith(("PYTHON", "SSL_"))} - {"PYTHONPATH"}
            if fresh or read_at_start:
                command = [sys.executable, "-m", "koderz", *map(str, arguments)]
                ended = subprocess.Popen(
                    command, cwd=self.folder, env=environ, stdin=nothing, stdout=out, stderr=err
                ).wait(PATIENCE)
            else:
                command = ["koderz", *map(str, arguments)]
                ended = self.forks().run(command, self.folder, environ, [one.fileno() for one in streams]).wait()
            out.seek(0)
            err.seek(0)
            done = Done(out.read(), err.read())
        assert ended in ({code} if isinstance(code, int) else code), (
            f"{arguments} ended with {ended}\n{done.out}\n{done.err}"
        )
        return done

    def forks(self) -> Forks:
        """Forks the command."""
        return forks()

    def start(self, *arguments: object, env: Mapping[str, str] | None = None) -> Fork:
        """Begins the command and goes on."""
        started = self.forks().start(["koderz", *map(str, arguments)], self.folder, self.environment(env))
        _STARTED.append(started)
        return started

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """No key, no configuration and no Ollama of the machine's reaches the command."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH", "TMPDIR") if name in os.environ}
        own = {
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "KODERZ_WASM_CACHE": str(WASM_CACHE),
            "OLLAMA_HOST": "127.0.0.1:9",
            "WASM_MANAGER_SERVICE_URL": "",
            "PYTHONWARNINGS": "error",
            "KODERZ_SINKS": "json",  # a test that wants more says so
            "KODERZ_EMBEDDINGS": "none",
        }
        return {**kept, **own, **(more or {})}

    @property
    def results(self) -> Path:
        return self.folder / "benchmark_results"

    def summary(self) -> dict[str, Any]:
        """The only summary there is."""
        (path,) = self.results.glob("*.json")
        return dict(json.loads(path.read_text()))

    def journal(self) -> list[dict[str, Any]]:
        """The lines of the only run there is."""
        (path,) = self.results.glob("[!.]*/journal.jsonl")
        return whole_lines(path)


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that may be written meanwhile: the last one counts once it has ended."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def script_module(name: str) -> ModuleType:
    """A program of scripts/ as a module, which finds `checkout` beside it."""
    folder = Path(__file__).resolve().parents[1] / "scripts"
    loader = SourceFileLoader(name, str(folder / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look there
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        loader.exec_module(module)
    return module


def nothing_judged(koderz: Shell, mode: str) -> None:
    """Makes a run that has faults alone."""
    faults = ("--model", "simulated", "--simulated-fault-rate", 1)
    koderz("benchmark", 0, 1, "--mode", mode, "--quiet", *faults, code=3)


@dataclass(frozen=True)
class Done:
    """What a command printed."""

    out: str
    err: str


def lines_of(results: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of a kind in the journals of a results folder, which may be written meanwhile.

    A folder that begins with a dot is of a run that is being made, and can't be resumed yet.
    """
    journals = results.glob("[!.]*/journal.jsonl")
    return [line for path in journals for line in whole_lines(path) if line["kind"] == kind]


def wait_for(condition: Callable[[], object]) -> None:
    """Returns once it holds: in time, or the test fails. What takes long to find out is asked for less often."""
    deadline = time.monotonic() + PATIENCE
    while (begun := time.monotonic()) < deadline:
        if condition():
            return
        time.sleep(max(0.02, 10 * (time.monotonic() - begun)))
    raise AssertionError(f"it didn't happen within {PATIENCE} seconds")


def kill_after(more: int, counted: Callable[[], Sized], running: Fork) -> tuple[str, str]:
    """Kills a command with its children once there are so many more, unless it is over by then; what it printed."""
    enough = len(counted()) + more
    wait_for(lambda: len(counted()) >= enough or running.poll() is not None)
    running.kill_group()
    return running.communicate()


def descendants(process: int, levels: int = sys.maxsize) -> set[int]:
    """Every process below this one, or those of so many levels."""
    parents = _parents()
    found = {process}
    while levels and (more := {child for child, parent in parents.items() if parent in found} - found):
        found |= more
        levels -= 1
    return found - {process}


def judges(parent: int = 0) -> set[int]:
    """The judges that a process, or this one, has started. A loopback Modal that tests share has some of its own."""
    parents, own = _parents(), parent or os.getpid()
    return {process for process in processes_of(b"sandbox.judge.start") if parents.get(process) == own}


def processes_of(words: bytes) -> set[int]:
    """Every process of this machine with these words, each followed by a NUL, in its command."""
    return {process for process in _processes() if words in _read(process, "cmdline")}


def with_descendants(processes: set[int], levels: int = sys.maxsize) -> set[int]:
    """These processes, and every one below them, or those of so many levels."""
    return processes.union(*(descendants(process, levels) for process in processes))


def are_gone(processes: Collection[int]) -> bool:
    """Whether all have ended, also where a reaper whose children they have become takes its time to notice."""
    return all(map(_is_over, processes))


def _is_over(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _parents() -> dict[int, int]:
    """Every process of this machine with the one that it is a child of."""
    stats = {process: _read(process, "stat").rpartition(b")")[2].split() for process in _processes()}
    return {process: int(fields[1]) for process, fields in stats.items() if fields}


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 # there may be thousands


def _read(process: int, name: str) -> bytes:
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # it ended just now
        return b""


@pytest.fixture(autouse=True)
def _what_was_started_ends() -> Iterator[None]:
    """Commands that a test has begun end with it, whatever becomes of it."""
    yield
    while _STARTED:
        _STARTED.pop().close()


@pytest.fixture(autouse=True)
def _only_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test runs in its own process feeds no other sink, and finds by words alone, unless it says so."""
    monkeypatch.setenv("KODERZ_SINKS", "json")
    monkeypatch.setenv("KODERZ_EMBEDDINGS", "none")


@pytest.fixture(scope="session")
def speed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which this machine's speed is known: measuring it takes as long as a small run does."""
    shell = Shell(tmp_path_factory.mktemp("speed"))
    shell("benchmark", 0, 1, "--model", "simulated", "--quiet")
    known = shell.folder / "known"
    (known / "koderz").mkdir(parents=True)
    for path in shell.folder.glob("cache/koderz/speed-*.json"):
        shutil.copy(path, known / "koderz")
    return known


@pytest.fixture
def koderz(tmp_path: Path, speed: Path) -> Shell:
    shutil.copytree(speed, tmp_path / "cache", dirs_exist_ok=True)
    return Shell(tmp_path)


@dataclass
class Server:
    """A loopback model server in a process of its own, so that it outlives any command that is killed."""

    process: Fork
    url: str
    log: Path

    def answers(self) -> list[dict[str, Any]]:
        """One row for each answer: kind, digest of the conversation, status, model."""
        return whole_lines(self.log)

    def env(self, key: str = "sk-test-4f9a") -> dict[str, str]:
        """What points every provider at it."""
        return {
            "OLLAMA_HOST": self.url,
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": key,
        }


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers: `serve("--faults", "429:0.1")`; they end with the test."""
    with servers(tmp_path) as start:
        yield start


class _Quiet(SimpleHTTPRequestHandler):
    """A handler of requests for files that logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which the files of a folder are served for a time."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def servers(folder: Path) -> Iterator[Callable[..., Server]]:
    """What starts servers that log into `folder` and end together."""
    started: list[Server] = []

    def start(*arguments: object, env: Mapping[str, str] | None = None) -> Server:
        log = folder / f"server-{len(started)}.log"
        log.touch()
        command = ["koderz.testing", "--log", str(log), *map(str, arguments)]
        process = forks().start(command, folder, {**os.environ, **(env or {})})
        assert process.stdout is not None
        server = Server(process, process.stdout.readline().split()[-1], log)
        started.append(server)
        return server

    try:
        yield start
    finally:
        for server in started:
            server.process.close()  # whoever asks may still wait for it
