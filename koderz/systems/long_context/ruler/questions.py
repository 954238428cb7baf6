"""Questions about one of many documents: SQuAD (qa_1) and HotpotQA (qa_2), from their own files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.long_context.ruler.drawing import Draws, Frame, Text, drawn, row_of, settled

TOKENS_TO_GENERATE = 32
_ASKED = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
TEMPLATE = f"{_ASKED}\n\nThe following are given documents.\n\n{{context}}\n\n{_ASKED}\n\nQuestion: {{query}}"
ANSWER_PREFIX = " Answer:"

_STEP = 10


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and the numbers of the documents that hold them and of related ones."""

    query: str
    outputs: list[str]
    documents: list[int]
    others: list[int]
    shares: tuple[str, ...] = ()  # names of the passages that hold its answer


@dataclass(frozen=True, slots=True)
class Collection:
    """The questions of a file and all its documents."""

    questions: Sequence[Question]
    documents: Sequence[str]


def read_squad(path: Path) -> Collection:
    """SQuAD's dev-v2.0.json. Raises KoderzError for anything else."""
    return _read(path, "SQuAD's dev-v2.0.json", _squad)


def read_hotpot(path: Path) -> Collection:
    """HotpotQA's hotpot_dev_distractor_v1.json. Raises KoderzError for anything else."""
    return _read(path, "HotpotQA's hotpot_dev_distractor_v1.json", _hotpot)


def _squad(data: Any) -> Collection:
    documents = sorted(
        {each["context"] for article in data["data"] for each in article["paragraphs"]}
    )
    number = {document: n for n, document in enumerate(documents)}
    questions = []
    for article in data["data"]:
        of_article = [number[each["context"]] for each in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            own = number[paragraph["context"]]
            others = [n for n in of_article if n != own]
            questions += [
                Question(
                    each["question"],
                    [answer["text"] for answer in each["answers"]],
                    [own],
                    others,
                    (str(own),),
                )
                for each in paragraph["qas"]
                if not each["is_impossible"]
            ]
    return Collection(questions, documents)


def _hotpot(data: Any) -> Collection:
    def text(title: str, sentences: Sequence[str]) -> str:
        return f"{title}\n{''.join(sentences)}"

    documents = sorted({text(*each) for row in data for each in row["context"]})
    number = {document: n for n, document in enumerate(documents)}
    questions = [
        Question(
            row["question"],
            [row["answer"]],
            [number[text(*each)] for each in row["context"]],
            [],
            tuple(sorted({title for title, _ in row.get("supporting_facts", ())})),
        )
        for row in data
    ]
    return Collection(questions, documents)


def _read(path: Path, wanted: str, make: Any) -> Collection:
    try:
        found: Collection = make(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KoderzError(
            f"--qa-data {path} isn't {wanted}: {type(error).__name__}: {error}"
        ) from None
    if not found.questions:
        raise KoderzError(f"--qa-data {path} isn't {wanted}: it holds no question")
    return found


class QuestionsFamily:
    """Rows of one length, each about the next question of the file."""

    def __init__(self, frame: Frame, collection: Collection) -> None:
        self._frame = replace(frame, step=_STEP, room=frame.max_length - TOKENS_TO_GENERATE)
        self._draws = Draws(frame.seed, quick=frame.measured)
        self._collection = collection
        self._size = _STEP
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        count = self._frame.tokenizer.count
        self._size = settled(lambda size: count(self._text(0, size).prompt), self._frame)

    def row(self, index: int) -> dict[str, Any]:
        frame, questions = self._frame, self._collection.questions
        if index >= len(questions):
            raise KoderzError(
                f"--qa-data has {len(questions)} questions, which is fewer than --tasks-per-length"
            )

        def draw(size: int) -> Text:
            return self._text(index, size)

        text, tokens = drawn(draw, self._size, frame)
        return row_of(index, text, tokens + TOKENS_TO_GENERATE, ANSWER_PREFIX)

    def _text(self, index: int, size: int) -> Text:
        """Draws `size` documents for a question."""
        question, documents = self._collection.questions[index], self._collection.documents
        chosen = [documents[n] for n in self._chosen(question, size)]
        self._draws.shuffle(chosen)
        context = "\n\n".join(
            f"Document {number}:\n{document}" for number, document in enumerate(chosen, 1)
        )
        return Text(
            (TEMPLATE + ANSWER_PREFIX).format(context=context, query=question.query),
            question.outputs,
        )

    def _chosen(self, question: Question, size: int) -> list[int]:
        own, others, count = question.documents, question.others, len(self._collection.documents)
        if size >= count:
            return ([*range(count)] * -(-size // count))[:size]
        draw, wanted = self._draws.random, size - len(own)
        if wanted <= len(others):
            return own + draw.sample(others, max(wanted, 0))
        known = {*own, *others}
        return (
            own
            + others
            + draw.sample([n for n in range(count) if n not in known], wanted - len(others))
        )


READERS: Mapping[str, Any] = {"qa_1": read_squad, "qa_2": read_hotpot}
