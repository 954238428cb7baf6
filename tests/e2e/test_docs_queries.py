"""Lines of jq and Python on the README and in docs/ print what the journals of runs hold, each experiment once."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell, servers
from tests.e2e.pages import LOGS, PAGES, READS, ROOT, blocks
from tests.e2e.recorded import (
    ENDS,
    Line,
    Recorded,
    comparable,
    cost,
    json_values,
    make_code_runs,
    make_runs_of_other_systems,
    newest,
    rate,
    recorded,
)
from tests.e2e.test_docs import needs_jq

pytestmark = pytest.mark.slow

Runs = Sequence[Recorded]
DECISION = ("outcome", "a", "b", "tasks", "planned", "difference", "interval", "e_value")
FIVE_SYSTEMS = ("docs/reference/python.md", 1)  # a page, and which of its scripts


@dataclass(frozen=True)
class Results:
    """A folder with runs of each mode and system, and what the script that made one of each system printed."""

    koderz: Shell
    runs: Runs
    printed: str

    @property
    def new(self) -> Runs:
        """Those whose summaries have `arms`."""
        return [run for run in self.runs if not run.is_old]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Results:
    folder = tmp_path_factory.mktemp("queries")
    shutil.copytree(speed, folder / "cache", dirs_exist_ok=True)
    koderz = Shell(folder)
    with servers(folder) as serve:
        make_code_runs(koderz, serve("--model", "gpt-4o-mini", "--model", "gpt-4o"))
    printed = _printed(koderz, [sys.executable, "-c", _script(*FIVE_SYSTEMS)])
    make_runs_of_other_systems(koderz)
    runs = recorded(koderz)
    systems = {line["suite"] for line in (run.plan["config"] for run in runs)}
    assert systems >= {"humaneval", "ruler", "rollouts", "datasets", "koderz-perf-mini"}
    assert {len(run.arms) for run in runs} >= {1, 2, 3, 4}
    assert any(line["kind"] == "fault" for run in runs for line in run.ended)
    again = [Counter(line["experiment_id"] for line in run.lines if line["kind"] in ENDS) for run in runs]
    assert sum(max(each.values()) > 1 for each in again) >= 2, "a run that was retried, and one that was rescored"
    assert any(len(run.experiments) < len(run.judged) for run in runs), "a run with canaries"
    return Results(koderz, runs, printed)


def _printed(koderz: Shell, command: Sequence[str], env: dict[str, str] | None = None) -> str:
    environ = koderz.environment(env)
    done = subprocess.run(command, cwd=koderz.folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- jq


def _dearest(run: Recorded) -> list[str]:
    best = sorted(run.experiments, key=lambda line: -line["cost"])[:5]
    return [f"{line['problem_id']}: ${line['cost']}" for line in best]


def _rates(run: Recorded) -> list[str]:
    return [f"{name}: {rate(own) if own else 'nothing judged'}" for name, own in run.arms.items()]


def _decisions(run: Recorded) -> list[dict[str, Any]]:
    return [{key: line[key] for key in DECISION} for line in run.lines if line["kind"] == "decision"]


def _successes(run: Recorded) -> list[int]:
    return [sum(line["success"] for line in own) for own in run.arms.values()]


QUERIES: dict[str, Callable[[Results], list[Any]]] = {
    "jq '.arms[]?.results[] | select(.success == false) | .problem_id' benchmark_results/bench_*.json": lambda found: [
        task for run in found.new for task in run.failed
    ],
    "jq '(.results // (.arms // {zero_shot, iterative} | map(.results[])))[] | select(.success == false) | .problem_id'"
    " benchmark_results/bench_*.json": lambda found: [task for run in found.runs for task in run.failed],
    "jq -s '[.[].arms[]?.results[].cost] | add' benchmark_results/bench_*.json": lambda found: [
        cost(line for run in found.new for line in run.experiments)
    ],
    "jq -r '[.arms[]?.results[]] | sort_by(-.cost) | .[:5][] | \"\\(.problem_id): $\\(.cost)\"'"
    " benchmark_results/bench_*.json": lambda found: [line for run in found.new for line in _dearest(run)],
    'jq -r \'.arms // {} | to_entries[] | "\\(.key): \\(.value.summary.success_rate // "nothing judged")"\''
    " benchmark_results/bench_*.json": lambda found: [line for run in found.new for line in _rates(run)],
    "jq '.arms[]?.summary.successes' benchmark_results/bench_*.json": lambda found: [
        count for run in found.new for count in _successes(run)
    ],
    "jq '.decision // empty | (.arms // [.])[] | {outcome, a, b, tasks, planned, difference, interval, e_value}'"
    " benchmark_results/bench_*.json": lambda found: [each for run in found.runs for each in _decisions(run)],
    "jq .letters benchmark_results/bench_*.json": lambda found: [None for _ in found.runs],  # of a system of one's own
    "jq '[.arms[] | .summary | .success_rate_bounds[0] // .success_rate // 0] | min | floor' latest.json": (
        lambda found: [math.floor(min(rate(own) for own in _without_faults(found).arms.values()))]
    ),
}
"""Each jq line that is published, as it stands there, and what it has to print."""


def _without_faults(results: Results) -> Recorded:
    """A run of code without faults, since runs are in the order of their ids, which is any."""
    of_code = [run for run in results.new if run.plan["config"]["suite"] == "humaneval"]
    return next(run for run in of_code if all(line["kind"] != "fault" for line in run.ended))


def _published() -> set[str]:
    """Every jq line in a page, a recipe or a docstring: a command of its own, or within one."""
    files = [
        path
        for name in ("docs", "deploy", "koderz", "koderz_tracker", "benchmark_results")
        for path in (ROOT / name).rglob("*.*")
        if path.suffix in (".md", ".yml", ".yaml", ".py", ".sh", ".txt", ".toml")
    ]
    texts = [path.read_text(encoding="utf-8") for path in (*files, *ROOT.glob("*.md"))]
    found = re.compile(r"(?:^ *(?:\$ )?|\| |\$\(|`)(jq [-.'\"].*?)(?:`|\) -lt.*)?$", re.MULTILINE)
    return {line.strip() for text in texts for line in found.findall(text.replace("\\\n", " "))}


@needs_jq
def test_documented_jq_lines_print_what_the_journals_hold(results: Results) -> None:
    assert _published() == set(QUERIES), "a jq line that is published needs its answer here, and the other way round"
    shutil.copy(_without_faults(results).path, results.koderz.folder / "latest.json")

    for line, answer in QUERIES.items():
        printed = _printed(results.koderz, ["bash", "-c", line])
        found = [*json_values(printed)] if " -r " not in line else printed.splitlines()
        assert [*map(comparable, found)] == [*map(comparable, answer(results))], line


@needs_jq
def test_documented_gate_takes_the_worst_arm_of_any_run(results: Results) -> None:
    (script,) = (block.text for block in blocks("docs/ci/README.md") if block.language == "bash")

    for run in results.new:
        shutil.copy(run.path, results.koderz.folder / "latest.json")
        done = subprocess.run(["bash", "-c", script], cwd=results.koderz.folder, capture_output=True, text=True)
        passes = min(rate(own) for own in run.arms.values()) >= 85
        assert (done.returncode, done.stderr) == (0 if passes else 1, ""), run.plan["mode"]


# --- Python, over the runs that there are


def _scripts(page: str) -> list[str]:
    return [block.text for block in blocks(page) if block.language == "python" and READS.search(block.text)]


def _script(page: str, number: int) -> str:
    return _scripts(page)[number]


def _without_koderz(results: Results, script: str) -> None:
    rates: defaultdict[str, list[float]] = defaultdict(list)
    failures: Counter[str] = Counter()
    for run in results.runs:
        for own in run.arms.values():
            failures.update(line["problem_id"] for line in own if not line["success"])
            if own:
                rates[own[0]["model"]].append(rate(own))

    text = script.replace("print(dict(rates), failures.most_common(5))", "print(json.dumps([rates, failures]))")
    assert text != script
    printed = json.loads(_printed(results.koderz, [sys.executable, "-c", text]))

    assert {model: sorted(each) for model, each in printed[0].items()} == {
        model: pytest.approx(sorted(each)) for model, each in rates.items()
    }
    assert printed[1] == failures


def _by_solver(results: Results) -> dict[str, list[Line]]:
    """The experiments of every run by model and solver."""
    found: defaultdict[str, list[Line]] = defaultdict(list)
    for run in results.runs:
        for line in run.experiments:
            found[f"{line['model']} {line['solver']}"].append(line)
    return found


def _over_time(results: Results, script: str) -> None:
    by_model, over_time, by_task = _frames(
        results, script, "by_model", "over_time", 'frame.groupby("problem_id")["success"].mean().to_frame()'
    )
    truth, tasks = _by_solver(results), defaultdict(list)
    for line in (line for run in results.runs for line in run.experiments):
        tasks[line["problem_id"]].append(line)

    for name, own in truth.items():
        assert by_model[name]["experiments"] == len(own)
        assert by_model[name]["success_rate"] == pytest.approx(rate(own) / 100)
        assert by_model[name]["cost"] == pytest.approx(cost(own) / len(own))
        assert by_model[name]["iterations"] == pytest.approx(sum(line["iterations"] for line in own) / len(own))
        days = [row for key, row in over_time.items() if key.startswith(f"{name} 20")]
        assert sum(row["size"] for row in days) == len(own)
        assert sum(row["size"] * row["mean"] for row in days) == pytest.approx(sum(line["success"] for line in own))
    assert by_model.keys() == truth.keys()
    assert {task: row["success"] for task, row in by_task.items()} == {
        task: pytest.approx(rate(own) / 100) for task, own in tasks.items()
    }


def _cost_per_solution(results: Results, script: str) -> None:
    (totals,) = _frames(results, script, "totals")
    truth = _by_solver(results)

    assert totals.keys() == truth.keys()
    for name, own in truth.items():
        solved = sum(line["success"] for line in own)
        assert totals[name]["solved"] == solved
        assert totals[name]["cost"] == pytest.approx(cost(own))
        each = cost(own) / solved if solved else None
        assert totals[name]["cost_per_solution"] == (each if each is None else pytest.approx(each))


def _frames(results: Results, script: str, *frames: str) -> list[dict[str, dict[str, Any]]]:
    """The rows of data frames that a script leaves, each by the words of its index."""
    more = "\n".join(
        f"of = {frame}\n"
        "of.index = [key if isinstance(key, str) else ' '.join(map(str, key)) for key in of.index]\n"
        "print(of.to_json(orient='index', double_precision=15))"
        for frame in frames
    )
    printed = _printed(results.koderz, [sys.executable, "-c", f"{script}\n{more}"]).splitlines()
    return [json.loads(line) for line in printed[-len(frames) :]]


def _one_of_each_system(results: Results, script: str) -> None:
    del script  # it has made some of the runs
    found = {run.path.stem: run for run in results.runs}
    names = re.findall(r"^(\w[\w ]*) (bench_\w+) (\w+)$", results.printed, re.MULTILINE)
    assert [name for name, _, _ in names] == ["code", "long context", "rollouts", "optimizers", "performance"]
    own = [found[run_id] for _, run_id, _ in names]

    shown = re.findall(r"^  (.*?) (\w+) (None|[\d.]+) (?:None|\{.*\})$", results.printed, re.MULTILINE)

    assert [(words, verdict, None if score == "None" else float(score)) for words, verdict, score in shown] == [
        (f"{line['arm']} {line['problem_id']}", line["verdict"], _score(run, line))
        for run in own
        for line in run.experiments
    ]


def _score(run: Recorded, line: Line) -> float | None:
    """The score of an experiment: that of the initial prompt where an optimizer kept it."""
    score: float | None = (run.arms["none"][0] if line["verdict"] == "kept" else line)["score"]
    return score


def _compared_arms(results: Results, script: str) -> None:
    modes = [run.plan["mode"] for run in results.runs if len(run.arms) > 1 and run.plan["mode"] != "perf"]
    marked = script.replace("run.mode, koderz", "run.mode, koderz.compare(path).pairs, koderz")
    assert marked != script

    printed = _printed(results.koderz, [sys.executable, "-c", marked]).splitlines()

    assert [line.partition(" ")[0] for line in printed if re.match(r"\S+ \d+ ", line)] == modes


def _newest_by_time(results: Results, script: str) -> None:
    """For each run alone: the script takes that whose file is the newest."""
    text = script.replace(
        'max(Path("benchmark_results").glob("bench_*.json"), key=lambda path: path.stat().st_mtime)',
        "Path(sys.argv[1])",
    ).replace("import json", "import json, sys")
    assert "sys.argv" in text
    for run in results.new:
        seconds = json.loads(run.path.read_text())["duration_seconds"]
        walls = [(line["metrics"] or {}).get("wall", 0) for line in run.experiments]
        printed = _printed(results.koderz, [sys.executable, "-c", text, str(run.path)]).splitlines()
        found = dict(line.rsplit(" ", 1) for line in printed[:3])
        assert {name: float(value) for name, value in found.items()} == {
            "tasks at once": round(sum(line["duration_seconds"] for line in run.experiments) / seconds, 1),
            "calls at once": round(sum(line["latency"] for line in run.experiments) / seconds, 1),
            "programs at once": round(sum(walls) / seconds, 2),
        }
        assert printed[3].startswith("refused for load {")


def _mean_of_a_task(results: Results, script: str) -> None:
    run = max((run for run in results.runs if run.plan["mode"] == "rollouts"), key=lambda run: run.plan["time"])
    scores = [line["score"] for line in run.experiments if line["problem_id"] == "sample/slugs"]

    assert float(_printed(results.koderz, [sys.executable, "-c", script])) == pytest.approx(sum(scores) / len(scores))


OVER_RUNS: dict[tuple[str, int], Callable[[Results, str], None]] = {
    FIVE_SYSTEMS: _one_of_each_system,
    ("docs/how-to/query-results.md", 0): _without_koderz,
    ("docs/how-to/query-results.md", 2): _over_time,
    ("docs/how-to/query-results.md", 3): _cost_per_solution,
    ("docs/reference/python.md", 2): _compared_arms,
    ("docs/rollouts/guide.md", 0): _mean_of_a_task,
    ("docs/why-slow.md", 0): _newest_by_time,
}
"""Each script that reads the runs that there are, by its page and which of the page's it is."""


