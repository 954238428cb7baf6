"""Runs one experiment, from its solver's start to its outcome, on this machine or on a worker."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec
import orjson

from koderz.errors import (
    FatalFault,
    Fault,
    KoderzError,
    PromptTooLong,
    RunStopped,
    StorageError,
    UserCodeFault,
    frames_of,
    writable,
)
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import (
    SANDBOX,
    UNPRICED,
    ExperimentOutcome,
    Ledger,
    PendingExperiment,
)
from koderz.experiments.recall import Lessons, recall_for
from koderz.experiments.recording import Answer, Ask, refers
from koderz.experiments.replay import Handles, Replaying
from koderz.models.faults import outcome_of
from koderz.plans.plan import Identity, Plan
from koderz.sandbox import Sandbox
from koderz.sandbox.calibration import Exclusive
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Meter, metered
from koderz.solvers import SettledSolver
from koderz.solvers.definition import NEEDED, OPENED, AskHandle
from koderz.suites import program_suite
from koderz.suites.references import ReferenceFault, References
from koderz.suites.suite import Concluding, ExperimentContext, JudgeContext, WorkspaceContext
from koderz.types import (
    CALL_ALONE,
    CONTEXT,
    EXCLUSIVE,
    JUDGE,
    MAIN,
    REPLY_LATE,
    THOUGHT_CUT,
    TIME,
    TOO_LONG,
    Measure,
    Reply,
    Task,
    Verdict,
    VerdictWord,
)
from koderz_tracker import records
from koderz_tracker.results import ANSWER, Result

if TYPE_CHECKING:
    from koderz.models import Model, Price


@dataclass(frozen=True, slots=True)
class Resources:
    """The objects on one machine with which the experiments of a plan are run."""

    plan: Plan
    models: Mapping[str, Model]
    sandbox: Sandbox
    baseline: Price | None = None  # of the baseline model
    lessons: Lessons | None = None
    shared: Any = None  # what the suite opened for the run
    exclusive: Exclusive | None = None  # for tasks that need it
    # of the suite, where they are tried before anything is judged
    references: References | None = None


class ExperimentRunner:
    """Runs the experiments of one plan. It is the `Backend` of their handles."""

    def __init__(
        self, resources: Resources, caller: Caller, ledger: Ledger, how: Replaying
    ) -> None:
        plan, exclusive = resources.plan, resources.exclusive
        self._resources, self._plan, self._caller = resources, plan, caller
        self._how, self._exclusive = how, exclusive
        self.record, self.text = ledger.record, ledger.text
        self._judging = JudgeContext(
            resources.sandbox, plan.judging, core=exclusive.core if exclusive else None
        )

    async def perform(
        self, work: PendingExperiment, leave: Callable[[], None] = lambda: None
    ) -> ExperimentOutcome:
        """Runs an experiment and returns its end. Raises StorageError if its events can't be recorded.

        `leave` is called once no more calls will be made and only a program is being judged, where that is known.
        """
        solver = work.identity.arm.solver
        how = replace(self._how, restart=True) if solver.restarts else self._how
        if not work.is_whole:
            how = replace(how, accept_divergence=True)
        # Its first verdict is sure to be its last, and needs no model.
        asks_once = solver.asks_once and JUDGE not in work.identity.arm.models
        handles = Handles(
            work.identity, work.recorded, self, how, **{"leave": leave} if asks_once else {}
        )
        started = time.monotonic()
        with metered() as meter:
            verdict, fault = await self._performed(solver, handles)
        if meter.seconds:
            await self._pay(meter, handles)
        if isinstance(fault, FatalFault | RunStopped):
            return ExperimentOutcome(None, fault)
        if fault:
            totals = handles.totals
            throttled = totals.throttled + Counter(fault.throttled)
            record = fault_of(
                work.identity,
                fault,
                cost=totals.cost,
                calls=totals.calls,
                throttled=throttled,
                unknown_ends=totals.unknown_ends,
            )
            return ExperimentOutcome(record, fault)
        assert verdict
        seconds = time.monotonic() - started
        baseline_cost = self._caller.baseline_cost(*handles.totals.local_tokens)
        return ExperimentOutcome(
            experiment_of(handles, verdict, seconds, baseline_cost=baseline_cost)
        )

    async def _performed(
        self, solver: SettledSolver, handles: Handles
    ) -> tuple[Verdict | None, Fault | None]:
        try:
            with self._caller.experiment(handles.identity.experiment_id, handles.totals.cost):
                return await self._solve(solver, handles), handles.fault
        except Fault as error:
            return None, handles.fault or error

    async def _pay(self, meter: Meter, handles: Handles) -> None:
        """Records the cost of the experiment's sandboxes."""
        line = records.Compute(
            experiment_id=handles.identity.experiment_id,
            engine=SANDBOX if meter.is_known else UNPRICED,
            seconds=round(meter.seconds, 6),
            cost_per_second=meter.cost / meter.seconds,
            cost=meter.cost,
        )
        await self.record(line)
        handles.totals.rent(line)
        self._caller.also_spent(line.cost)

    # What the handles reach

    async def complete(self, ask: Ask, identity: Identity) -> Answer:
        if refers(ask.messages):
            ask = replace(ask, messages=await self._plan.suite.sent(identity.task, ask.messages))
        return await self._caller.complete(ask, identity)

    async def judge(
        self,
        task: Task,
        answer: Reply | str,
        identity: Identity,
        ask: AskHandle | None,
        workspace: Any,
    ) -> Verdict:
        suite, has_turn = self._plan.suite, EXCLUSIVE in identity.arm.solver.wants
        context = replace(self._judging, ask=ask if suite.asks_judge else None, workspace=workspace)
        if isinstance(answer, Reply) and (verdict := verdict_without(answer, suite.measures)):
            return verdict
        needs_turn = EXCLUSIVE in task.needs and not has_turn
        turn = self._exclusive() if self._exclusive and needs_turn else nullcontext()
        with self._caller.working():
            async with turn:
                if self._resources.references:
                    await self._resources.references.require(task)
                if self._plan.record.config.get("imported") is True:
                    program = answer.text if isinstance(answer, Reply) else answer
                    return await program_suite(suite).judge_written(task, program, context)
                return await suite.judge(task, answer, context)

    # How it ends

    async def _solve(self, solver: SettledSolver, handles: Handles) -> Verdict:
        references = self._resources.references
        if references and (reason := references.broken(handles.identity.task)):
            raise ReferenceFault(reason)
        async with handles:
            try:
                # In a task of its own, so that one that cancels itself isn't taken for the run being cut off.
                verdict = await asyncio.create_task(self._opened_and_solved(solver, handles))
            except PromptTooLong as error:
                # Where a conversation no longer fits the model's context, its last verdict stands.
                if handles.verdicts and not handles.verdicts[-1].passed:
                    verdict = replace(
                        handles.verdicts[-1],
                        note="The conversation no longer fits the model's context.",
                    )
                else:
                    verdict = await handles.judge(handles.identity.task, error.reply)
            except (Fault, StorageError):
                raise
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) and task.cancelling():
                    raise  # the run is being cut off
                raise Fault("the solver cancelled itself", cause="user_code") from None
            except Exception as error:  # a solver may be anybody's code
                raise UserCodeFault(
                    writable(f"the solver raised {type(error).__name__}: {error}")
                ) from error
        verdict = _checked(verdict, (*get_args(VerdictWord), *self._plan.suite.words))
        try:
            if len(handles.verdicts) > 1:
                handles.lesson = self._plan.suite.lesson(handles.identity.task, handles.verdicts)
        except Exception as error:  # so may a suite
            raise UserCodeFault(
                writable(f"the suite's lesson raised {type(error).__name__}: {error}")
            ) from error
        return verdict

    async def _opened_and_solved(self, solver: SettledSolver, handles: Handles) -> Verdict:
        identity = handles.identity
        try:
            needed = NEEDED & identity.task.needs & solver.wants
            opening: AbstractAsyncContextManager[dict[str, Any]] = nullcontext({})
            if needed:
                opening = opened(self._resources, handles)
            async with opening as others:
                handles.workspace = others.get("workspace")
                solving = solver.run(
                    handles,
                    task=identity.task,
                    prompts=self._plan.prompts,
                    recall=recall_for(handles, self._resources.lessons),
                    models=identity.arm.models,
                    **others,
                )
                verdict, handles.is_concluded = await concluded(solving, others)
                return cast("Verdict", verdict)
        except SystemExit as error:  # which the event loop would let through, and end everything
            raise UserCodeFault(f"the solver raised SystemExit: {error}") from error
        finally:
            handles.workspace = None  # it is closed, and holds the handles


