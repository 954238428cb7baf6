from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from koderz.errors import Fault
from koderz.models import Model, Price
from koderz.suites import load_suite
from koderz.systems.code.extraction.extraction import extract_program
from koderz.systems.code.simulated import Simulated
from koderz.systems.code.slips import Versions
from koderz.systems.code.tasks import Function
from koderz.types import Completion, Message, Sampling, Task

TASKS = load_suite("humaneval").tasks
COLD = Sampling(temperature=0.0)
FEEDBACK = "That attempt is not right yet.\n\nAssertionError: expected 2, got 1"

JUDGE = """
import json, os, signal, sys
def passes(program):
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        try:
            exec(compile(program, "program", "exec"), {})
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
print(json.dumps([passes(program) for program in json.load(sys.stdin)]))
"""


def asked(task: Task) -> list[Message]:
    prompt = f"Complete the following Python function.\n\n```python\n{task.prompt.rstrip()}\n```\n\nAnswer."
    return [{"role": "system", "content": "You are a programmer."}, {"role": "user", "content": prompt}]


def failed(messages: Sequence[Message], reply: str) -> list[Message]:
    return [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": FEEDBACK}]


def completed(model: Simulated, messages: Sequence[Message], sampling: Sampling = COLD) -> Completion:
    return asyncio.run(model.complete(messages, sampling))


def told(model: Simulated, content: str) -> str:
    return completed(model, [{"role": "user", "content": content}]).text


def judged(programs: Mapping[tuple[str, int], str]) -> dict[tuple[str, int], bool]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", JUDGE], input=json.dumps([*programs.values()]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(programs, json.loads(done.stdout), strict=True))


def with_tests(task: Task, program: str) -> str:
    found = extract_program(program, task.prompt, task.payload.entry_point).program
    return f"{found}\n{task.payload.test}\ncheck({task.payload.entry_point})" if found else "raise SystemExit(1)"


def is_right(task: Task, reply: str) -> bool:
    return judged({("", 0): with_tests(task, reply)})[("", 0)]


def test_simulated_model_satisfies_the_protocol_and_costs_nothing() -> None:
    model: Model = Simulated(TASKS)
    completion = asyncio.run(model.complete(asked(TASKS[0]), COLD))
    assert str(model.name) == "simulated"
    assert model.price() == Price(0.0, 0.0)
    assert (completion.cost, completion.cost_known, completion.model) == (0.0, True, "simulated")
    assert asyncio.run(model.check()) == {"tasks": "164"}
    asyncio.run(model.aclose())


@pytest.mark.slow
def test_simulated_versions_pass_or_fail_as_labelled() -> None:
    some = TASKS[::7]
    versions = {task.id: Versions(task, seed=1) for task in some}
    right = {(t.id, n): with_tests(t, f"```python\n{p}\n```") for t in some for n, p in enumerate(versions[t.id].right)}
    wrong = {(t.id, n): with_tests(t, p) for t in some for n, p in enumerate(versions[t.id].wrong)}
    assert [key for key, passed in judged(right).items() if not passed] == []
    assert sum(judged(wrong).values()) <= 0.05 * len(wrong)


@pytest.mark.slow
def test_simulated_tasks_succeed_at_once_after_feedback_or_never() -> None:
    model = Simulated(TASKS)
    rounds: dict[str, int | None] = {}
    programs: dict[tuple[str, int], str] = {}
    for task in TASKS[:10]:
        messages = asked(task)
        for number in range(7):
            reply = completed(model, messages).text
            programs[task.id, number] = with_tests(task, reply)
            messages = failed(messages, reply)
    for (task_id, number), passed in judged(programs).items():
        rounds[task_id] = rounds.get(task_id) if rounds.get(task_id) is not None or not passed else number
    outcomes = Counter("never" if at is None else "at once" if at == 0 else "fixed" for at in rounds.values())
    assert outcomes.keys() == {"at once", "fixed", "never"}
    assert outcomes["at once"] == 6


def test_seed_determines_replies_in_any_order() -> None:
    messages = [asked(task) for task in TASKS[:20]]
    first = [completed(Simulated(TASKS, seed=4), each) for each in messages]
    model = Simulated(TASKS, seed=4)
    again = [completed(model, each) for each in reversed(messages)]
    assert first == again[::-1]


def test_seed_changes_the_model() -> None:
    messages = [asked(task) for task in TASKS[:20]]
    one, other = Simulated(TASKS, seed=1), Simulated(TASKS, seed=2)
    assert [completed(one, each) for each in messages] != [completed(other, each) for each in messages]


def test_samples_differ_at_a_temperature_above_zero_only() -> None:
    model = Simulated(TASKS)
    cold = {completed(model, asked(TASKS[3]), Sampling(temperature=0.0, seed=n)).text for n in range(8)}
    warm = {completed(model, asked(TASKS[3]), Sampling(temperature=0.8, seed=n)).text for n in range(8)}
    assert len(cold) == 1
    assert len(warm) > 1


@pytest.mark.parametrize(("skill", "right"), [(0.0, False), (1.0, True)])
def test_skill_sets_how_many_tasks_are_right_at_once(skill: float, right: bool) -> None:
    model = Simulated(TASKS, skill=skill)
    programs = {(t.id, 0): with_tests(t, completed(model, asked(t)).text) for t in TASKS[20:40]}
    share = sum(judged(programs).values()) / len(programs)
    assert share == 1.0 if right else share < 0.1


def test_skill_of_1_is_right_at_every_temperature() -> None:
    model = Simulated(TASKS, skill=1.0)
    warm = [completed(model, asked(TASKS[0]), Sampling(temperature=1.0, seed=n)).text for n in range(10)]
    assert all(judged({("", n): with_tests(TASKS[0], reply) for n, reply in enumerate(warm)}).values())


def test_tasks_of_the_same_name_are_told_apart_by_their_prompts() -> None:
    model = Simulated(TASKS, skill=1.0)
    twins = [task for task in TASKS if task.payload.entry_point in ("add", "sort_array", "solve", "is_palindrome")]
    assert len(twins) == 7
    assert all(is_right(task, completed(model, asked(task)).text) for task in twins)


def test_helper_in_a_prompt_is_not_taken_for_the_task() -> None:
    make_palindrome = TASKS[10]
    assert "def is_palindrome" in make_palindrome.prompt
    assert is_right(make_palindrome, completed(Simulated(TASKS, skill=1.0), asked(make_palindrome)).text)


def test_reference_and_prose_prompt_work_like_a_body() -> None:
    tests = "def check(candidate):\n    assert candidate(2) == 4"
    reference = "import math\ndef square(x):\n    return int(math.pow(x, 2))"
    asked = Function("square", tests, reference)
    task = Task("Mbpp/1", "Write a function square to square. assert square(2) == 4", asked)
    reply = told(Simulated([task], skill=1.0), f"Solve this: {task.prompt}")
    assert is_right(task, reply)
    assert not is_right(task, told(Simulated([task], skill=0.0), f"Solve this: {task.prompt}"))


@pytest.mark.parametrize("reference", ["", "no python at all ((", "class Answer:\n    pass\n"])
def test_task_without_a_usable_reference_gets_a_stub(reference: str) -> None:
    payload = replace(TASKS[0].payload, reference=reference)
    task = replace(TASKS[0], payload=payload, prompt="Write has_close_elements(numbers, threshold).")
    assert "has_close_elements" in told(Simulated([task], skill=1.0), task.prompt)


def test_task_that_is_unknown_is_told() -> None:
    assert "simulated model" in told(Simulated(TASKS[:1]), "Write def quite_another_thing(x):")


def test_asked_for_a_specification_or_a_review_it_writes_prose() -> None:
    model = Simulated(TASKS)
    spec = told(model, f"Write a specification for the following Python function.\n\n{TASKS[0].prompt}")
    review = told(model, f"Review the attempts that a programmer made.\n\n{TASKS[0].prompt}")
    assert spec.startswith("Specification of `has_close_elements`")
    assert "closer to each other" in spec
    assert review.startswith("Guidance for `has_close_elements`")
    assert "```" not in spec + review


@pytest.mark.slow
def test_guidance_in_the_prompt_mends_some_tasks() -> None:
    model = Simulated(TASKS)
    plain = {(t.id, 0): with_tests(t, completed(model, asked(t)).text) for t in TASKS[:60]}
    guided = {}
    for task in TASKS[:60]:
        messages = asked(task)
        spec = told(model, f"Write a specification of this:\n{task.prompt}")
        messages[1] = {"role": "user", "content": f"{messages[1]['content']}\n\n{spec}"}
        guided[task.id, 0] = with_tests(task, completed(model, messages).text)
    assert sum(judged(guided).values()) > sum(judged(plain).values())


def test_reply_shapes_are_those_of_real_models() -> None:
    model = Simulated(TASKS)
    replies = [completed(model, asked(task)) for task in TASKS]
    texts = [reply.text for reply in replies]
    assert any(text.startswith("```python") for text in texts)
    assert any("```py\n" in text for text in texts)
    assert any(text.startswith("```\n") for text in texts)
    assert any(text.startswith("Here is") for text in texts)
    assert any("Explanation" in text for text in texts)
    assert any("```" not in text and "def " in text for text in texts)
    assert any("can't" in text and "def " not in text for text in texts)
    thoughts = [reply for reply in replies if reply.reasoning]
    assert thoughts
    assert all((reply.raw or "").startswith("<think>") and "<think>" not in reply.text for reply in thoughts)


@pytest.mark.slow
def test_endless_loops_meet_at_most_1_task_in_100() -> None:
    for seed in range(3):
        model = Simulated(TASKS, seed=seed)
        replies = [completed(model, asked(task)).text for task in TASKS]
        assert sum("while position < 1:" in reply for reply in replies) <= 2


def test_reply_ends_at_its_token_limit_and_before_a_stop_text() -> None:
    model = Simulated(TASKS, skill=1.0)
    whole = completed(model, asked(TASKS[0]))
    short = completed(model, asked(TASKS[0]), replace(COLD, max_tokens=5))
    stopped = completed(model, asked(TASKS[0]), replace(COLD, stop=("\n",)))
    assert (short.text, short.finish_reason) == (whole.text[:20], "length")
    assert (stopped.text, stopped.finish_reason) == (whole.text.partition("\n")[0], "stop")


def test_tokens_are_counted_by_four_characters() -> None:
    completion = completed(Simulated(TASKS), asked(TASKS[0]))
    assert completion.tokens_out == len(completion.raw or completion.text) // 4
    assert completion.tokens_in == sum(len(message["content"]) for message in asked(TASKS[0])) // 4


def test_latency_is_around_its_mean_and_the_same_each_time() -> None:
    model = Simulated(TASKS, latency=0.001)
    seconds = [completed(model, asked(task)).latency for task in TASKS[:50]]
    assert seconds == [completed(model, asked(task)).latency for task in TASKS[:50]]
    assert all(0.0005 <= one <= 0.0015 for one in seconds)
    assert 0.0008 < sum(seconds) / len(seconds) < 0.0012


def test_faults_come_at_their_rate_and_a_retry_can_succeed() -> None:
    model = Simulated(TASKS, fault_rate=0.5)

    async def asked_often() -> list[Completion | BaseException]:
        calls = [model.complete(asked(TASKS[0]), COLD) for _ in range(100)]
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(asked_often())
    faults = [str(outcome) for outcome in outcomes if isinstance(outcome, Fault)]
    assert 15 < len(faults) < 85
    assert faults[0].startswith("simulated fault: ")
    assert len({outcome.text for outcome in outcomes if isinstance(outcome, Completion)}) == 1


def test_simulated_faults_come_on_request_alone() -> None:
    with pytest.raises(Fault):
        completed(Simulated(TASKS, fault_rate=1.0), asked(TASKS[0]))
    assert completed(Simulated(TASKS), asked(TASKS[0])).text