@pytest.mark.parametrize(("page", "number"), OVER_RUNS)
def test_documented_scripts_count_each_experiment_once(results: Results, page: str, number: int) -> None:
    OVER_RUNS[page, number](results, _script(page, number))


# --- Python, over runs that the script makes itself, or over two


def _two_newest(koderz: Shell, script: str) -> None:
    runs = []
    for mode in ("zero-shot", "iterative"):
        koderz("benchmark", 0, 6, "--mode", mode, "--model", "simulated", "--quiet")
        runs.append(newest(koderz))
    passed = [{line["problem_id"] for line in run.experiments if line["success"]} for run in runs]

    printed = _printed(koderz, [sys.executable, "-c", script]).splitlines()

    pairs, difference, _ = printed[1].split(" ", 2)
    assert pairs == "6"
    assert float(difference) == pytest.approx(100 * (len(passed[1]) - len(passed[0])) / 6)
    assert printed[1].endswith(f"{sorted(passed[0] - passed[1])} {sorted(passed[1] - passed[0])}")


def _improvement(koderz: Shell, script: str) -> None:
    printed = _printed(koderz, [sys.executable, "-c", script])
    before, after = newest(koderz).arms.values()
    n, share = len(after), sum(line["success"] for line in after) / len(after)
    middle, half = share + 1.9599640**2 / 2 / n, 1.9599640 * math.sqrt(share * (1 - share) / n + 0.9799820**2 / n**2)
    ends = [100 * (middle + sign * half) / (1 + 1.9599640**2 / n) for sign in (-1, 1)]  # Wilson (1927)

    improvement, interval = printed.split(" ", 1)

    assert float(improvement) == pytest.approx(rate(after) - rate(before))
    assert json.loads(interval.replace("(", "[").replace(")", "]")) == pytest.approx(ends)