def verdict_without(reply: Reply, measures: Sequence[Measure]) -> Verdict | None:
    """The verdict on a reply that has nothing to be judged, whatever the suite; None on any other.

    What is a failure counts as 0 among the shares of which more is better.
    """
    if reply.truncated == "reasoning":
        return THOUGHT_CUT
    if reply.finish_reason == CONTEXT:
        verdict = replace(TOO_LONG, detail=reply.text)
    elif reply.finish_reason == TIME:
        verdict = REPLY_LATE
    elif not reply.text.strip() and (reply.tool_calls or outcome_of(reply.finish_reason) == "call"):
        verdict = CALL_ALONE
    else:
        return None
    nothing = {
        each.name: 0.0 for each in measures if (each.direction, each.unit) == ("higher", "share")
    }
    return replace(verdict, score=nothing.pop("score", None), metrics=nothing)


def experiment_of(
    handles: Handles, verdict: Verdict, seconds: float, *, baseline_cost: float | None = None
) -> records.Experiment:
    """The record of an experiment with a verdict. `baseline_cost`: US dollars on the baseline model."""
    identity, totals = handles.identity, handles.totals
    return records.Experiment(
        **identity.of_line,
        model=identity.arm.model,
        success=verdict.passed,
        verdict=verdict.verdict,
        cause=verdict.cause,
        score=verdict.score
        if verdict.score is not None or handles.is_concluded
        else totals.mean_grade,
        metrics=verdict.metrics or None,
        iterations=totals.turns or totals.attempts,
        grades=len(totals.scores),
        calls=totals.calls,
        depth=totals.depth,
        cost=totals.cost,
        cost_known=totals.cost_known and verdict.cost_known,
        cost_by_tier=totals.by_tier(),
        baseline_cost=baseline_cost,
        tokens_in=totals.tokens_in,
        tokens_out=totals.tokens_out,
        tokens_reasoning=totals.tokens_reasoning,
        roles=None if totals.roles.keys() <= {MAIN} else totals.roles,
        latency=totals.latency,
        duration_seconds=round(seconds, 6),
        diverged=handles.diverged,
        note=verdict.note,
        lesson=handles.lesson.text if handles.lesson else "",
        lesson_cause=handles.lesson.cause if handles.lesson else "",
        facts=verdict.facts,
        answered_by=totals.answered_by,
        truncated=handles.truncated,
        throttled=dict(totals.throttled),
        unknown_ends=dict(totals.unknown_ends),
        saved_cost=totals.saved_cost,
        reused=totals.reused,
    )


