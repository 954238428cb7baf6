"""What ends a rollout is a verdict on the model or a fault of something else, row by row of one table.

Each row says what happened; its test shows the verdict or the fault, whether the diff is graded or kept, the exit
code, and what `koderz benchmark retry` does: an agent that came to its end never runs again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import Done, Shell
from tests.koderz.systems.workspaces.test_docker import STAND_IN
from tests.scripted_model import COMMAND, ScriptedModel, scripted_model

pytestmark = pytest.mark.slow

OUT_OF_CONTEXT = {"status": 400, "message": "This model's maximum context length is 4096 tokens"}
HOG = (
    "import subprocess, sys, time\n"
    "if len(sys.argv) < 2:\n    [subprocess.Popen([sys.executable, 'hog.py', 'x']) for _ in range(4)]\n"
    "held = b'x' * (90 << 20)\ntime.sleep(1000)\n"
)


@dataclass
class Case:
    """What is set up for a row: a task, an agent, and how its model answers."""

    koderz: Shell
    model: ScriptedModel
    task: str = "greeting"
    script: str = ""  # of the agent; empty: koderz' own agent, which asks the model
    options: list[object] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    mended: Callable[[], None] = lambda: None  # what takes the cause of a fault away

    def write(self, path: str, text: str) -> Path:
        """A file of the task's."""
        place = self.koderz.folder / "tasks" / self.task / path
        place.write_text(text)
        return place

    def run(self, code: int) -> Done:
        agent = "koderz"
        if self.script:
            agent = "scripted"
            (self.koderz.folder / "agent.sh").write_text(self.script)
            self.options += ["--script", "agent.sh"]
        own = ("--suite", "rollouts", "--dataset", f"tasks/{self.task}", "--solver", f"agent:{agent}")
        model = ("--model", "openai/m", "--max-retries", 1, "--quiet")
        if "--sandbox" not in self.options:
            self.options += ["--sandbox", "local"]
        return self.koderz("benchmark", 0, 1, *own, *model, *self.options, code=code, env=self._environment)

    def again(self, how: str, *options: object, code: int = 0) -> None:
        self.koderz("benchmark", how, "latest", "--quiet", *options, code=code, env=self._environment)

    @property
    def _environment(self) -> dict[str, str]:
        return {**self.model.env(), **self.env}

    def count(self, kind: str, name: str = "") -> int:
        """Lines of the journal."""
        return sum(line["kind"] == kind and name in ("", line.get("name")) for line in self.koderz.journal())

    @property
    def work(self) -> tuple[int, int]:
        """Calls that were made, and agents that came to their end."""
        return len(self.model.asked), self.count("once", "agent")


@pytest.fixture
def case(koderz: Shell) -> Iterator[Case]:
    koderz("rollouts", "sample", "tasks")
    (koderz.folder / "koderz.toml").write_text('[prices."openai/m"]\ninput = 1.0\noutput = 2.0\n')
    with scripted_model() as model:
        yield Case(koderz, model)


def _slow(case: Case) -> None:
    case.script, case.options = f"{COMMAND}; sleep 1000\n", ["--agent-timeout", 3]


def _slow_and_wrong(case: Case) -> None:
    case.script, case.options = "sleep 1000\n", ["--agent-timeout", 2]


def _out_of_context(case: Case) -> None:
    case.model.last = OUT_OF_CONTEXT


def _out_of_context_by_the_bridge(case: Case) -> None:
    body = '{"messages": [{"role": "user", "content": "hi"}]}'
    case.script = (
        f"{COMMAND}; curl -s -H \"x-api-key: $KODERZ_BRIDGE_TOKEN\" -d '{body}' "
        "$KODERZ_BRIDGE_URL/v1/chat/completions | grep -q 'maximum context'\n"
    )
    case.model.last = OUT_OF_CONTEXT


def _out_of_output(case: Case) -> None:
    case.model.last = {"finish_reason": "length"}


def _refusal(case: Case) -> None:
    case.model.last = {"finish_reason": "content_filter"}
    case.model.commands = ["true"]


def _exit_7(case: Case) -> None:
    case.script = f"{COMMAND}; exit 7\n"


def _exit_7_and_wrong(case: Case) -> None:
    case.script = "exit 7\n"


def _own_memory(case: Case) -> None:
    case.script = f"{COMMAND}; cat > hog.py <<'END'\n{HOG}END\npython3 hog.py\n"
    case.options = ["--agent-memory", 256]


def _own_processes(case: Case) -> None:
    case.script = f"{COMMAND}; for i in $(seq 2000); do sleep 1000 & done; wait\n"


def _script_over_its_time(case: Case) -> None:
    case.task = "median"
    meta = json.loads((case.koderz.folder / "tasks/median/tb_meta.json").read_text())
    for script in meta["evaluation"]["test_scripts"]:
        script["timeout_sec"] = 2 if "even" in script["path"] else 60
    case.write("tb_meta.json", json.dumps(meta))
    endless = "s/ordered = .*/&\\n    while len(values) % 2 == 0:\\n        pass/"
    case.script = f"sed -i '{endless}' numbers_summary.py\n"


