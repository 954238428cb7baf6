"""The suites `browsecomp-plus` and `research-generated`."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import re
import string
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from koderz.errors import Fault, KoderzError
from koderz.prompts import load_prompts
from koderz.suites.options import require_no_column
from koderz.suites.suite import JudgeContext, Publication, SuiteSource
from koderz.suites.tokens import CHARS_A_TOKEN
from koderz.systems.long_context.browsecomp_plus.corpus import (
    LEAST,
    RELATIONS,
    Corpus,
    Document,
    GeneratedResearch,
    Sought,
    read_about,
)
from koderz.systems.long_context.contexts import (
    NEEDS,
    LongContextSuite,
    Reading,
    Recipe,
    recipe_digest,
)
from koderz.systems.long_context.options import ResearchOptions
from koderz.systems.long_context.published import Fields, Layout, PublishedRow, published
from koderz.systems.long_context.simulated import Player
from koderz.types import PRIVACY, Measure, Message, Reply, Task, Verdict
from koderz_tracker.messages import text_of
from koderz_tracker.privacy import xored

# The prompt is koderz' own. BrowseComp-Plus' (`GRADER_TEMPLATE` in scripts_evaluation/evaluate_run.py) is in a
# repository that names no licence, so it is none of koderz' files; `--prompt-dir` takes it from whoever has it.

PROMPT = "browsecomp_plus-judge"
"""The name of the judge's prompt."""

_OFFICIAL: Mapping[str, str] = {
    "71fb29f51a56cea9": "BrowseComp-Plus' own, as evaluate_run.py has it",
    "0f0023ee579b8c13": "BrowseComp's, as evaluate_with_openai.py has it",
}
"""The published prompts by 16 hex digits of the SHA-256 of their texts, at 97c637c of texttron/BrowseComp-Plus."""
_PLACES = re.compile(r"\$\{(question|response|correct_answer)\}")
_CLAIMED = re.compile(r"Confidence: (\d+)%")


@dataclass(frozen=True)
class JudgePrompt:
    """A judge's prompt with `${question}`, `${response}` and `${correct_answer}`."""

    text: str

    def question_for(self, sought: Sought, reply: str) -> Message:
        """The message that asks the judge about a reply."""
        values = {"question": sought.query, "response": reply, "correct_answer": sought.answer}
        return {"role": "user", "content": Template(self.text.strip()).substitute(values)}

    def parts(self, asked: str) -> Mapping[str, str] | None:
        """The values that a question of this prompt was made of; None for any other text."""
        found = self._pattern.fullmatch(asked)
        return found.groupdict() if found else None

    @property
    def record(self) -> dict[str, Any]:
        """The prompt in a plan's record: `prompt_digest`, `prompt`, and `caveats` if it isn't a published one."""
        digest = hashlib.sha256(_PLACES.sub(r"{\1}", self.text.strip()).encode()).hexdigest()[:16]
        if digest in _OFFICIAL:
            return {"prompt_digest": digest, "prompt": _OFFICIAL[digest], "caveats": []}
        whose = "koderz' own" if self == OWN_PROMPT else "one's own, of --prompt-dir"
        caveat = f"JUDGED BY ANOTHER PROMPT ({whose}, {digest}) than BrowseComp-Plus': not for its leaderboard"
        return {"prompt_digest": digest, "prompt": whose, "caveats": [caveat]}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern, seen = "", set()
        for number, piece in enumerate(
            _PLACES.split(Template(self.text.strip()).safe_substitute())
        ):
            if number % 2:
                pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>.*)"
                seen.add(piece)
            else:
                pattern += re.escape(piece)
        return re.compile(pattern, re.DOTALL)


OWN_PROMPT = JudgePrompt(load_prompts().texts[PROMPT])


class Judgement(NamedTuple):
    """The content of a judge's reply."""

    correct: bool
    confidence: float | None  # per cent, that the answer claims


def judgement_of(reply: str) -> Judgement:
    """The judgement in a reply. Raises Fault if it doesn't say whether the answer is correct."""
    correct = _named("correct", "(yes|no)", reply)
    if correct is None:
        raise Fault(
            "the judge's reply has no readable line with correct, yes or no; retry, or name another judge",
            cause="judge",
        )
    confidence = _named("confidence", r"(\d+(?:\.\d+)?)", reply)
    return Judgement(
        correct.lower() == "yes", None if confidence is None else min(100.0, float(confidence))
    )