def _rate_and_rescored(koderz: Shell, script: str) -> None:
    printed = _printed(koderz, [sys.executable, "-c", script]).split()
    (run,) = recorded(koderz)

    assert (
        Counter(line["experiment_id"] for line in run.lines if line["kind"] == "experiment").most_common(1)[0][1] == 2
    )
    assert printed[0] == run.path.stem
    assert float(printed[1]) == pytest.approx(rate(run.experiments))
    assert len(run.experiments) == 4


def _rate_on_a_loopback_server(koderz: Shell, script: str) -> None:
    printed = _printed(koderz, [sys.executable, "-c", script])

    assert float(printed.split()[0]) == pytest.approx(rate(newest(koderz).experiments))


def _rate_by_routes(koderz: Shell, script: str) -> None:
    printed = _printed(koderz, [sys.executable, "-c", script])

    experiments = newest(koderz).experiments
    assert printed == f"{rate(experiments)} {len(experiments)} Bearer sk-test\n"


def _arms_of_a_run(koderz: Shell, script: str) -> None:
    (careful,) = (block for block in blocks("docs/reference/python.md") if block.title == "careful.py")
    (koderz.folder / careful.title).write_text(careful.text)

    printed = _printed(koderz, [sys.executable, "-c", script])

    run = newest(koderz)
    assert printed == f"{run.path.stem} {list(run.arms)}\n"