VERDICTS = {
    "agent's time spent": (_slow, "passed", "agent_timeout"),
    "agent's time spent, tests fail": (_slow_and_wrong, "timeout", "agent_timeout"),
    "agent's context spent": (_out_of_context, "passed", "length"),
    "agent's context spent, by the bridge": (_out_of_context_by_the_bridge, "passed", "length"),
    "agent's output limit spent": (_out_of_output, "passed", "length"),
    "refusal by the model": (_refusal, "failed", "refused"),
    "agent exits non-zero by itself": (_exit_7, "passed", ""),
    "agent exits non-zero by itself, tests fail": (_exit_7_and_wrong, "failed", "tests"),
    "agent killed for its own memory": (_own_memory, "passed", "memory"),
    "agent killed for its own process limit": (_own_processes, "passed", "memory"),
    "one test script over its limit": (_script_over_its_time, "failed", "timeout"),
}


@pytest.mark.parametrize(("happens", "verdict", "cause"), VERDICTS.values(), ids=VERDICTS)
def test_policy_grades_a_verdict_and_does_not_retry_it(
    case: Case, happens: Callable[[Case], None], verdict: str, cause: str
) -> None:
    happens(case)
    case.run(0)
    for how in ("", "retry", "rescore"):
        before = case.work
        if how:
            case.again(how)
        (result,) = case.koderz.summary()["results"]
        assert (result["verdict"], result["cause"]) == (verdict, cause), how
        assert result["success"] is (verdict == "passed")
        assert happens is not _script_over_its_time or result["score"] == pytest.approx(0.3)  # the others passed
        assert case.koderz.summary()["faults"] == []
        assert not how or case.work == before
    shown = case.koderz("benchmark", "show", "latest", "--problem", f"sample/{case.task}")
    graded = case.koderz(
        *("benchmark", "show", "latest", "--problem", f"sample/{case.task}", "--artifact", "evaluation_results.json")
    )
    assert json.loads(graded.out)["test_results"], shown.out


def test_isolation_is_told_and_recorded_of_what_contains_the_commands(case: Case) -> None:
    """The root of an environment is made by koderz' own namespaces, also where bubblewrap is."""
    case.script = f"{COMMAND}\n"
    told = case.run(0).err
    recorded = [line["sandbox"] for line in case.koderz.journal() if line["kind"] == "attempt"]
    assert "run in the sandbox local: namespaces" in told
    assert [each.partition("+")[0] for each in recorded] == ["namespaces"]
    assert "bubblewrap" not in f"{told} {recorded}"


@pytest.mark.parametrize(
    "makes", ["rm README.md; mkfifo README.md", "mkdir -p sub; ln -s ../.git sub/.git", "touch 'git~1'"]
)
def test_tampering_that_makes_git_fail_is_no_fault(case: Case, makes: str) -> None:
    case.script = f"echo x > README.md; {makes}\n"
    (case.koderz.folder / "tasks/greeting/environment/README.md").write_text("read\n")
    dockerfile = case.koderz.folder / "tasks/greeting/environment/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "COPY README.md ./\n")
    case.run(0)
    for how in ("", "rescore"):
        if how:
            case.again(how)
        (result,) = case.koderz.summary()["results"]
        assert (result["verdict"], result["cause"]) == ("failed", "tests")
        shown = ("benchmark", "show", "latest", "--problem", "sample/greeting", "--artifact", "evaluation_results.json")
        (tampering,) = json.loads(case.koderz(*shown).out)["tampering"]
        assert tampering.partition(":")[0] in makes


def test_diff_above_the_limit_is_an_error_that_is_cut_and_not_graded(case: Case) -> None:
    case.script = f"{COMMAND}; head -c 2000000 /dev/urandom | base64 > large.txt\n"
    case.options = ["--max-diff-mb", 1]
    case.run(0)
    (result,) = case.koderz.summary()["results"]
    assert (result["verdict"], result["cause"], result["success"]) == ("error", "diff_too_large", False)
    assert case.count("once", "diff") == 1
    assert case.count("grade") == case.count("attempt") == 0
    before = case.work
    case.again("retry")
    assert case.work == before


def test_cost_cap_of_the_run_stops_it_and_is_resumed(case: Case) -> None:
    case.options = ["--max-cost", 0.0012, "--max-tokens", 10]
    case.run(3)
    summary = case.koderz.summary()
    assert (summary["status"], summary["results"], summary["faults"]) == ("stopped", [], [])
    assert case.work[0] == 1
    assert case.count("attempt") == 0
    case.again("resume", "--max-cost", 1)
    assert case.koderz.summary()["results"][0]["success"]
    assert case.work[0] == 2


def _status(status: int) -> Callable[[Case], None]:
    def happens(case: Case) -> None:
        case.model.last = {"status": status}
        case.mended = case.model.last.clear

    return happens


