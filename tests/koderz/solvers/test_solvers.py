"""Solvers are found by name or in a file, and what their signature names is settled before anything is spent."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.prompts import load_prompts
from koderz.settings.layers import as_config
from koderz.solvers import SOLVERS, SettledSolver, load_solver, solver
from tests.conftest import Shell
from tests.koderz.world import settings_of, write_tasks

SETTINGS = as_config(settings_of())


def loaded(folder: Path, source: str, name: str = "solve", **arguments: str) -> SettledSolver:
    path = folder / "own.py"
    path.write_text(source)
    return load_solver(f"{path}:{name}", SETTINGS, arguments)


@pytest.mark.parametrize("name", SOLVERS)
def test_solver_of_koderz_is_found_by_name(name: str) -> None:
    solver = load_solver(name, SETTINGS, {})

    assert (solver.name, solver.is_foreign) == (name, False)
    assert solver.restarts is (solver.function.__module__ == "koderz.systems.rollouts.agents.command_line")
    assert solver.wants >= {"task", "judge"} or "evaluator" in solver.wants


def test_settings_become_parameters_of_those_who_name_them() -> None:
    assert load_solver("zero-shot", SETTINGS, {}).parameters == {}
    parameters = load_solver("iterative", {**SETTINGS, "max_iterations": 4}, {}).parameters
    assert parameters.items() >= {"max_iterations": 4, "history": 3, "context": 16384, "cot": True}.items()


def test_solver_in_a_file_is_found_by_its_name(tmp_path: Path) -> None:
    solver = loaded(tmp_path, "async def my_way(task, judge, *, seed):\n    ...\n", "my_way")

    assert (solver.name, solver.is_foreign) == ("my-way", True)
    assert solver.wants == {"task", "judge"}
    assert solver.parameters == {"seed": 0}
    assert len(solver.digest) == 16


def test_solver_digest_is_that_of_its_file(tmp_path: Path) -> None:
    source = "async def solve(task):\n    ...\n"

    assert loaded(tmp_path, source).digest == loaded(tmp_path, source).digest
    assert loaded(tmp_path, source).digest != loaded(tmp_path, source + "# changed\n").digest


DECLARED = """
from koderz.solvers import solver
from koderz.types import Expected


def calls(prompt_tokens, task_id, parameters):
    return [Expected("main", (2, parameters["seed"]), (1, 1), (1, 1))]


@solver(roles=("critic",), estimate=calls, restarts=True, prompts={"main": ["feedback"]}, version=2, parts=("p",))
async def solve(task, prompts, *, seed):
    \"""Solves it.\"""
"""

HUNG_ON = """
from koderz.types import Expected


async def solve(task, prompts, *, seed):
    \"""Solves it.\"""

solve.roles = ("critic",)
solve.estimate = lambda prompt_tokens, task_id, parameters: [Expected("main", (2, parameters["seed"]), (1, 1), (1, 1))]
solve.resume = "restart"
solve.prompts = {"main": ["feedback"]}
solve.version = 2
solve.parts = ("p",)
"""

AROUND = {
    "decorator": DECLARED,
    "attributes": HUNG_ON,
    "partial": DECLARED.replace("async def solve", "async def other").replace("seed):", "seed, n):")
    + "\nfrom functools import partial\nsolve = partial(other, n=1)\n",
    "another decorator": DECLARED.replace(
        "@solver",
        "def twice(f):\n    @wraps(f)\n    async def inner(**given):\n        return await f(**given)\n"
        "    return inner\n\n\n@twice\n@solver",
    ).replace("\nfrom", "\nfrom functools import wraps\nfrom", 1),
}


@pytest.mark.parametrize("way", AROUND)
def test_solver_declares_what_its_signature_does_not_say(tmp_path: Path, way: str) -> None:
    solver = loaded(tmp_path, AROUND[way]).settled({"seed": 5}, {})

    assert solver.wants == {"task", "prompts"}
    assert (solver.restarts, solver.asks, solver.asks_once) == (True, True, False)
    assert (solver.has_role("critic"), solver.has_role("sub")) == (True, False)
    assert [each.calls for each in solver.expected(1, "T/0")] == [(2, 5)]
    assert solver.rendered(load_prompts(None), ["main", "spec"]) == ["feedback"]
    assert (solver.about, solver.parts, solver.sinks) == ({"version": 2}, ("p",), ())


