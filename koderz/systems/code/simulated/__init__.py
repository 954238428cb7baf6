"""The simulated model, which answers a suite's tasks plausibly, at no cost and with nothing to install."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

import orjson

from koderz.models.simulated import SimulatedReplies
from koderz.systems.code.simulated import wording
from koderz.systems.code.simulated.conversation import TaskIndex, failures_shown, guidance_given, wanted
from koderz.systems.code.simulated.slips import Versions
from koderz.systems.code.tasks import CodeTask
from koderz.types import Message, Sampling

GUIDANCE = 0.08  # how much a specification, or a review, adds to the skill
MENDABLE = 0.65  # of the tasks that go wrong at first, how many feedback can mend
ROUNDS = 5  # the most rounds of feedback that a mendable task needs
LUCK = 0.15  # chance a round that feedback mends a mendable task before its time
VARIETY = 0.6  # how far temperature 1 moves a task between easy and hard
ENDLESS = 0.01  # of all tasks, how many may meet a first answer that never ends
SALT = "tasks 2287"  # chosen so that, with seed 0, the first ten tasks of HumanEval show every outcome


class Simulated(SimulatedReplies):
    """A model made of the tasks' own references: right, or wrong by a slip that a model could make.

    A reply is a pure function of the tasks, `seed`, the messages and, where the temperature is above 0,
    the sampling seed: nothing is remembered from one call to the next, so a run that was killed and
    resumed meets the same model. Some tasks are answered right at once (about the share `skill`), some
    after one or more rounds of feedback, some never; a specification or a review in the prompt helps.

    `latency` is the mean of the seconds that a reply takes, each between half and one and a half of it.
    """

    def __init__(
        self,
        tasks: Sequence[CodeTask],
        *,
        seed: int = 0,
        skill: float = 0.6,
        latency: float = 0.0,
        fault_rate: float = 0.0,
    ) -> None:
        super().__init__(self._reply, latency=latency, fault_rate=fault_rate)
        self._tasks = len(tasks)
        self._index = TaskIndex(tasks)
        self._versions: dict[str, Versions] = {}  # follow from task and seed alone
        self._seed, self._skill = seed, skill

    def delay(self, messages: Sequence[Message], sampling: Sampling) -> float:
        return self._latency * (0.5 + self._draws(messages, sampling)[0])

    async def check(self) -> dict[str, str]:
        """The number of tasks that it can answer."""
        return {"tasks": str(self._tasks)}

    def _draws(self, messages: Sequence[Message], sampling: Sampling) -> Sequence[float]:
        varied = sampling.seed if sampling.temperature else None
        return _draws([self._seed, varied, messages])

    def _reply(self, messages: Sequence[Message], sampling: Sampling) -> str:
        draws = self._draws(messages, sampling)
        task, wants = self._index.find(messages), wanted(messages)
        if wants != "code":
            return wording.specification(task) if wants == "specification" else wording.review(task)
        if task is None:
            return wording.unrecognised()
        versions = self._versions.setdefault(task.id, Versions(task, seed=self._seed))
        if versions.right and self._is_right(task, messages, sampling, draws):
            return wording.reply_with(_pick(versions.right, draws[1]), task.payload.entry_point, draws[2])
        return self._wrong_reply(task, versions, failures_shown(messages), draws)

    def _is_right(
        self, task: CodeTask, messages: Sequence[Message], sampling: Sampling, draws: Sequence[float]
    ) -> bool:
        skill = min(1.0, self._skill + GUIDANCE * guidance_given(messages))
        mendable = (1 - skill) * MENDABLE
        hardness = self._task_draws(task)[0]
        never = hardness >= skill + mendable
        hardness = _varied(hardness, sampling, draws[3])
        if hardness < skill or never:
            return hardness < skill
        shown = failures_shown(messages)
        return shown > ROUNDS * (hardness - skill) / mendable or (shown > 0 and draws[4] < LUCK)

    def _wrong_reply(self, task: CodeTask, versions: Versions, shown: int, draws: Sequence[float]) -> str:
        if shown == 0 and self._task_draws(task)[1] < ENDLESS:
            return wording.reply_with(versions.endless, task.payload.entry_point, draws[2])
        if draws[5] < 0.03:
            return _pick(wording.REFUSALS, draws[2])
        if draws[5] < 0.05:
            return wording.without_code(task.payload.entry_point)
        program = _pick(versions.wrong, draws[6])
        if draws[5] < 0.09:
            program = program.replace(":\n", "\n", 1)  # a syntax error in its first line
        elif draws[5] < 0.11:
            program = program.replace(task.payload.entry_point, f"solve_{task.payload.entry_point}")
        return wording.reply_with(program, task.payload.entry_point, draws[2])

    def _task_draws(self, task: CodeTask) -> Sequence[float]:
        return _draws([SALT, self._seed, task.id])


def _draws(parts: object) -> Sequence[float]:
    """Eight numbers in 0..1 determined by the arguments."""
    digest = blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=32).digest()
    return [number / 2**32 for number in struct.unpack("<8I", digest)]


def _varied(hardness: float, sampling: Sampling, draw: float) -> float:
    """The hardness of a task for one sample; a higher temperature moves it further from the task's own."""
    warmth = min(1.0, sampling.temperature or 0.0)
    return min(max(hardness + (draw - 0.5) * VARIETY * warmth, 0.0), 1.0 - 2**-32)


def _pick(choices: Sequence[str], draw: float) -> str:
    return choices[int(draw * len(choices))]