def _connection(case: Case) -> None:
    """The server is gone after its first reply."""
    case.model.last = {"status": 0}
    case.mended = case.model.last.clear


def _sandbox_start(case: Case) -> None:
    """Folders for temporary files have names that overlayfs doesn't take: together they have more than 4,096 bytes."""
    place = case.koderz.folder.joinpath(*("t" * 200 for _ in range(10)))
    place.mkdir(parents=True)
    case.env = {"TMPDIR": str(place)}
    case.mended = case.env.clear


def _image_build(case: Case) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("the stand-in for docker runs bubblewrap, which isn't installed")
    folder = case.koderz.folder
    state = folder / "docker"
    state.mkdir()
    (folder / "bin").mkdir()
    stand_in = STAND_IN.format(python=os.path.realpath(sys.executable), state=str(state), inspected="false ")
    broken = f'case ["build", *_] if pathlib.Path({str(state)!r}, "broken").exists():\n        sys.exit("no")\n    '
    (folder / "bin/docker").write_text(stand_in.replace('case ["build"', broken + 'case ["build"', 1))
    (folder / "bin/docker").chmod(0o755)
    (state / "broken").touch()
    case.env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    case.options = ["--sandbox", "docker"]
    case.mended = (state / "broken").unlink


FAULTS = {
    "provider 429": (_status(429), "429", True),
    "provider 503": (_status(503), "503", True),
    "connection to the provider": (_connection, "", True),
    "sandbox start": (_sandbox_start, "sandbox", False),
    "image build": (_image_build, "docker build", False),
}


@pytest.mark.parametrize(("happens", "reason", "has_diff"), FAULTS.values(), ids=FAULTS)
def test_policy_retries_a_fault(case: Case, happens: Callable[[Case], None], reason: str, has_diff: bool) -> None:
    happens(case)
    case.run(3)
    (fault,) = case.koderz.summary()["faults"]
    assert reason in fault["reason"]
    assert case.koderz.summary()["results"] == []
    assert case.koderz.summary()["summary"]["success_rate"] is None
    assert case.count("attempt") == 0
    diffs = [line["value"]["diff"] for line in case.koderz.journal() if line.get("name") == "diff"]
    assert any("+Hello, Ada!" in diff for diff in diffs) is has_diff
    asked = case.count("call")
    case.mended()
    case.again("retry")
    assert case.koderz.summary()["results"][0]["success"]
    assert asked == 1
    assert case.count("call") == 2  # none of which was paid for twice


@pytest.mark.parametrize("status", [401, 404], ids=["bad key", "unknown model"])
def test_policy_ends_at_a_fatal_fault(case: Case, status: int) -> None:
    case.model.status = status
    case.run(4)
    assert len(case.model.asked) == 1
    assert case.koderz.summary()["results"] == []
    assert case.count("attempt") == 0


def _verifier(line: str, seconds: int = 60) -> Callable[[Case], None]:
    def happens(case: Case) -> None:
        case.script = f"{COMMAND}\n"
        case.write("tests/test.sh", f"{line}\n")
        task = case.koderz.folder / "tasks/greeting/task.toml"
        task.write_text(task.read_text().replace("timeout_sec = 60\n", f"timeout_sec = {seconds}\n"))

    return happens


_REWARD = "> /logs/verifier/reward"
OF_VERIFIERS = {
    "verifier timeout": _verifier("sleep 1000", 2),
    "no reward": _verifier("true"),
    "empty reward": _verifier(f": {_REWARD}.txt"),
    "non-numeric reward": _verifier(f"echo passed {_REWARD}.txt"),
    "reward that is no finite number": _verifier(f"echo '{{\"reward\": NaN}}' {_REWARD}.json"),
    "reward that is a link": _verifier(f"echo 1 > /tmp/r; ln -s /tmp/r {_REWARD[2:]}.txt"),
    "reward that is a pipe": _verifier(f"mkfifo {_REWARD[2:]}.txt"),
    "reward of a gigabyte": _verifier(f"echo 1 {_REWARD}.txt; truncate -s 1G {_REWARD[2:]}.txt"),
}


@pytest.mark.parametrize("happens", OF_VERIFIERS.values(), ids=OF_VERIFIERS)
def test_verifier_fault_is_retried_without_running_the_agent_again(case: Case, happens: Callable[[Case], None]) -> None:
    happens(case)
    case.run(3)
    assert case.work == (0, 1)
    (fault,) = case.koderz.summary()["faults"]
    assert "verifier" in fault["reason"]
    case.again("retry", code=3)
    assert case.work == (0, 1)
    assert any(line.get("name") == "diff" and "+Hello" in line["value"]["diff"] for line in case.koderz.journal())
    case.write("tests/test.sh", f"echo 1 {_REWARD}.txt\n")
    case.again("retry", "--accept-changes")
    assert case.koderz.summary()["results"][0]["success"]
    assert case.work == (0, 1)