def test_solver_without_a_decorator_has_the_defaults(tmp_path: Path) -> None:
    solver = loaded(tmp_path, "async def solve(task, ask, judge):\n    ...\n")

    assert (solver.restarts, solver.asks, solver.asks_once, solver.options) == (False, True, False, None)
    assert solver.has_role("anything")
    assert [each.calls for each in solver.expected(1, "T/0")] == [(1, 1)]
    assert (solver.about, solver.parts, solver.sinks, solver.at_hand({}, (), load_prompts(None))) == ({}, (), (), {})


def test_solver_estimate_is_given_the_defaults_of_parameters(tmp_path: Path) -> None:
    solver = loaded(tmp_path, DECLARED.replace("*, seed", "*, most=4").replace('"seed"', '"most"'))

    assert [each.calls for each in solver.expected(1, "T/0")] == [(2, 4)]


def test_solver_estimate_that_raises_is_one_line_with_its_place(tmp_path: Path) -> None:
    solver = loaded(tmp_path, DECLARED.replace('"seed"', '"sed"'))

    with pytest.raises(KoderzError, match=r"the estimate of the solver solve raised KeyError: 'sed'.*own\.py.*7"):
        solver.expected(1, "T/0")


def test_solver_refuses_a_misspelt_keyword(tmp_path: Path) -> None:
    source = "from koderz.solvers import solver\n\n@solver(rolls=())\nasync def solve(task):\n    ...\n"

    with pytest.raises(KoderzError, match=r"Solver has no member `rolls`; did you mean `roles`\?"):
        loaded(tmp_path, source)


def test_solver_is_called_as_the_function_it_declares() -> None:
    @solver(roles=())
    async def doubled(task: int, *, by: int = 2) -> int:
        """Twice the task."""
        return task * by

    assert asyncio.run(doubled(3)) == 6
    assert str(inspect.signature(doubled)) == str(inspect.signature(doubled.function))
    assert doubled.__doc__ == "Twice the task."


def test_solver_of_a_package_may_have_its_declarations_as_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "hung_on-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: hung_on\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[koderz.solvers]\nhung-on = hung_on:solve\n")
    (tmp_path / "hung_on.py").write_text(f"{HUNG_ON}\nclass Own: ...\n\nsolve.options = Own\n")
    monkeypatch.syspath_prepend(tmp_path)

    solver = load_solver("hung-on", SETTINGS, {})

    assert (solver.roles, solver.restarts, solver.is_foreign) == (("critic",), True, True)
    assert SOLVERS.options_of("hung-on") is solver.options is not None


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        ("1", "7", 7),
        ("1", "-7", -7),
        ("1.0", "7", 7.0),
        ("1.0", "1e-3", 0.001),
        ("False", "true", True),
        ("True", "FALSE", False),
        ("'x'", "7", "7"),
        ("None", "7", "7"),
        ("'x'", "", ""),
        ("'x'", "a=b c", "a=b c"),
    ],
)
def test_argument_is_read_as_the_type_of_its_default(tmp_path: Path, default: str, text: str, value: Any) -> None:
    solver = loaded(tmp_path, f"async def solve(task, *, extra={default}):\n    ...\n", extra=text)

    assert solver.parameters == {"extra": value}
    assert type(solver.parameters["extra"]) is type(value)


def test_argument_wins_over_a_setting(tmp_path: Path) -> None:
    assert loaded(tmp_path, "async def solve(task, *, seed=1):\n    ...\n", seed="5").parameters == {"seed": 5}


@pytest.mark.parametrize(
    ("signature", "arguments", "said"),
    [
        ("task, *, n=1", {"n": "many"}, "--solver-arg n=many: not a number"),
        ("task, *, n=1", {"n": "1.5"}, "not a number"),
        ("task, *, on=True", {"on": "yes"}, "--solver-arg on=yes: true or false"),
        ("task, *, n=1", {"m": "1"}, "--solver-arg m: solve has no such parameter; it has n"),
        ("task", {"m": "1"}, "no such parameter; it has none"),
        ("task, ask", {"ask": "x"}, "no such parameter"),
        ("task, *, depth", {}, "the solver solve needs --solver-arg depth=…"),
        ("task, depth", {}, "the solver solve needs --solver-arg depth=…"),
        ("*args", {}, "takes *args; name the parameters"),
        ("task, **more", {}, "takes *more; name the parameters"),
    ],
)
def test_argument_outside_of_the_signature_is_refused(
    tmp_path: Path, signature: str, arguments: dict[str, str], said: str
) -> None:
    with pytest.raises(KoderzError) as raised:
        loaded(tmp_path, f"async def solve({signature}):\n    ...\n", **arguments)

    assert said in str(raised.value)