def fault_of(
    identity: Identity,
    fault: Fault,
    *,
    cost: float,
    calls: int,
    throttled: Mapping[str, int] = MappingProxyType({}),
    unknown_ends: Mapping[str, int] = MappingProxyType({}),
) -> records.Fault:
    """The record of an experiment without a verdict, with the US dollars and calls that it took.

    `throttled` are the requests of it that were refused for load, by provider. `unknown_ends` are those of its replies
    that ended by words which koderz doesn't know.
    """
    cause = fault.__cause__ if isinstance(fault, UserCodeFault) else None
    frames = frames_of(cause) if cause else []
    return records.Fault(
        **identity.of_line,
        reason=str(fault),
        cause=fault.cause,
        cost=cost,
        calls=calls,
        frames=frames,
        throttled=dict(throttled),
        unknown_ends=dict(unknown_ends),
    )


_OF_RESULTS = {ANSWER: str, "resources": dict}
"""Facts that are fields of a result, with their types."""

_OWN_KEYS = frozenset(Result.__struct_fields__).difference(_OF_RESULTS)


def _checked(verdict: object, words: Collection[str]) -> Verdict:
    """The verdict that a solver returned, checked that it can be recorded. Raises Fault."""
    if not isinstance(verdict, Verdict):
        raise Fault(
            f"the solver returned {type(verdict).__name__}, not the Verdict that judge gave it",
            cause="user_code",
        )
    try:
        bare = replace(verdict, artifacts={})  # which attempts hold
        msgspec.convert(msgspec.to_builtins(bare), Verdict)
        orjson.dumps(bare)
        if not all(map(math.isfinite, [verdict.score or 0.0, *verdict.metrics.values()])):
            raise ValueError("its score and metrics have to be finite numbers")
        if taken := _OWN_KEYS.intersection(verdict.facts):
            raise ValueError(
                f"a fact can't be called {min(taken)!r}, which is a key of every result"
            )
        for name, kind in _OF_RESULTS.items():
            if not isinstance(verdict.facts.get(name), kind | None):
                raise TypeError(f"its fact {name!r} has to be a {kind.__name__} or None")
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise Fault(
            f"the solver returned a Verdict that can't be recorded: {error}", cause="user_code"
        ) from None
    if verdict.verdict not in words:
        raise Fault(
            f"the solver returned the verdict {verdict.verdict!r:.80}; it is one of {', '.join(words)}",
            cause="user_code",
        )
    return verdict