def _accuracy(koderz: Shell, script: str) -> None:
    printed = _printed(koderz, [sys.executable, "-c", script])
    run = min(recorded(koderz), key=lambda run: run.plan["time"])
    scores = [line["score"] for line in run.experiments]

    assert len(scores) == 2
    assert re.search(r"^(\d\.\d\d) [\d.]+$", printed, re.MULTILINE)[1] == f"{sum(scores) / len(scores):.2f}"  # type: ignore[index]


OWN_RUNS: dict[tuple[str, int], Callable[[Shell, str], None]] = {
    ("README.md", 0): _improvement,
    ("docs/how-to/query-results.md", 1): _two_newest,
    ("docs/how-to/testing.md", 0): _rate_on_a_loopback_server,
    ("docs/how-to/testing.md", 1): _rate_by_routes,
    ("docs/long-context/guide.md", 1): _accuracy,
    ("docs/reference/python.md", 0): _rate_and_rescored,
    ("docs/reference/python.md", 3): _arms_of_a_run,
}


@pytest.mark.parametrize(("page", "number"), OWN_RUNS)
def test_documented_scripts_print_what_the_journals_of_their_runs_hold(koderz: Shell, page: str, number: int) -> None:
    OWN_RUNS[page, number](koderz, _script(page, number))


