"""The plugin for tests: a mark `koderz`, whose items are tasks of a benchmark or ask a model themselves.

@pytest.mark.koderz(suite="qa", dataset="faq.jsonl", model="openai/gpt-6-luna", samples=3, threshold=0.67)
def test_faq(koderz_result):
    assert koderz_result.cost < 0.01

It is loaded by every pytest of an environment with koderz in it, so all of koderz is imported only where a mark is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from koderz.analysis.runs import Run
    from koderz.types import Task, Verdict
    from koderz_tracker.results import Result

MARK, RESULT, ASK = "koderz", "koderz_result", "koderz_ask"
_OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "help": "Ask this model, whatever the marks say."},
    "reuse": {
        "action": "store_true",
        "help": "Take replies that are on record already, as koderz benchmark --reuse.",
    },
    "max-cost": {
        "metavar": "USD",
        "type": float,
        "help": "Stop asking at this cost of the whole session.",
    },
    "off": {"action": "store_true", "help": "Skip what asks a model."},
}


class NotJudged(Exception):
    """An item could not be judged, which is an error and no failure."""


@dataclass(frozen=True)
class TaskResult:
    """The results of one task: those of its samples, and the faults of samples that could not be judged."""

    task: str
    run_id: str
    results: Sequence[Result]
    faults: Sequence[Mapping[str, Any]] = field(repr=False, default=())

    @property
    def passed(self) -> int:
        """The number of samples that passed."""
        return sum(result.success for result in self.results)

    @property
    def samples(self) -> int:
        """The number of its samples, those that could not be judged among them."""
        return len(self.results) + len(self.faults)

    @property
    def cost(self) -> float:
        """US dollars, for all samples."""
        return sum(result.cost for result in self.results)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("koderz", "koderz, which asks language models")
    for name, about in _OPTIONS.items():
        group.addoption(f"--koderz-{name}", **about)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "koderz(threshold=1.0, **settings): tasks of a benchmark, with the keyword arguments of koderz.benchmark; "
        f"the function takes {RESULT}, or is async and takes {ASK}",
    )
    config.stash[_SESSION] = SessionRuns(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    if session := config.stash.get(_SESSION, None):
        session.close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker of pytest-xdist where all of them note their runs."""
    node.workerinput["koderz_folder"] = str(node.config.stash[_SESSION].folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes an item a task of a mark."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    marked = metafunc.config.stash[_SESSION].marked(mark, metafunc.definition.path)
    if RESULT not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("koderz_off"):
        metafunc.parametrize(RESULT, [None], indirect=True, ids=["off"])
        return
    metafunc.parametrize(
        RESULT, [(marked, task) for task in marked.tasks], indirect=True, ids=marked.tasks
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker(MARK)
    if mark and item.config.getoption("koderz_off"):
        pytest.skip("--koderz-off")
    names = getattr(item, "fixturenames", ())
    if mark and not (RESULT in names or ASK in names):
        pytest.fail(f"a test with the mark koderz takes {RESULT} or {ASK}", pytrace=False)


@pytest.fixture
def koderz_result(request: pytest.FixtureRequest) -> TaskResult:
    """The results of the item's task. An error if it could not be judged."""
    if not hasattr(request, "param"):
        pytest.fail(f"{RESULT} is for tests with the mark koderz", pytrace=False)
    marked, task = request.param
    session = request.config.stash[_SESSION]
    try:
        run = session.run_of(marked, request.session.items)
        found = _judged(run, task, marked.threshold)
    except NotJudged as error:
        pytest.fail(str(error), pytrace=False)
    request.node.user_properties += [("koderz_run", found.run_id), ("koderz_cost", found.cost)]
    return found


@pytest.fixture
def koderz_ask() -> Callable[..., Any]:
    """Asks a model as a solver's `ask` does. The plugin puts that in its place once the test is called."""

    async def ask(*_: Any, **__: Any) -> Any:
        pytest.fail(f"{ASK} is for async tests with the mark koderz", pytrace=False)

    return ask


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Calls a test with the mark: as a solver where it asks, else below the verdict on its task."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    arguments = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }
    session = pyfuncitem.config.stash[_SESSION]
    if ASK in arguments:
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            pytest.fail(f"a test that takes {ASK} is written with async def", pytrace=False)
        session.ask(session.marked(mark, pyfuncitem.path), pyfuncitem, arguments)
        return True
    found, (marked, _) = (
        pyfuncitem.funcargs[RESULT],
        cast("tuple[Marked, str]", pyfuncitem.callspec.params[RESULT]),
    )
    assert isinstance(found, TaskResult)
    _require(found, session.run_of(marked, ()), marked.threshold)
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        _go(pyfuncitem.obj(**arguments))
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[Any],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports what could not be judged as an error, as pytest does what fails before a test is called."""
    report = yield
    if call.excinfo and call.excinfo.errisinstance(NotJudged):
        report.when = "setup"
        report.longrepr = str(call.excinfo.value)
    return report


@dataclass(frozen=True, eq=False)
class Marked:
    """A mark: the settings of its run, and the share of its samples that a task has to pass."""

    settings: Mapping[str, Any]
    threshold: float
    key: str  # the same for equal marks, in every process

    @functools.cached_property
    def tasks(self) -> Sequence[str]:
        """The tasks of the run, in its order. Raises CollectError where it can't be planned."""
        import koderz

        try:
            forecast = _go(koderz.plan(**self.settings))
        except koderz.KoderzError as error:
            raise pytest.Collector.CollectError(f"koderz: {error}") from None
        return [task.id for task in forecast.plan.tasks]


class SessionRuns:
    """The runs of a pytest session, which all processes of pytest-xdist share."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._runs: dict[str, Run] = {}
        self._marks: dict[str, Marked] = {}
        given = getattr(config, "workerinput", {}).get("koderz_folder")
        self._is_owner, self._folder = given is None, given and Path(given)

    @property
    def folder(self) -> Path:
        """The folder of what processes tell one another; it exists once it is asked for."""
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="koderz-pytest-"))
        return self._folder

    def close(self) -> None:
        if self._is_owner and self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def marked(self, mark: pytest.Mark, test: Path) -> Marked:
        """The mark with the options of the command line. Its dataset is looked for beside the test first."""
        settings = dict(mark.kwargs)
        threshold = settings.pop("threshold", 1.0)
        if mark.args or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise pytest.Collector.CollectError(
                "pytest.mark.koderz takes keyword arguments, a threshold from 0 to 1 and those of koderz.benchmark"
            )
        dataset = settings.get("dataset")
        if isinstance(dataset, str | Path):
            beside = test.parent / dataset
            settings["dataset"] = beside if beside.exists() else Path(dataset)
        if model := self._config.getoption("koderz_model"):
            settings["model"] = model
        if self._config.getoption("koderz_reuse"):
            settings["reuse"] = True
        settings["tags"] = tuple(dict.fromkeys(("pytest", *settings.get("tags", ()))))
        told = json.dumps(
            settings,
            sort_keys=True,
            default=lambda value: getattr(value, "__qualname__", str(value)),
        )
        key = hashlib.sha256(told.encode()).hexdigest()[:16]
        name = f"{key} {threshold}"
        return self._marks.setdefault(name, Marked(settings, float(threshold), key))

    def run_of(self, marked: Marked, items: Sequence[pytest.Item]) -> Run:
        """The run of a mark, which the first process that needs it makes, of the tasks that are among the items.

        Raises NotJudged where it can't be made.
        """
        import koderz

        if marked.key not in self._runs:
            path = self.folder / f"{marked.key}.json"
            with self._locked():
                noted = json.loads(path.read_text()) if path.exists() else None
                if noted is None:
                    calls = [item.callspec for item in items if hasattr(item, "callspec")]
                    chosen = [call.params[RESULT] for call in calls if RESULT in call.params]
                    wanted = {task for other, task in chosen if other.key == marked.key}
                    noted = self._made(
                        {**marked.settings, "problems": [t for t in marked.tasks if t in wanted]}
                    )
                    path.write_text(json.dumps(noted))
            if "error" in noted:
                raise NotJudged(f"koderz: {noted['error']}")
            self._runs[marked.key] = koderz.load_summary(Path(noted["path"]))
        return self._runs[marked.key]

    def ask(self, marked: Marked, item: pytest.Function, arguments: dict[str, Any]) -> None:
        """Runs a test as the solver of a run with one task, and raises what it raised where too few samples passed."""
        import koderz

        raised: list[BaseException] = []
        solver = _solver_of(item.obj, arguments, raised)
        settings = {**marked.settings, "suite": _suite_of(item), "solver": solver}
        with (
            self._locked()
            if self._config.getoption("koderz_max_cost") is not None
            else contextlib.nullcontext()
        ):
            noted = self._made(settings)
        if "error" in noted:
            raise NotJudged(f"koderz: {noted['error']}")
        found = _judged(koderz.load_summary(Path(noted["path"])), item.nodeid, marked.threshold)
        item.user_properties += [("koderz_run", found.run_id), ("koderz_cost", found.cost)]
        if raised and not _enough(found.passed, found.samples, marked.threshold):
            raise raised[0]

    def _made(self, settings: dict[str, Any]) -> dict[str, str]:
        """Makes a run, and returns a note for other processes: where it is, or why there is none."""
        import koderz

        spent = self.folder / "spent"
        most = self._config.getoption("koderz_max_cost")
        before = float(spent.read_text()) if spent.exists() else 0.0
        if most is not None:
            if before >= most:
                return {"error": f"--koderz-max-cost {most:g} is spent"}
            settings["max_cost"] = min(most - before, settings.get("max_cost") or most)
        try:
            run = _go(koderz.benchmark(**settings))
        except koderz.KoderzError as error:
            return {"error": str(error)}
        if run.status == "interrupted":
            raise KeyboardInterrupt
        spent.write_text(str(before + run.paid.get("total", 0.0)))
        return {"path": str(run.path.resolve())}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock

        with FileLock(self.folder / "lock"):
            yield


_SESSION = pytest.StashKey[SessionRuns]()


def _judged(run: Run, task: str, threshold: float) -> TaskResult:
    """The results of a task. Raises NotJudged where what is missing of it could decide."""
    results = [result for result in run.results if result.problem_id == task]
    faults = [fault for fault in run.faults if fault.get("problem_id") == task]
    found = TaskResult(task, str(run.run_id), results, faults)
    if not found.samples:
        raise NotJudged(
            f"{task} was not asked: {run.run_id} is {run.status}{run.reason and f', {run.reason}'}"
        )
    could = _enough(found.passed + len(faults), found.samples, threshold)
    if could and not _enough(found.passed, found.samples, threshold):
        more = f"run it again with: koderz benchmark retry {run.run_id}"
        raise NotJudged(
            f"{task}: {len(faults)} of {found.samples} samples ended in a fault: {faults[0]['reason']}; {more}"
        )
    return found


def _require(found: TaskResult, run: Run, threshold: float) -> None:
    """Fails the test with what was replied, wanted and read, where too few samples passed."""
    if _enough(found.passed, found.samples, threshold):
        return
    from koderz.analysis.story import Experiments

    lines = [
        f"{found.task}: {found.passed} of {found.samples} samples passed, of which {threshold:g} have to"
    ]
    lost = next(result for result in found.results if not result.success)
    if run.folder:
        experiments = Experiments(run.folder)
        outcome = next(
            each for each in experiments.outcomes if each.experiment_id == lost.experiment_id
        )
        story = experiments.story(outcome)
        last = story.attempts[-1] if story.attempts else None
        lines += [f"reply: {story.calls[-1].reply}"] if story.calls else []
        lines += [f"read: {last.facts['answer']}"] if last and "answer" in last.facts else []
        lines += (
            [f"wanted: {last.detail or last.feedback}"]
            if last and (last.detail or last.feedback)
            else []
        )
    lines += [f"verdict: {lost.verdict}{f' ({lost.cause})' if lost.cause else ''}"]
    lines += [
        f"in full: koderz benchmark show {found.run_id} --problem {found.task} --sample {lost.sample}"
    ]
    pytest.fail("\n".join(lines), pytrace=False)


def _enough(passed: int, samples: int, threshold: float) -> bool:
    from koderz_tracker.rates import is_share

    return is_share(passed, samples, threshold)


def _suite_of(item: pytest.Function) -> Any:
    """The suite of a test that asks itself: one task, whose verdict is whether the test passes."""
    from koderz.extend import Suite, Task

    class PytestSuite(Suite):
        name, source = "pytest", item.nodeid.partition("::")[0]
        tasks = (Task(item.nodeid, prompt=item.nodeid, needs=frozenset()),)

    return PytestSuite()


def _solver_of(
    test: Callable[..., Any], arguments: dict[str, Any], raised: list[BaseException]
) -> Callable[..., Any]:
    """A solver that calls a test, and keeps what it raises. Its recorded source is the test's."""
    from koderz.errors import Fault
    from koderz.types import Verdict

    @functools.wraps(inspect.unwrap(test))
    async def solver(task: Task, ask: Callable[..., Any]) -> Verdict:  # noqa: ARG001 a solver is handed its task
        try:
            await test(**{**arguments, ASK: ask})
        except Fault:
            raise
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 a test may raise anything
            raised.append(error)
            return Verdict("failed", type(error).__name__, str(error), str(error))
        return Verdict("passed")

    solver.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("task", "ask")
        ]
    )
    return solver


def _go(work: Coroutine[Any, Any, Any]) -> Any:
    import asyncio

    return asyncio.run(work)
