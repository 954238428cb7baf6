"""The arms of `koderz helps`, stated as a configuration of rollouts, and the verdict on what they give an agent.

The embedded tasks are codes of parcels, which most depots make as a skill says that comes with them. They are for the
simulated model, which runs the last command that it has read. So some tasks are gained by the skill, some are lost,
and some pass or fail either way.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from koderz.analysis.catalogue import load_catalogue
from koderz.analysis.comparison import named_tasks
from koderz.analysis.runs import load_run
from koderz.cli.console import counted
from koderz.errors import KoderzError, StorageError
from koderz.plans.plan import Plan
from koderz.systems.rollouts.additions import KINDS, USED, read_additions
from koderz_tracker.breakdown import by_task
from koderz_tracker.files import write_whole
from koderz_tracker.outline import Told, each_of
from koderz_tracker.rates import Interval
from koderz_tracker.records import PASSES
from koderz_tracker.results import Result, clusters_in, members
from koderz_tracker.stopping import tasks_needed
from koderz_tracker.summary import Summary, missing_of

_WORDS = {
    "helps": "It helps",
    "harms": "It harms",
    "similar": "It makes no difference that matters",
    "open": "It is not shown to help or to harm",
}
_WHY = {
    "futile": ", since what is left would hardly show a difference",
    "money": ", since the cost cap is reached",
    "tasks": ", since no task is left",
}


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """The rollouts of an arm on the tasks that were counted. Averages are of a rollout."""

    label: str  # what it gives its agent, such as `with sql-style`
    rollouts: int
    passed: int
    missing: int  # rollouts that couldn't be judged
    cost: float | None  # US dollars; None: a price is unknown
    seconds: float
    turns: float  # requests to models
    tokens: float
    used: Mapping[str, int]  # rollouts that used each thing whose use can be told
    used_any: int  # rollouts that used any of these

    def told_use(self, letter: str) -> Iterator[str]:
        """How often it used what it has, and what a split by use is worth."""
        each = ", ".join(f"{name} in {count:,}" for name, count in self.used.items())
        unused, split = self.rollouts - self.used_any, ""
        if not self.used_any:
            split = " What is never used can't be what makes the difference."
        elif unused:
            split = f" To compare these with the other {unused:,} is no experiment: tasks decide on what is used."
        if self.used:
            yield f"{letter} used {each} of {counted(self.rollouts, 'rollout')}.{split}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one arm, B, with the arm that others are compared with, A. Differences are B less A."""

    a: ArmFigures
    b: ArmFigures
    decision: Told
    gained: Sequence[str]  # tasks that B passes oftener
    lost: Sequence[str]  # tasks that A passes oftener
    # of the difference, with missing rollouts at their worst and best; None: none is missing
    bounds: Interval | None
    rollouts: int  # of both arms, up to the decision
    planned_rollouts: int

    @property
    def interval(self) -> Interval | None:
        """The interval of the difference, whatever missing rollouts would have been; None before any task counts."""
        found: Interval | None = self.decision["interval_bounds"] or self.decision["interval"]
        return found

    @property
    def outcome(self) -> str:
        """`helps`, `harms`, `similar`, or `open` where nothing is shown."""
        if self.decision["outcome"] == "shown":
            return "helps" if sum(self.interval or ()) > 0 else "harms"
        return "similar" if self.decision["outcome"] == "similar" else "open"

    @property
    def document(self) -> Mapping[str, Any]:
        """The verdict as JSON has it."""
        own = asdict(self)
        told = {name: value for name, value in own.pop("decision").items() if name != "path"}
        arms = {name: {"arm": told.pop(name), **own.pop(name)} for name in ("a", "b")}
        return {"verdict": self.outcome, **told, **own, **arms}

    def lines(self) -> Iterator[str]:
        """The verdict in sentences."""
        decision, after = (
            self.decision,
            f"after {self.rollouts:,} of {self.planned_rollouts:,} rollouts",
        )
        if self.interval is None:
            yield f"{_WORDS['open']}: no task was judged in both arms {after}."
            return
        unit = "points" if decision["measure"] == PASSES else f"of {decision['measure']}"
        sure = f"{100 * (1 - decision['alpha']):.4g} %, valid at any stop, {'{:.1f} to {:.1f}'.format(*self.interval)}"
        b, a = (
            f"({each.label}) passes {each.passed:,} of {each.rollouts:,}"
            for each in (self.b, self.a)
        )
        ended = (
            f"Stopped {after}{_WHY[decision['outcome']]}"
            if decision["outcome"] in _WHY
            else f"Decided {after}"
        )
        yield f"{_WORDS[self.outcome]}: B {b}, A {a}: {decision['difference']:+.1f} {unit} ({sure}). {ended}."
        if self.bounds:
            yield (
                f"{self.a.missing} rollouts of A and {self.b.missing} of B could not be judged: with them at their "
                f"worst or best the difference is {'{:+.1f} to {:+.1f}'.format(*self.bounds)}. "
                "The interval holds whatever they would have been."
            )
        yield from (*self.b.told_use("B"), *self.a.told_use("A"))
        told = [
            f"{counted(len(each), 'task')}: {named_tasks(each)}"
            for each in (self.gained, self.lost)
        ]
        yield f"Gained {told[0] if self.gained else 'none'}. Lost {told[1] if self.lost else 'none'}."
        more = {
            name: getattr(self.b, name) - getattr(self.a, name)
            for name in ("seconds", "turns", "tokens")
        }
        price = "unknown, since a price is"
        if self.a.cost is not None and self.b.cost is not None:
            cost = self.b.cost - self.a.cost
            price = f"{'-' if cost < 0 else '+'}${abs(cost):.4f}"
        averages = "time {seconds:+.1f} s, turns {turns:+.1f}, tokens {tokens:+,.0f}".format(**more)
        yield f"Cost {price} a rollout, {averages}: averages, of which nothing is claimed."