def simulated_judgement(answer: str, reply: str) -> str:
    """The simulated model's reply as a judge, by comparing the answers as texts."""
    claimed = _CLAIMED.findall(reply)
    correct = "yes" if is_exact(answer, reply) else "no"
    return f"reasoning: compared as texts\ncorrect: {correct}\nconfidence: {claimed[-1] if claimed else 100}%"


def _named(name: str, value: str, reply: str) -> str | None:
    """The value after a name: `**name:**` before `**name**:` before `name:`, the first of each."""
    for form in (rf"\*\*{name}:\*\*", rf"\*\*{name}\*\*:", f"{name}:"):
        if found := re.search(rf"{form}\s*{value}", reply, re.IGNORECASE):
            return found[1]
    return None


_CITATION_FORMS = re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】")
_EXACT = re.compile(r"Exact Answer:[ \t]*(.*)", re.IGNORECASE)
_CONFIDENCE = re.compile(r"Confidence:\D{0,10}?(\d+(?:\.\d+)?)", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def metrics_of(sought: Sought, reply: str) -> dict[str, float]:
    """`exact_match`, precision and recall of citations, and the `confidence` in per cent if the reply states one."""
    cited = {
        number
        for form in _CITATION_FORMS
        for inside in form.findall(reply)
        for number in re.findall(r"\d+", inside)
    }
    right = len(cited & sought.evidence)
    found = {
        "exact_match": float(is_exact(sought.answer, reply)),
        "citation_precision": right / len(cited) if cited else 0.0,
        "citation_recall": right / len(sought.evidence) if cited and sought.evidence else 0.0,
    }
    if claimed := _CONFIDENCE.findall(reply):
        found["confidence"] = min(100.0, float(claimed[-1]))
    return found


def is_exact(answer: str, reply: str) -> bool:
    """Whether the text after `Exact Answer:`, else the whole reply, equals the answer apart from spelling."""
    answers = _EXACT.findall(reply)
    return _normal(answers[-1] if answers else reply) == _normal(answer)


def _normal(text: str) -> str:
    """The text without case, punctuation, articles and extra blanks."""
    lower = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lower).split())


_LAYOUT = Layout(
    {"gold_docs": list, "evidence_docs": list, "negative_docs": list},
    {"query_id": int | str, "query": str, "answer": str},
)


