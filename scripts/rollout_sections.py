"""Sections of bench_rollouts: images, grading beside the way of OneShot, forged diffs, agents of others, and files."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import cast

from checkout import ROOT
from figures import Figure

sys.path.insert(0, str(ROOT))

from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Limits, Mount
from koderz.systems.rollouts.agents.adapters import Dirs, Package, mini_swe_agent
from koderz.systems.rollouts.grading import grade
from koderz.systems.rollouts.results.files import RolloutFiles
from koderz.systems.rollouts.suite import SAMPLE
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores
from koderz.systems.workspaces import git, userland
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz_tracker import records
from koderz_tracker.summary import Summary
from koderz_tracker.tracker import Tracker
from tests.koderz.systems.rollouts.grading.test_grading import _RIGHT, GAMING, TASK
from tests.scripted_model import ScriptedModel, scripted_model

_KNOWN = [*GAMING].index("skip of the module") + 1  # those that OneShot was tried with come first
KNOWN, FURTHER = dict([*GAMING.items()][:_KNOWN]), dict([*GAMING.items()][_KNOWN:])
_GRADINGS, _SHARE, _TASKS = 5, 200, 6  # the second: gradings that share one interpreter


_STARTS = 30


def images(_options: argparse.Namespace) -> Iterator[Figure]:
    """A command's start in the root of an image, above that of `unshare true`."""
    with tempfile.TemporaryDirectory() as folder:
        whole, bare = asyncio.run(_starts_in(_image_of_true(Path(folder))))
    yield Figure("`unshare true`, CPU", bare, "ms")
    yield Figure("a command's start in an image's root, above `unshare true`, CPU", whole - bare, "ms").at_most(60.0)