def verdicts_of(summary: Summary, labels: Sequence[str]) -> list[Verdict]:
    """The verdict on each arm of a run that has come to a decision. `labels`: of its arms, in the order of the plan."""
    named = dict(zip(summary.arms, labels, strict=True))
    return [_verdict(summary, decision, named) for decision in each_of(summary.decision)]


def _verdict(summary: Summary, decision: Told, labels: Mapping[str, str]) -> Verdict:
    about, names = summary.until_decided, (decision["a"], decision["b"])
    assert about, "only runs that stop once they are decided come to a decision"
    results = [by_task(summary.arms[name].results, lambda result: result) for name in names]
    faults = [
        Counter(str(each["problem_id"]) for each in missing_of(summary.faults, name))
        for name in names
    ]
    samples = [
        about.samples.get(name, {}) if about.samples else dict.fromkeys(about.order, 1)
        for name in names
    ]
    planned = {task: [own.get(task, 0) for own in samples] for task in about.order}
    planned = {task: wanted for task, wanted in planned.items() if all(wanted)}
    whole, missing, ends = list[str](), [0, 0], dict[str, Interval]()
    for task, wanted in planned.items():
        gone = [count - len(own.get(task, ())) for own, count in zip(results, wanted, strict=True)]
        if any(count > own[task] for count, own in zip(gone, faults, strict=True)):
            continue  # a rollout may yet end
        # Beyond the last task that was counted, a fault kept its place only where the run had no task left.
        if len(whole) == decision["tasks"] and (
            not any(gone) or decision["outcome"] not in ("tasks", "money")
        ):
            break
        whole += [task] * (not any(gone))
        passed = [sum(each.success for each in own.get(task, ())) for own in results]
        low, high = passed[1] / wanted[1] - passed[0] / wanted[0], (passed[1] + gone[1]) / wanted[1]
        ends[task] = low - gone[0] / wanted[0], high - passed[0] / wanted[0]
        missing = [total + more for total, more in zip(missing, gone, strict=True)]
    means = [{task: fmean(each.success for each in own[task]) for task in whole} for own in results]
    a, b = (
        _figures(labels[name], [result for task in whole for result in own[task]], gone)
        for name, own, gone in zip(names, results, missing, strict=True)
    )
    return Verdict(
        a,
        b,
        decision,
        sorted(task for task in whole if means[1][task] > means[0][task]),
        sorted(task for task in whole if means[1][task] < means[0][task]),
        (
            100 * fmean(low for low, _ in ends.values()),
            100 * fmean(high for _, high in ends.values()),
        )
        if any(missing)
        else None,
        sum(sum(planned[task]) for task in ends),
        sum(map(sum, planned.values())),
    )