def key_of(canary: str) -> bytes:
    """The key of the rows' encryption."""
    return hashlib.sha256(canary.encode()).digest()


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of the documents for a question."""

    documents: int | None  # None: those that its row names
    corpus: Corpus | None
    seed: int

    def of(self, query_id: str, row: Mapping[str, list[Document]]) -> list[Document]:
        """Gold and evidence, then negatives, then others of the corpus, up to the wanted number; shuffled.

        Raises Fault where there are too few.
        """
        draw = random.Random(f"{self.seed} {query_id}")  # noqa: S311 repeatable on purpose
        needed = {each.docid: each for name in ("gold_docs", "evidence_docs") for each in row[name]}
        others = {each.docid: each for each in row["negative_docs"] if each.docid not in needed}
        if self.documents is None:
            chosen = [*needed.values(), *others.values()]
        else:
            chosen = [*needed.values(), *others.values()][: max(self.documents, len(needed))]
            chosen += self._more(self.documents - len(chosen), {*needed, *others}, draw)
        draw.shuffle(chosen)
        return chosen

    def _more(self, count: int, known: set[str], draw: random.Random) -> list[Document]:
        if count <= 0:
            return []
        if self.corpus is None:
            raise Fault(
                f"--documents {self.documents}, but its row has {len(known)} of them; add --corpus",
                cause="data",
            )
        return self.corpus.others(count, known, draw)


def encrypted_rows(
    path: Path, key: bytes, choice: Choice, cluster_column: str | None = None
) -> Iterator[PublishedRow]:
    """The rows of a file or folder. Raises KoderzError for another layout or another key."""
    for row in published(
        path,
        replace(_LAYOUT, cluster=cluster_column),
        lambda _: True,
        partial(_of_row, key, choice),
    ):
        for name in ("query", "answer"):
            try:
                decrypted(row.fields[name], key)
            except ValueError:
                where = f"{path}, query_id {row.fields['query_id']}"
                raise KoderzError(
                    f"{where}: the {name} isn't encrypted with this --canary"
                ) from None
        yield row


def decrypted(value: Any, key: bytes) -> Any:
    """A value with its texts decrypted. Raises ValueError if the key is another one."""
    if isinstance(value, str):
        return xored(base64.b64decode(value, validate=True), key).decode()
    if isinstance(value, list):
        return [decrypted(item, key) for item in value]
    if isinstance(value, Mapping):
        return {name: decrypted(item, key) for name, item in value.items()}
    return value


def _of_row(key: bytes, choice: Choice, fields: Fields, late: Fields) -> tuple[Reading, Sought]:
    query_id = str(fields["query_id"])
    try:
        row = {
            name: [
                Document(str(each["docid"]), str(each["text"]), str(each.get("url") or ""))
                for each in decrypted(late[name], key)
            ]
            for name in _LAYOUT.late
        }
    except (KeyError, TypeError, ValueError):
        raise Fault(
            f"a document of query_id {query_id} isn't {{docid, text, url}} with this --canary",
            cause="data",
        ) from None
    evidence = frozenset(each.docid for each in row["evidence_docs"])
    query, answer = decrypted(fields["query"], key), decrypted(fields["answer"], key)
    return read_about(choice.of(query_id, row), query, answer, evidence, generator="published")


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
    publication = Publication.on_hub(
        "Tevatron/browsecomp-plus", "MIT, see its card", files="data/*"
    )
    parts = ("calibration",)
    asks_judge = True
    judge_prompts = (PROMPT,)

    def __init__(
        self,
        name: str,
        source: str,
        tasks: Sequence[Task[Recipe]],
        player: Player,
        privacy_key: bytes = b"",
    ) -> None:
        super().__init__(name, source, tasks, _exact_match, player, _MEASURES)
        self.privacy_key = privacy_key
        self._set_judge_prompt(OWN_PROMPT)

    @classmethod
    def load(cls, source: SuiteSource) -> BrowseCompPlus:
        """Raises KoderzError for rows that can't be read, or a world that can't be made."""
        if source.dataset is None:
            require_no_column(source.options)
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
        self.judge_record = (
            {**prompt.record, "caveats": []} if self.name == _MADE_UP else prompt.record
        )

    async def judge(
        self, task: Task[Recipe], answer: Reply | str, context: JudgeContext
    ) -> Verdict:
        """The verdict of the model in the role `judge`, or by exact match if there is none, with the citations.

        Raises Fault where the model's reply can't be read.
        """
        exact = await super().judge(task, answer, context)
        if context.ask is None:
            return exact
        reply = answer.text if isinstance(answer, Reply) else answer
        _, sought = await self.library.about(task.payload)
        judged = judgement_of(
            (await context.ask([self._asked_of_judge.question_for(sought, reply)])).text
        )
        metrics = exact.metrics | (
            {} if judged.confidence is None else {"confidence": judged.confidence}
        )
        word, cause = ("passed", "") if judged.correct else ("failed", "answer")
        return replace(
            exact,
            verdict=word,
            cause=cause,
            detail="",
            score=float(judged.correct),
            metrics=metrics,
        )

    def simulate(self, messages: Sequence[Message], sampling: Any) -> str:
        """A simulated reply, as for all suites of long texts, or as a judge."""
        asked = text_of(messages[-1])
        parts = self._asked_of_judge.parts(asked)
        if parts is None:
            return super().simulate(messages, sampling)
        return simulated_judgement(parts["correct_answer"], parts["response"])


def _published(
    dataset: Path, options: ResearchOptions, seed: int
) -> tuple[Sequence[Task[Recipe]], bytes]:
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
    for row in encrypted_rows(dataset, key, choice, options.cluster_column):
        digest = recipe_digest(row.digest, *made_of)
        task_id = f"browsecomp-plus/{row.fields['query_id']}"
        if task_id in tasks:
            raise KoderzError(f"{dataset}: two rows have the query_id {row.fields['query_id']}")
        tokens = row.size // CHARS_A_TOKEN
        tasks[task_id] = Task(
            task_id,
            payload=replace(row, digest=digest),
            needs=needs,
            digest=digest,
            tokens=tokens,
            cluster=row.cluster,
        )
    if not tasks:
        raise KoderzError(f"{dataset} holds no row")
    return [*tasks.values()], b"" if options.keep_private_text else key


def _generated(options: ResearchOptions, seed: int) -> tuple[str, str, Sequence[Task[Recipe]]]:
    """The name, the source and the tasks of questions about a made-up world."""
    count = options.documents or _GENERATED
    if count < LEAST:
        raise KoderzError(
            f"--documents: a made-up world has {LEAST} documents or more, not {count}"
        )
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


def _exact_match(
    _task: Task[Recipe], sought: Sought, reply: str
) -> tuple[float, Mapping[str, float]]:
    metrics = metrics_of(sought, reply)
    return metrics["exact_match"], metrics


_QUERY = re.compile(r"What is the name of ([^?]+)\?")
_CITED = re.compile(r"(?: \[\d+\])+$")
_SAYS = {
    each.phrase: [
        re.compile(
            rf"(?:^|\. ){re.escape(sentence).replace(re.escape('{}'), '([^.]+?)')}", re.IGNORECASE
        )
        for sentence in each.sentences
    ]
    for each in RELATIONS
}
_SEARCH = f"""I follow the question from its innermost name outwards, and read only the documents that mention it.