def _image_of_true(folder: Path) -> ImageStore:
    """A store with the image `true`: this machine's program of that name, and what it is linked to."""
    root, program = folder / "root", shutil.which("true") or "/bin/true"
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for path in (program, *re.findall(r"(/\S+) \(0x", libraries)):
        target = root / ("bin/true" if path == program else path.lstrip("/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (folder / "images.json").write_text('{"true": {"path": "root"}}')
    return ImageStore(folder, folder / "cache")


async def _starts_in(store: ImageStore) -> tuple[float, float]:
    """The medians of milliseconds of CPU in the image, and of `unshare true`, in turns."""
    whole, bare = [], []
    async with Local(images=store) as local:
        for _ in range(_STARTS):
            with scratch() as place:
                began = _cpu()
                ended = await local.run(Command(["/bin/true"], image="true", in_image=True, checkout="/"), place)
                if ended.status:
                    raise SystemExit(f"`true` in an image ends with {ended.status}: {ended.output}")
                between = _cpu()
            words = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "true"]
            beginning = _cpu()
            await (await asyncio.create_subprocess_exec(*words)).wait()
            whole.append(between - began)
            bare.append(_cpu() - beginning)
    return 1000 * statistics.median(whole), 1000 * statistics.median(bare)


def grading(_options: argparse.Namespace) -> Iterator[Figure]:
    """A right diff, graded here and by exit codes."""
    ours, theirs = asyncio.run(_gradings())
    yield Figure("grading a right diff, CPU", ours, "s")
    yield Figure("the same by exit codes, a clone and a pytest a script, CPU", theirs, "s")


async def _gradings() -> tuple[float, float]:
    """CPU of one grading: with the interpreter that all of a run's tests are forked from as a share of 200 of them."""
    task = load_task(SAMPLE / "median")
    diff = (SAMPLE / "median/overlay_files/diff.patch").read_text()
    began = _cpu()
    async with Local() as local:
        stores = Stores({"": local})
        store = await stores.of(task)
        await grade(task, Work(diff), stores)
        starting = _cpu()
        for _ in range(_GRADINGS):
            await grade(task, Work(diff), stores)
    ours = (_cpu() - began) - (starting - began) * (1 - 1 / _SHARE)
    before, local = _cpu(), Local()
    for _ in range(_GRADINGS):
        assert await _passes_by_exit_codes(task, diff, store.folder, local)
    return ours / _GRADINGS, (_cpu() - before) / _GRADINGS


async def _passes_by_exit_codes(task: Rollout, diff: str, repository: Path, local: Local) -> bool:
    with scratch() as place:
        checkout = place / "checkout"
        await asyncio.to_thread(subprocess.run, ["git", "clone", "-q", str(repository), str(checkout)], check=True)
        await git.apply(diff.encode(), checkout)
        passed = []
        for script in task.scripts:
            git.write(checkout, script.path, script.content.encode())
            mounts = [Mount(path, f"/opt/koderz/pytest/{name}") for path, name in userland.pytest_modules()]
            argv = ["python3", "-m", "pytest", script.path, "-v", "--tb=short"]
            own = {"PYTHONPATH": "/workspace"} if _has_pytest() else {"PYTHONPATH": "/workspace:/opt/koderz/pytest"}
            ended = await local.run(Command(argv, own, mounts, limits=Limits(seconds=60)), place)
            passed.append(ended.status == 0)
    return all(passed)


@cache
def _has_pytest() -> bool:
    look = [userland.python().executable, "-c", "import pytest"]
    return subprocess.run(look, capture_output=True, check=False, cwd="/").returncode == 0


def forged(_options: argparse.Namespace) -> Iterator[Figure]:
    """Diffs that solve nothing, and a right one."""
    ours, theirs, further, right = asyncio.run(_forged())
    yield Figure(f"of {len(KNOWN)} forged diffs, passed by exit codes", theirs)
    yield Figure(f"of {len(KNOWN)} forged diffs, passed here", ours).at_most(0)
    yield Figure(f"of {len(FURTHER)} further ones, passed here", further).at_most(0)
    yield Figure("a right diff with a conftest.py of its own, passed here", right).at_least(1)


async def _forged() -> tuple[int, int, int, int]:
    async with Local() as local:
        stores = Stores({"": local})
        store = await stores.of(TASK)

        async def diff_of(files: Mapping[str, str]) -> str:
            with scratch() as place:
                await store.checkout(place / "checkout")
                for path, text in files.items():
                    git.write(place / "checkout", path, text.encode())
                return await store.diff(place / "checkout", 1 << 20)

        async def passed(every: Iterable[Mapping[str, str]]) -> int:
            found = [await grade(TASK, Work(await diff_of(files)), stores) for files in every]
            return sum(each.scored.success for each in found)

        known = [await diff_of(files) for files in KNOWN.values()]
        theirs = sum([await _passes_by_exit_codes(TASK, diff, store.folder, local) for diff in known])
        right = {**_RIGHT, "conftest.py": "collect_ignore = ['nothing']\n"}
        return await passed(KNOWN.values()), theirs, await passed(FURTHER.values()), await passed([right])


def agents(_options: argparse.Namespace) -> Iterator[Figure]:
    """A small task by agents that a scripted model has run one command."""
    package = mini_swe_agent.find()
    with scripted_model() as model:
        yield Figure("a rollout by koderz' own agent, CPU", _by_agent("koderz", model), "s")
        if package is None:
            yield Figure("mini-swe-agent", None, failure=f"it isn't installed: {mini_swe_agent.install}")
            return
        yield Figure("mini-swe-agent alone, CPU", _alone(package, model), "s")
        yield Figure("a rollout by it through the bridge, CPU", _by_agent("mini-swe-agent", model), "s")


def _by_agent(agent: str, model: ScriptedModel) -> float:
    """Seconds of CPU a rollout."""
    with tempfile.TemporaryDirectory() as folder:
        entry = f'[[tasks]]\nprepared_dir = "{SAMPLE / "greeting"}"\nagent = "{agent}"\nmodel = "openai/m"\n'
        Path(folder, "bench.toml").write_text(f"{entry}rollouts = {_TASKS}\n")
        words = ["rollouts", "run", "bench.toml", "--parallel", "2", "--sandbox", "local", "--quiet", "--sink", "json"]
        before = _of_children()
        environ = {**os.environ, **model.env()}
        command = [sys.executable, "-m", "koderz", *words]
        subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=True)
        return (_of_children() - before) / _TASKS