@asynccontextmanager
async def opened(resources: Resources, handles: Handles) -> AsyncIterator[dict[str, Any]]:
    """The opened handles that the task needs and the solver asks for, by name. Raises Fault if one can't be opened."""
    identity, suite = handles.identity, resources.plan.suite
    names = NEEDED & identity.task.needs & identity.arm.solver.wants
    given = (identity.task, handles, resources.plan.settings, resources.shared)
    async with AsyncExitStack() as stack:
        found: dict[str, Any] = {}
        if EXCLUSIVE in names:
            assert resources.exclusive, "the engine says that it can"
            found[EXCLUSIVE] = partial(_turn, handles, resources.exclusive)
        for name in sorted(names & OPENED):
            try:
                if name == "workspace":
                    opening = suite.open_workspace(
                        WorkspaceContext(*given, stack.enter_context(scratch()))
                    )
                else:
                    openers = {
                        "session": suite.open_session,
                        "evaluator": suite.open_evaluator,
                        "long_context": suite.open_long_context,
                    }
                    opening = openers[name](ExperimentContext(*given))
                found[name] = await stack.enter_async_context(opening)
            except (Fault, StorageError):
                raise
            except Exception as error:  # a suite may be anybody's code
                what = f"the {name} of {identity.task.id} can't be opened: {type(error).__name__}: {error}"
                if isinstance(error, KoderzError):
                    raise Fault(what, cause="unprepared") from error
                raise UserCodeFault(what) from error
        yield found


async def concluded(solving: Awaitable[Any], opened_handles: Mapping[str, Any]) -> tuple[Any, bool]:
    """The result of the solver, and whether an opened handle produced it instead of the solver itself."""
    for handle in opened_handles.values():
        if isinstance(handle, Concluding):
            return await handle.conclude(solving), True
    return await solving, False


@asynccontextmanager
async def _turn(handles: Handles, exclusive: Exclusive) -> AsyncIterator[int | None]:
    """Enters the engine's `exclusive`; the time spent waiting doesn't count in a replay."""
    async with AsyncExitStack() as stack:
        with handles.waiting():
            core = await stack.enter_async_context(exclusive())
        yield core