# --- Python, over the other sinks


def _memories(results: Results, script: str) -> None:
    printed = Counter(_printed(results.koderz, [sys.executable, "-c", script]).splitlines())
    text = script.replace(", limit=3", "")
    whole = Counter(_printed(results.koderz, [sys.executable, "-c", text]).splitlines())
    runs = [run for run in results.new if run.judged or run.ended]

    assert whole == Counter(
        [
            *(f"Benchmark Run {run.path.stem} critical" for run in runs),
            *(f"{line['problem_id']} {line['success']}" for run in runs for line in run.judged),
        ]
    )
    assert printed.total() == len(runs) + 3
    assert printed <= whole


def _evaluation_runs(results: Results, script: str) -> None:
    printed = _printed(results.koderz, [sys.executable, "-W", "ignore", "-c", script]).splitlines()
    rows = [line.rsplit(" ", 2) for line in printed]
    truth = [
        (name if len(run.arms) > 1 else "None", rate(own) / 100, cost(own))
        for run in results.new
        for name, own in run.arms.items()
        if own and run.plan["mode"] != "optimize"  # where nothing passes, as the page says
    ]

    assert sorted((name, round(float(mean), 6), round(float(paid), 9)) for name, mean, paid in rows) == sorted(
        (name, round(mean, 6), round(paid, 9)) for name, mean, paid in truth
    )


def _spans(results: Results, script: str) -> None:
    printed = _printed(results.koderz, [sys.executable, "-W", "ignore", "-c", script]).splitlines()
    task, _, arm = printed[0].partition(" · ")
    calls = [
        sum(each["kind"] == "call" and each["experiment_id"] == line["experiment_id"] for each in run.lines)
        for run in results.new
        for line in run.experiments
        if (line["problem_id"], line["arm"]) == (task, arm)
    ]

    assert sum(line.strip().startswith("simulated · ") for line in printed) in calls


OVER_SINKS: dict[tuple[str, int], Callable[[Results, str], None]] = {
    ("docs/how-to/memory.md", 0): _memories,
    ("docs/how-to/mlflow.md", 0): _evaluation_runs,
    ("docs/long-context/guide.md", 0): _spans,
}


def test_documented_scripts_on_sinks_count_each_experiment_once(results: Results) -> None:
    patience = {"KODERZ_SINK_PATIENCE": "600"}  # a busy machine takes minutes to set up MLflow's database
    results.koderz("sync", "--sink", "memory", "--sink", "mlflow", "--quiet", env=patience)

    for (page, number), check in OVER_SINKS.items():
        check(results, _script(page, number))


def test_documented_scripts_that_read_results_are_all_tried() -> None:
    tried = {**OVER_RUNS, **OWN_RUNS, **OVER_SINKS}
    own = [page for page in PAGES if page != LOGS]  # whose figures are those of the logs' tests

    assert {(page, number) for page in own for number in range(len(_scripts(page)))} == tried.keys()