def _alone(package: Package, model: ScriptedModel) -> float:
    prompt = (SAMPLE / "greeting/instruction.md").read_text()
    before = _of_children()
    for _ in range(_TASKS):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(SAMPLE / "greeting/environment/names.txt", folder)
            dirs = Dirs(package.program, folder, folder, model.url, "sk-openai-0123456789")
            argv, environ = mini_swe_agent.command(prompt, "m", dirs)
            own = {**os.environ, **environ, "HOME": folder}
            subprocess.run(argv, cwd=folder, env=own, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return (_of_children() - before) / _TASKS


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _cpu() -> float:
    return time.process_time() + _of_children()


_PLANNED = 3566  # tasks of the largest published collection that was tried
_FILES = {
    "task.toml": 'schema_version = "1.1"\n[task]\nname = "bench/{0}"\n[agent]\ntimeout_sec = 60.0\n[metadata]\na = 1\n',
    "instruction.md": "Write what is asked for to answer.txt: {0}.\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nENV A=1\nWORKDIR /work\nCOPY notes.txt .\nRUN mkdir -p out\n",
    "environment/notes.txt": "one\ntwo\n",
    "solution/solve.sh": "#!/bin/bash\nwc -l < notes.txt > answer.txt\n",
    "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    **{f"tests/data{number}.txt": "x\n" * 100 for number in range(5)},
}


def planning(_options: argparse.Namespace) -> Iterator[Figure]:
    """The plan of a collection of Harbor's tasks, by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_PLANNED):
            for path, text in _FILES.items():
                file = Path(folder, "tasks", f"task-{number:05}", path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text.replace("{0}", f"{number:05}"))
        words = ("rollouts", "run", "--dataset", "tasks", "--agent", "nop", "--sandbox", "local", "--dry-run", "--json")
        command = [sys.executable, "-m", "koderz", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        if status:
            raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    yield Figure(f"the plan of {_PLANNED:,} tasks, wall", wall, "s").at_most(20.0)
    yield Figure("the same, CPU", usage.ru_utime + usage.ru_stime, "s")
    yield Figure("the same, memory", usage.ru_maxrss / 1024, "MB").at_most(300.0)


def files(_options: argparse.Namespace) -> Iterator[Figure]:
    """Files that are written as rollouts end one after the other, and anew by `koderz sync`."""
    (small, _), (large, anew) = (asyncio.run(_written(count)) for count in (2_000, 10_000))
    yield Figure("files of 10,000 rollouts as they end, a rollout, CPU", large, "ms")
    yield Figure("the same, of what one of 2,000 takes", large / small).at_most(1.5)
    yield Figure("files of 10,000 rollouts written anew, CPU", anew, "s")


async def _written(count: int) -> tuple[float, float]:
    """Milliseconds of CPU a rollout as they end, and seconds for all of them anew."""
    name, runs = "bench_00000000_20260101_000000", [f"exp_{number:016x}" for number in range(1, count + 1)]
    plan = records.Plan(
        run_id=name,
        mode="rollouts",
        arms=[records.Arm(name="nop", solver="agent:nop", models={})],
        tasks=["one"],
        samples=count,
        config={},
        environment={},
    )
    with tempfile.TemporaryDirectory() as folder:
        about = {
            "output": f"{folder}/data",
            "data": "data",
            "name": "bench",
            "stamp": "20260101__00-00-00",
            "config": "bench.toml",
            "runs": {run: {"task_id": "one", "task_dir": "tasks/one"} for run in runs},
            "tasks": {"one": {"title": "", "notes": "", "repo_info": {}}},
        }
        ended = [_experiment(run, number) for number, run in enumerate(runs)]
        with Tracker.create(Path(folder), name, plan) as tracker:
            await tracker.record(*ended)
            document = RolloutFiles(Path(folder, name), {**about, "runs": {}})
            document.take(ended[0])  # all is read
            document = RolloutFiles(Path(folder, name), about)
            document.take(ended[0])
            began = time.process_time()
            for experiment in ended:
                document.take(experiment)
            each = 1000 * (time.process_time() - began) / count
            began = time.process_time()
            document.write(cast("Summary", None))
            return each, time.process_time() - began


def _experiment(run: str, number: int) -> records.Experiment:
    return records.Experiment(
        experiment_id=run,
        problem_id="one",
        arm="nop",
        solver="agent:nop",
        sample=number,
        model="",
        success=False,
        verdict="failed",
        score=0.0,
    )