def _figures(label: str, results: Sequence[Result], missing: int) -> ArmFigures:
    uses: list[Mapping[str, bool]] = [result.facts.get(USED) or {} for result in results]

    def average(value: Callable[[Result], float]) -> float:
        return fmean(map(value, results)) if results else 0.0

    return ArmFigures(
        label,
        rollouts=len(results),
        passed=sum(result.success for result in results),
        missing=missing,
        cost=average(lambda each: each.cost) if all(each.cost_known for each in results) else None,
        seconds=average(lambda each: each.duration_seconds),
        turns=average(lambda each: each.calls),
        tokens=average(lambda each: each.tokens_in + each.tokens_out),
        used={
            name: sum(use.get(name, False) for use in uses)
            for name in dict.fromkeys(n for use in uses for n in use)
        },
        used_any=sum(any(use.values()) for use in uses),
    )


WANTED = 15  # points that a comparison is expected to show
_CHANCE = 0.8
_USUAL_SPREAD, _LEAST_SPREAD = 0.25, 0.02  # of rollouts of agents that differ in nothing
# tasks with several rollouts on record, for their spread to be taken for that of the plan
_FEWEST = 8
_MOST_RUNS = 20  # that are read
_NEVER = 20_000  # tasks


class Power(NamedTuple):
    """The differences of its arms that the tasks of a plan show in four of five cases."""

    tasks: int  # or clusters of tasks
    rollouts: int  # of all arms
    spread: float  # share of tasks on which two rollouts that differ in nothing end differently
    basis: str  # how that is known
    shows: int | None  # the smallest difference in points; None: no difference at all
    needed: int | None  # tasks that show a difference of WANTED points; None: more than 20,000

    @property
    def is_enough(self) -> bool:
        """Whether a difference of WANTED points is likely to be shown."""
        return self.shows is not None and self.shows <= WANTED

    @property
    def line(self) -> str:
        """The power as a sentence, and what it would take."""
        least = f"a difference of {self.shows} points or more in four of five cases"
        needed = f"more than {_NEVER:,}" if self.needed is None else f"{self.needed:,}"
        return (
            f"{self.tasks:,} tasks in up to {self.rollouts:,} rollouts show "
            f"{'no difference, however large' if self.shows is None else least}"
            f"{'' if self.is_enough else f'; {WANTED} points take {needed} tasks'} "
            f"(two rollouts of a task differ in {100 * self.spread:.0f} % of cases, {self.basis})"
        )


def power_of(plan: Plan) -> Power:
    """The power of a plan that stops once it is decided, by the spread on record or else by the usual one.

    Tasks with several rollouts in each arm count as if they had one, so they rather show smaller differences, too.
    """
    about = plan.record.until_decided
    assert about, "asked only of plans that stop once they are decided"
    tasks, alpha = (
        len(members(about.order, clusters_in(plan.record))),
        about.alpha / (len(plan.arms) - 1),
    )
    spread, basis = _USUAL_SPREAD, "as is usual, since too few are on record here"
    if len(known := [*_spreads_on_record(plan)]) >= _FEWEST:
        spread, basis = max(_LEAST_SPREAD, fmean(known)), f"as on {len(known)} tasks on record"

    def needed(points: int, most: int) -> int | None:
        # Arms part on at least as many tasks as they differ by.
        return tasks_needed(
            max(spread, points / 100), points / 100, alpha, chances=(_CHANCE,), most=most
        )[0]

    every = range(1, 100)
    least = bisect_left(every, True, key=lambda points: needed(points, tasks) is not None)
    shows = every[least] if least < len(every) else None
    return Power(tasks, plan.record.planned, spread, basis, shows, needed(WANTED, _NEVER))


