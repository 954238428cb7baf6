"""The check of what a solver's replay asks and makes against the calls and values on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import to_builtins

from koderz.engines.resources import baseline_price
from koderz.experiments.calls import Caller
from koderz.experiments.recording import JUDGE_ASK, Ask, call_of, is_same_grade
from koderz.experiments.runner import ExperimentRunner
from koderz.models import Model, ModelName, Price, parse_model_name
from koderz.models.messages import part
from koderz.models.names import foreign_provider
from koderz.plans.arms import opened_models
from koderz.plans.plan import Identity, Plan
from koderz.suites.options import SimulatedOptions
from koderz.systems.publishing.calibration import AGAIN
from koderz.systems.publishing.verify.findings import Verification, as_json, is_redacted
from koderz.types import SIMULATED, Completion, Message, Reply, Sampling
from koderz_tracker.records import Call, Grade, Once

_ELSEWHERE = frozenset(
    {"time", "latency", "messages", "experiment_id", "call", "key", "reused", "cost_saved", "asked"}
)
"""Fields of a call of the simulated model that are compared elsewhere, or on trust."""

_ASKED = ("purpose", "role", "model", "sampling", "depth", "parent")
_MEASURED = frozenset({"seconds", "container", "image"})
"""Entries of values that are made again, which depend on the machine."""


@dataclass(slots=True)
class AuditedExperiment:
    """The check of one experiment's records as its solver's replay uses them."""

    result: Verification
    where: str
    redacts: bool = False  # whether texts may have been taken out of the record
    asks: list[tuple[Ask, Call]] = field(default_factory=list)
    # that are judged, by the keys of their verdicts
    answers: dict[str, Reply | str] = field(default_factory=dict)
    remade: set[str] = field(default_factory=set)  # keys of values that were made again

    @property
    def used(self) -> set[str]:
        """The keys of the calls that the replay has asked for."""
        return {call.key for _, call in self.asks}

    def asked(self, ask: Ask, call: Call) -> None:
        """Compares the recorded messages with what the solver asks."""
        self.asks.append((ask, call))
        self.result.prompts += 1
        recorded, derived = [dict(each) for each in call.messages], to_builtins(list(ask.messages))
        if recorded != derived and not is_private(call) and not self._hides(call):
            self.result.differs("prompt", f"{self.where}, call {call.call}", recorded, derived)

    def judging(self, key: str, answer: Reply | str) -> None:
        """Keeps an answer, which may be on record by its digest alone."""
        self.answers[key] = answer

    def graded(self, grade: Grade, recorded: Grade) -> None:
        """Compares a recorded score with the one that is computed now."""
        if not is_same_grade(grade, recorded) and not self._hides(recorded):
            self.result.differs(
                "verdict", f"{self.where}, item {grade.item:.60}", _told(recorded), _told(grade)
            )

    def made(self, value: Any, recorded: Once) -> None:
        """Compares a recorded value with the one that is made now, if the replay makes one."""
        if value is None:
            return
        self.remade.add(recorded.key)
        own, now = _steady(recorded.value), _steady(value)
        if own != now and not self._hides(recorded):
            self.result.differs("experiment", f"{self.where}, {recorded.name:.60}", own, now)

    def _hides(self, line: Call | Grade | Once) -> bool:
        return self.redacts and is_redacted(line)


def _told(grade: Grade) -> list[Any]:
    return [grade.item, grade.score, grade.metrics, grade.labels]


def _steady(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: each for name, each in value.items() if name not in _MEASURED}


class CallCheck:
    """Makes calls anew as far as they follow from what was asked; those of the simulated model whole."""

    def __init__(self, plan: Plan, runner: ExperimentRunner, result: Verification) -> None:
        """`runner`: one whose `caller` is `offline_caller`."""
        self._plan, self._runner, self._result = plan, runner, result

    async def check(self, identity: Identity, audit: AuditedExperiment) -> None:
        """Compares each call with the one that is made of its request."""
        if self._plan.record.config.get("imported"):
            return  # whose file has no requests
        for ask, call in audit.asks:
            if audit.redacts and is_redacted(call):
                continue
            answer = await self._runner.complete(ask, identity)
            derived = call_of(identity, call.call, ask, call.key, answer)
            is_simulated = answer.model == SIMULATED
            own, made = as_json(call), as_json(derived)
            for name in made.keys() - _ELSEWHERE if is_simulated else _ASKED:
                recorded, now = own[name], made[name]
                if recorded == now:
                    continue
                if name == "sampling" and self._plan.record.config.get("role_options"):
                    self._result.trusts("the sampling of roles that have options of their own")
                else:
                    self._result.differs(
                        "call", f"{audit.where}, call {call.call}, {name}", recorded, now
                    )


def check_text(where: str, call: Call, result: Verification) -> None:
    """Compares the text that was judged with the reply that it was cut from."""
    if (
        call.finish_reason == "imported"
        or not isinstance(call.reply, str)
        or not isinstance(call.text, str | None)
    ):
        return
    if foreign_provider(call.model):
        result.trusts(f"how replies of {call.model.partition('/')[0]} were cut from what it sent")
        return
    ends = "stop" if call.model == SIMULATED else "length"
    parted = part(call.reply, complete=(call.finish_reason == ends) == (ends == "stop"))
    text = call.reply if call.text is None else call.text
    if text != parted.text:
        result.differs("call", f"{where}, call {call.call}, text", text, parted.text)
    elif isinstance(call.reasoning, str) and not call.reasoning.endswith(parted.reasoning):
        result.differs(
            "call", f"{where}, call {call.call}, reasoning", call.reasoning, parted.reasoning
        )


def check_again(where: str, calls: Sequence[Call], result: Verification) -> None:
    """Compares calls of a judge that was asked again with those that it repeats."""
    first = {call.key: call for call in calls if not call.key.startswith(AGAIN)}
    for call in calls:
        if not call.key.startswith(AGAIN):
            continue
        key = JUDGE_ASK + call.key.removeprefix(AGAIN).rpartition("/")[0]
        before = first.get(key)
        same = ("messages", *_ASKED, *(("reply", "text") if call.model == SIMULATED else ()))
        names = [name for name in same if before and getattr(before, name) != getattr(call, name)]
        if before is None or names:
            result.differs(
                "call", f"{where}, call {call.call}", ", ".join(names) or key, "a judge asked again"
            )


def offline_caller(plan: Plan) -> Caller:
    """Makes calls that cost nothing: the simulated model answers, without latency and faults, and no other does."""
    settings, models = plan.settings, dict[str, Model]()
    for key, (name, _) in opened_models(plan.arms, settings.roles_elsewhere).items():
        if name == SIMULATED:
            options = replace(
                settings.of(SimulatedOptions), simulated_latency=0.0, simulated_fault_rate=0.0
            )
            models[key] = plan.suite.simulated_model(plan.tasks, settings.seed, options)
        else:
            models[key] = _Silent(parse_model_name(name))
    free = replace(settings, max_cost=None, max_experiment_cost=None)
    return Caller(free, models, spent=0.0, baseline=baseline_price(plan))


@dataclass(frozen=True, slots=True)
class _Silent:
    """A model that isn't asked: what its reply was is on trust."""

    name: ModelName

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:  # noqa: ARG002
        return Completion("")

    async def check(self) -> dict[str, str]:
        return {}

    def price(self) -> Price | None:
        return None

    async def aclose(self) -> None:
        """Does nothing, since there is nothing to close."""


def is_private(call: Call) -> bool:
    """Whether a call's messages are recorded by their digests alone."""
    return any(isinstance(message.get("content"), dict) for message in call.messages)
