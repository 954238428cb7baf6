"""The suites `browsecomp-plus` and `research-generated`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.suites.tokens import CHARS_A_TOKEN
from koderz.systems.long_context.browsecomp_plus.corpus import Corpus, Sought
from koderz.systems.long_context.browsecomp_plus.generated import LEAST, GeneratedResearch
from koderz.systems.long_context.browsecomp_plus.judging import (
    OWN_PROMPT,
    PROMPT,
    JudgePrompt,
    judgement_of,
    metrics_of,
    simulated_judgement,
)
from koderz.systems.long_context.browsecomp_plus.options import ResearchOptions
from koderz.systems.long_context.browsecomp_plus.rows import Choice, encrypted_rows, key_of
from koderz.systems.long_context.browsecomp_plus.simulated import PLAYER, READER
from koderz.systems.long_context.contexts import NEEDS, LongContextSuite, Recipe, recipe_digest
from koderz.systems.long_context.simulated import Player
from koderz.types import PRIVACY, Measure, Message, Reply, Task, Verdict
from koderz_tracker.messages import text_of

_MEASURES = (
    Measure("score", "higher", "share", two_valued=True),
    Measure("exact_match", "higher", "share", two_valued=True),
    Measure("citation_precision", "higher", "share"),
    Measure("citation_recall", "higher", "share"),
)
_GENERATED, _PUBLISHED = 100, 1000  # documents
_MADE_UP = "research-generated"
_CANARY = "KODERZ_BROWSECOMP_CANARY"


class BrowseCompPlus(LongContextSuite):
    """BrowseComp-Plus' encrypted rows (--dataset), or generated questions about documents of a made-up world.

    They are judged by a model, or by whether the answer is the same text.
    """

    options = ResearchOptions
    parts = ("calibration",)
    asks_judge = True
    judge_prompts = (PROMPT,)

    def __init__(
        self, name: str, source: str, tasks: Sequence[Task[Recipe]], player: Player, privacy_key: bytes = b""
    ) -> None:
        super().__init__(name, source, tasks, _exact_match, player, _MEASURES)
        self.privacy_key = privacy_key
        self._set_judge_prompt(OWN_PROMPT)

    @classmethod
    def load(cls, source: SuiteSource) -> BrowseCompPlus:
        """Raises KoderzError for rows that can't be read, or a world that can't be made."""
        if source.dataset is None:
            return cls(*_generated(source.options, source.seed), PLAYER)
        tasks, key = _published(source.dataset, source.options, source.seed)
        return cls("browsecomp-plus", str(source.dataset), tasks, READER, key)

    def messages(self, task: Task[Recipe], prompts: Any) -> tuple[Message, ...]:
        """Messages that the benchmark itself sends, by reference. The judge's prompt comes from `prompts` too."""
        self._set_judge_prompt(JudgePrompt(prompts.texts[PROMPT]))
        return super().messages(task, prompts)

    def _set_judge_prompt(self, prompt: JudgePrompt) -> None:
        """Made-up questions have no published prompt, and so no caveats about it."""
        self._asked_of_judge = prompt
        self.judge_record = {**prompt.record, "caveats": []} if self.name == _MADE_UP else prompt.record

    async def judge(self, task: Task[Recipe], answer: Reply | str, context: JudgeContext) -> Verdict:
        """The verdict of the model in the role `judge`, or by exact match if there is none, with the citations.

        Raises Fault where the model's reply can't be read.
        """
        exact = await super().judge(task, answer, context)
        if context.ask is None:
            return exact
        reply = answer.text if isinstance(answer, Reply) else answer
        _, sought = await self.library.about(task.payload)
        judged = judgement_of((await context.ask([self._asked_of_judge.question_for(sought, reply)])).text)
        metrics = exact.metrics | ({} if judged.confidence is None else {"confidence": judged.confidence})
        word, cause = ("passed", "") if judged.correct else ("failed", "answer")
        return replace(exact, verdict=word, cause=cause, detail="", score=float(judged.correct), metrics=metrics)

    def simulate(self, messages: Sequence[Message], sampling: Any) -> str:
        """A simulated reply, as for all suites of long texts, or as a judge."""
        asked = text_of(messages[-1])
        parts = self._asked_of_judge.parts(asked)
        if parts is None:
            return super().simulate(messages, sampling)
        return simulated_judgement(parts["correct_answer"], parts["response"])


def _published(dataset: Path, options: ResearchOptions, seed: int) -> tuple[Sequence[Task[Recipe]], bytes]:
    """The tasks of encrypted rows, and the key of texts that are to stay private."""
    canary = options.browsecomp_canary or os.environ.get(_CANARY)
    if not canary:
        raise KoderzError(
            f"the rows of {dataset} are encrypted: set {_CANARY}, or begin with --canary, to the text that "
            "is the default in its own decrypt_dataset.py"
        )
    key = key_of(canary)
    corpus = Corpus(options.corpus) if options.corpus else None
    documents = options.documents or (_PUBLISHED if corpus else None)
    choice = Choice(documents, corpus, seed)
    made_of = (documents, corpus.digest if corpus else "", seed)
    needs = NEEDS if options.keep_private_text else NEEDS | {PRIVACY}
    tasks: dict[str, Task[Recipe]] = {}
    for row in encrypted_rows(dataset, key, choice):
        digest = recipe_digest(row.digest, *made_of)
        task_id = f"browsecomp-plus/{row.fields['query_id']}"
        if task_id in tasks:
            raise KoderzError(f"{dataset}: two rows have the query_id {row.fields['query_id']}")
        tokens = row.size // CHARS_A_TOKEN
        tasks[task_id] = Task(task_id, payload=replace(row, digest=digest), needs=needs, digest=digest, tokens=tokens)
    if not tasks:
        raise KoderzError(f"{dataset} holds no row")
    return [*tasks.values()], b"" if options.keep_private_text else key


def _generated(options: ResearchOptions, seed: int) -> tuple[str, str, Sequence[Task[Recipe]]]:
    """The name, the source and the tasks of questions about a made-up world."""
    count = options.documents or _GENERATED
    if count < LEAST:
        raise KoderzError(f"--documents: a made-up world has {LEAST} documents or more, not {count}")
    recipes = [GeneratedResearch(seed, count, number) for number in range(options.questions)]
    tasks: list[Task[Recipe]] = [
        Task(
            f"research-generated/{recipe.number}",
            payload=recipe,
            needs=NEEDS,
            digest=recipe.digest,
            groups={"documents": str(count), "hops": str(recipe.hops)},
            generated=True,
        )
        for recipe in recipes
    ]
    source = f"generated: questions of 2 to 4 hops about {count} documents of a made-up world, seed {seed}"
    return _MADE_UP, source, tasks


def _exact_match(_task: Task[Recipe], sought: Sought, reply: str) -> tuple[float, Mapping[str, float]]:
    metrics = metrics_of(sought, reply)
    return metrics["exact_match"], metrics