def _spreads_on_record(plan: Plan) -> Iterator[float]:
    """For each task with several rollouts of one arm by the same agent and model, the share of pairs that differ."""
    agents, tasks = (
        {(arm.solver.name, arm.model) for arm in plan.arms},
        {task.id for task in plan.tasks},
    )
    rows = [
        row for row in load_catalogue(plan.settings.results).rows if row.mode == plan.record.mode
    ]
    for row in rows[:_MOST_RUNS]:
        with suppress(KoderzError):  # `koderz list` says what is wrong with a run
            for arm in load_run(plan.settings.results / row.run_id).arms.values():
                own = [each for each in arm.results if (each.solver, each.model) in agents]
                for task, passes in by_task(own, lambda each: each.success).items():
                    rollouts, passed = len(passes), sum(passes)
                    if task in tasks and rollouts > 1:
                        yield 2 * passed * (rollouts - passed) / (rollouts * (rollouts - 1))


_LONGEST = 40  # characters of a name, of those that an arm's may have


class Given(NamedTuple):
    """A thing that may help: its key in a configuration, its text there, and its name in the names of arms."""

    key: str
    said: str
    name: str

    @property
    def thing(self) -> tuple[str, str]:
        """Its key, and its text without a revision, which are equal for revisions of one thing."""
        place, at, _ = self.said.rpartition("@")
        return self.key, place if at and not Path(self.said).exists() else self.said


Arms = Mapping[str, Sequence[Given]]
"""The things that each arm gives, by its name; others are compared with the first."""


def given_by(values: Mapping[str, Sequence[str]]) -> list[Given]:
    """The things that options name, by the keys of a configuration. Raises KoderzError for one that can't be given."""
    found = dict[str, Given]()
    for key, texts in values.items():
        for text in texts:
            whole = "+".join(each.name for each in read_additions(KINDS[key], text, Path.cwd()))
            name = "".join(each if each.isprintable() else "?" for each in whole)[:_LONGEST]
            given = Given(
                key, _absolute(key, text), f"{name} #{len(found) + 1}" if name in found else name
            )
            if given[:2] in [each[:2] for each in found.values()]:
                raise KoderzError(f"{text} is given twice")
            found[given.name] = given
    return [*found.values()]


def arms_of(given: Sequence[Given], *, together: bool = False, each_without: bool = False) -> Arms:
    """The arms that compare what is given: a plain one, and one with each.

    `together`: one with all of it; `each_without`: all of it, and all but one of it. Revisions of one thing are
    compared with the first of them. Raises KoderzError if there is nothing to compare.
    """
    if not given:
        raise KoderzError(
            "say what may help: --skill DIR, --mcp FILE|COMMAND, --context FILE, --memory STORE or more"
        )
    if each_without:
        if together or len(given) < 2:
            raise KoderzError(
                "--each-without takes two things or more, and goes without --together"
            )
        return {
            "with all": given,
            **{f"without {out.name}": [each for each in given if each != out] for out in given},
        }
    if together:
        return {"plain": (), "with all": given}
    alone = {f"with {each.name}": [each] for each in given}
    return (
        alone
        if len(given) > 1 and len({each.thing for each in given}) == 1
        else {"plain": (), **alone}
    )