def test_parameters_that_cannot_be_given_by_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KoderzError):
        loaded(tmp_path, "async def solve(task, ask, judge, /):\n    ...\n")


def test_argument_that_is_also_a_setting_has_its_type(tmp_path: Path) -> None:
    found = loaded(tmp_path, "async def solve(task, *, max_iterations):\n    ...\n", max_iterations="3")

    assert found.parameters == {"max_iterations": 3}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def solve(task):\n    ...\n", "is no async function"),
        ("async def solve(task):\n    yield\n", "is no async function"),
        ("class S:\n    async def __call__(self, task):\n        ...\n\nsolve = S()\n", "is no async function"),
        ("solve = 3\n", "is no async function"),
        ("async def other(task):\n    ...\n", "defines no solve"),
        ("def solve(:\n", "can't be loaded: SyntaxError"),
        ("1 / 0\n", "can't be loaded: ZeroDivisionError: division by zero"),
        ("import no_such_module\n", "can't be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("\0", "can't be loaded: "),
    ],
)
def test_object_that_is_no_solver_is_refused(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(KoderzError) as raised:
        loaded(tmp_path, source)

    assert said in str(raised.value)
    assert str(tmp_path / "own.py") in str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope", "there is no solver 'nope'; choose from zero-shot, iterative"),
        ("nowhere.py:solve", "there is no file nowhere.py; give FILE:NAME"),
        ("nowhere.py:", "there is no file nowhere.py"),
        (":solve", "give FILE:NAME"),
        ("", "there is no solver ''"),
    ],
)
def test_missing_solver_is_told(name: str, said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        load_solver(name, SETTINGS, {})


def test_solver_file_that_is_no_python_is_told(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("hello")

    with pytest.raises(KoderzError, match=r"own\.txt is no Python file"):
        load_solver(f"{tmp_path}/own.txt:solve", SETTINGS, {})


WORKING = {
    "a method": "class S:\n    async def go(self, task, judge):\n        ...\n\nsolve = S().go\n",
    "a decorated function": (
        "import functools\n\ndef twice(f):\n    @functools.wraps(f)\n    async def inner(**given):\n"
        "        return await f(**given)\n    return inner\n\n@twice\nasync def solve(task, judge):\n    ...\n"
    ),
    "one beside a class": "class C:\n    x: int = 1\n\nasync def solve(task, judge):\n    ...\n",
}


@pytest.mark.parametrize("case", WORKING)
def test_solver_may_be(tmp_path: Path, case: str) -> None:
    assert loaded(tmp_path, WORKING[case]).wants == {"task", "judge"}


def test_solver_file_may_define_dataclasses(tmp_path: Path) -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Node:\n    depth: int = 0\n\nasync def solve(task, judge):\n    ...\n"
    )

    assert loaded(tmp_path, source).wants == {"task", "judge"}


def test_solver_may_be_a_partial(tmp_path: Path) -> None:
    source = "from functools import partial\n\nasync def go(task, judge, *, n):\n    ...\n\nsolve = partial(go, n=3)\n"

    assert loaded(tmp_path, source).wants == {"task", "judge"}


def test_solver_file_that_exits_when_loaded_is_told(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="can't be loaded"):
        loaded(tmp_path, "import sys\n\nsys.exit(0)\n")


def test_solver_that_exits_does_not_end_koderz(koderz: Shell) -> None:
    write_tasks(koderz.folder, 2)
    (koderz.folder / "own.py").write_text("async def solve(task):\n    raise SystemExit(0)\n")

    koderz("benchmark", 0, 2, "--dataset", "tasks.jsonl", "--solver", "own.py:solve", "--model", "simulated", code=3)

    assert len(koderz.summary()["faults"]) == 2


def test_solver_is_handed_what_it_wants_and_its_parameters(tmp_path: Path) -> None:
    import asyncio
    from types import SimpleNamespace

    solver = loaded(tmp_path, "async def solve(task, rng, *, seed):\n    return [task, rng, seed]\n")
    handles: Any = SimpleNamespace(rng="dice", ask="never")

    async def go() -> Any:
        return await solver.run(handles, task="t", prompts="p")

    assert asyncio.run(go()) == ["t", "dice", 0]