```repl
phrases = {[each.phrase for each in RELATIONS]!r}
name, steps = re.search(r'name of ([^?]+)', question)[1], []
while begun := [each for each in phrases if name.startswith(each)]:
    steps.insert(0, begun[0])
    name = name[len(begun[0]):]
documents, seen, reply = re.split(r'\\n\\n(?=\\[)', context), [], ''
for step in steps:
    about = [each for each in documents if name.removeprefix('the ') in each]
    print(len(about), 'documents mention', name)
    asked = '\\n\\nWhat is the name of ' + step + name + '?'
    reply = llm_query('\\n\\n'.join(about) + asked)
    if 'Exact Answer: ' not in reply:  # once more, each by itself
        again = llm_query_batched([each + asked for each in about])
        reply = max([reply, *again], key=lambda said: 'Exact Answer: ' in said)
    found = re.search(r'Exact Answer: (.+)', reply)
    if not found:
        break
    name, seen = found[1], seen + re.findall(r'\\[\\d+\\]', reply)
replies = [re.sub(r'Explanation: .*', 'Explanation: ' + ' '.join(seen), reply)]
```"""


def answers(asked: str) -> list[str]:
    """The requested name with the numbers of the documents that tell it, if all of them are in the text."""
    queries = _QUERY.findall(asked)
    if not queries:
        return []
    name, phrases = _read_question(queries[-1])
    cited = ""
    for phrase in phrases:
        document = re.search(
            rf"^\[(\d+)\] .*\n({re.escape(name)} is .*)$", asked, re.MULTILINE | re.IGNORECASE
        )
        sentence_match = document and next(
            filter(None, (sentence.search(document[2]) for sentence in _SAYS[phrase])), None
        )
        if not (document and sentence_match):
            return []
        name, cited = sentence_match[1], f"{cited} [{document[1]}]"
    return [f"{name}{cited}"]


def _read_question(query: str) -> tuple[str, list[str]]:
    """The name in a question, and the phrases around it from the innermost outwards."""
    phrases: list[str] = []
    while begun := next((phrase for phrase in _SAYS if query.startswith(phrase)), None):
        phrases.insert(0, begun)
        query = query.removeprefix(begun)
    return query, phrases


def _answer(found: Sequence[str], chance: float) -> str:
    cited = _CITED.search(found[0])
    name = found[0][: cited.start()] if cited else found[0]
    return (
        f"Explanation: one document after the other says so{cited[0] if cited else ''}.\n"
        f"Exact Answer: {name}\nConfidence: {chance:.0%}"
    )


PLAYER = Player(answers, _SEARCH, _answer)

READER = Player(lambda _: [])
"""The player of published questions, which need more than a search for words."""