def write_config(
    folder: Path, name: str, arms: Arms, dataset: str, registry: str | None, agent: str
) -> Path:
    """Writes the configuration of these arms on a dataset, and returns its file.

    The file's name has the digest of what is in it, so that a run which is resumed finds what it began with. Raises
    StorageError if the disk refuses.
    """
    top = {"name": name, "agent": agent, "dataset": dataset}
    if registry:
        top["registry"] = registry if "://" in registry else str(Path(registry).absolute())
    text = partial(json.dumps, ensure_ascii=False)  # whose strings TOML has, too
    lines = [f"{key} = {text(value)}" for key, value in top.items()]
    for arm, given in arms.items():
        lines += ["", "[[arms]]", f"name = {text(arm)}"]
        for key in dict.fromkeys(each.key for each in given):
            lines.append(f"{key} = {text([each.said for each in given if each.key == key])}")
    content = "\n".join([*lines, ""]).encode()
    path = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, [content])
    except OSError as error:
        raise StorageError(f"{path} can't be written ({error.strerror})") from None
    return path


def _absolute(key: str, said: str) -> str:
    """The text with the paths of this machine in it absolute, since a run may be resumed from anywhere."""
    if "://" in said or Path(said).exists():
        return said if "://" in said else str(Path(said).absolute())
    if key == "mcp":
        return shlex.join(
            str(Path(word).absolute()) if Path(word).is_file() else word
            for word in shlex.split(said)
        )
    place, at, revision = said.rpartition("@")
    return f"{Path(place).absolute()}{at}{revision}"


SKILL = Path(__file__).with_name("parcel-codes")
_TASKS = 144
_DEPOTS = ("house", "told", "house", "odd", "house", "house", "house", "old", "house", "told")
"""The kinds of depots, again and again. What makes codes is said by the skill, in the depot, or, if odd, by nobody."""
_NAMES = ("ada", "grace", "edsger", "barbara", "donald", "radia", "niklaus", "frances")
_RULES = {"told": 'toupper($0) "-" length($0)', "old": "length($0) toupper($0)"}
_FILES = {
    "instruction.md": "Write codes.txt: the code of each parcel in parcels.txt, one a line.\n",
    "task.toml": '[task]\nname = "parcels/{name}"\n\n[agent]\ntimeout_sec = 600\n\n[verifier]\ntimeout_sec = 60\n',
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY parcels.txt README.md ./\n",
    "environment/parcels.txt": "{parcels}\n",
    "environment/README.md": "# {name}\n{rule}",
    "solution/solve.sh": "#!/bin/bash\ncat > codes.txt <<'END'\n{codes}\nEND\n",
    "tests/test.sh": "#!/bin/bash\n[ \"$(cat codes.txt)\" = '{codes}' ]\n"
    "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
}


def write_tasks(folder: Path) -> Path:
    """Writes the tasks below `folder`, unless they are there, and returns it. Raises StorageError."""
    try:
        for number in range(_TASKS):
            values = _task(number)
            for path, text in _FILES.items():
                file, content = folder / values["name"] / path, text.format(**values)
                if not file.is_file() or file.read_text() != content:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(content)
    except OSError as error:
        raise StorageError(
            f"the embedded tasks can't be written below {folder} ({error.strerror})"
        ) from None
    return folder


def _task(number: int) -> Mapping[str, str]:
    depot = _DEPOTS[number % len(_DEPOTS)]
    parcels = [_NAMES[(number + place) % len(_NAMES)] * (1 + number % 3) for place in range(3)]
    # In odd depots blanks are no characters, which neither the skill nor anybody else says.
    codes = [
        f"{len(each)}{each.upper()}" if depot == "old" else f"{each.upper()}-{len(each)}"
        for each in parcels
    ]
    if depot == "odd":
        parcels, codes = (
            [f"{each} " for each in parcels],
            [code.replace("-", " -") for code in codes],
        )
    rule = (
        f"\n```sh\nawk '{{ print {_RULES[depot]} }}' parcels.txt > codes.txt\n```\n"
        if depot in _RULES
        else ""
    )
    name = f"depot-{number + 1:03}"
    return {"name": name, "parcels": "\n".join(parcels), "codes": "\n".join(codes), "rule": rule}
