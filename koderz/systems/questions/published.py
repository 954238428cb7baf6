"""Suites of published sets of questions, each with its prompt and its official rule."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from koderz.suites.dataset import Row, cluster_of_text
from koderz.suites.metrics import LabelMetric, NumberMetric
from koderz.suites.scorers import decimal_in, gold_number
from koderz.suites.suite import Publication, SuiteSource
from koderz.suites.tables import LETTERS, arc_choice, are_texts, rows_in, scalar, truthful_choice
from koderz.systems.questions.ifeval import Followed, instructions_in, require_libraries
from koderz.systems.questions.judging import Factual
from koderz.systems.questions.options import QuestionOptions
from koderz.systems.questions.question import (
    Question,
    checked,
    id_of,
    shown_columns,
    text_in,
)
from koderz.systems.questions.rules import (
    CHOICE,
    MATH,
    AimeNumber,
    Boxed,
    ByMetric,
    DropSpan,
    GpqaLetter,
    MmluLetter,
    MmluProLetter,
    ScoringRule,
    boxed,
)
from koderz.systems.questions.suite import QuestionSuite, chosen_rule, unpacked_source
from koderz.types import PRIVACY

_CARD = "see its card"


class PublishedSuite(QuestionSuite):
    """A published set that users supply as a file or folder."""

    options = QuestionOptions
    publication: ClassVar[Publication]

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:
        """The set's own rule."""
        raise NotImplementedError

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:
        """The question of a row; `seed` is that of orders that are drawn. Raises KoderzError for an invalid row."""
        raise NotImplementedError

    @classmethod
    def load(cls, source: SuiteSource) -> PublishedSuite:
        """Raises KoderzError where there is no file, or naming the line of a malformed row."""
        dataset, options = unpacked_source(source, source.options or QuestionOptions())
        if dataset is None:
            raise cls.publication.missing(cls.name)
        questions = cls.questions_in(dataset, options)
        rule = (
            chosen_rule(options, questions, options.scorer)
            if options.scorer
            else cls.official(options)
        )
        if not options.scorer and (options.pattern or options.rubric):
            chosen_rule(options, questions, "")  # which says what they are for
        return cls(str(dataset), questions, rule, options, source.seed)

    @classmethod
    def questions_in(cls, path: Path, options: QuestionOptions) -> tuple[Question, ...]:
        """The questions of a file or folder. Raises KoderzError naming file and line."""

        def read() -> Iterator[tuple[Row, Question]]:
            for number, row in enumerate(rows_in(path)):
                question = cls.question(row, id_of(row, cls.name, number), options.data_seed)
                cluster = row.cluster_by(options.cluster_column)
                yield (
                    row,
                    replace(question, cluster=cluster)
                    if cluster or options.cluster_column
                    else question,
                )

        return checked(read(), path)

    def pool(self, path: Path) -> tuple[Question, ...]:
        """The rows of another file of the set."""
        return self.questions_in(path, self._options)


class Worked(ByMetric):
    """A rule whose examples are the solutions as published."""

    def demonstrated(self, question: Question) -> str:
        return question.worked or super().demonstrated(question)


def _first(row: Row, *names: str) -> str:
    """The name of the first of these fields that is there, else the first name."""
    return next((name for name in names if row.fields.get(name) is not None), names[0])


class Gsm8k(PublishedSuite):
    """GSM8K: grade-school word problems with a number as the answer (--dataset test.jsonl)."""

    name = "gsm8k"
    template = "{input}"
    publication = Publication(
        "MIT",
        "openai/gsm8k on Hugging Face, or grade_school_math/data of github.com/openai/grade-school-math",
        "hf download openai/gsm8k --repo-type dataset --include 'main/test*' --local-dir gsm8k",
        frozenset({"08a6bd88634df6ec", "722183c7fab3c343"}),  # test, train
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The number that the reply gives as its answer."""
        metric = NumberMetric()
        about = "the number after the last ####, else in the last box, else the reply's last number; as decimals"
        return Worked("number", about, metric.format_line, metric=metric)

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of `question` and `answer`, which ends in `#### NUMBER`."""
        answer = row.text("answer")
        gold = gold_number(answer)
        _require_number(row, "answer", gold)
        return Question(
            name, row.text("question"), (gold,), columns=shown_columns(row), worked=answer
        )


class Math(PublishedSuite):
    """MATH and MATH-500: competition problems whose answers stand in a LaTeX box (--dataset FILE or a folder)."""

    name = "math"
    template = "{input}\n\nPut the final answer in \\boxed{}."
    publication = Publication.on_hub(
        "HuggingFaceH4/MATH-500",
        "MIT",
        files="test.jsonl",
        or_from="MATH.tar of github.com/hendrycks/math",
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The last box, compared as the authors compare."""
        return Boxed("math", MATH)

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of `problem` and `solution`; of MATH-500 also `answer`."""
        solution = row.text("solution", "")
        answer = row.fields.get("answer")
        gold = text_in(row, "answer") if answer is not None else boxed(solution)
        if gold is None:
            raise row.error(
                r"the field 'solution' has no \boxed{…}, and there is no field 'answer'"
            )
        group = row.text("subject", row.text("type", ""))
        return Question(
            name,
            row.text("problem"),
            (gold,),
            columns=shown_columns(row),
            group=group,
            worked=solution,
        )


class Aime(PublishedSuite):
    """AIME: competition problems with an answer from 0 to 999 (--dataset FILE)."""

    name = "aime"
    template = "{input}\n\nThe answer is a whole number from 0 to 999. Put it in \\boxed{}."
    publication = Publication(
        _CARD,
        "sets such as Maxwell-Jia/AIME_2024 or math-ai/aime25 on Hugging Face",
        "hf download Maxwell-Jia/AIME_2024 --repo-type dataset --local-dir aime",
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The whole number in the last box, else the last one."""
        return AimeNumber(
            "aime",
            "the whole number in the last box, else the reply's last whole number; compared as numbers",
        )

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of `Problem` or `question`, and `Answer` or `answer`."""
        field = _first(row, "Answer", "answer")
        answer = text_in(row, field).strip()
        if not re.fullmatch(r"0*[0-9]{1,3}", answer):
            raise row.error(
                f"the field {field!r} has to be a whole number from 0 to 999, not {answer!r:.80}"
            )
        text = row.text(_first(row, "Problem", "question", "problem"))
        worked = row.text(_first(row, "Solution", "solution"), "")
        return Question(name, text, (answer,), columns=shown_columns(row), worked=worked)


_ASKS_LETTER = (
    "Answer the multiple choice question below. Think step by step, and end with a line of the form "
    "'Answer: $LETTER' (without quotes), where LETTER is one of ABCD.\n\n{input}\n\n{choices}"
)


class Mmlu(PublishedSuite):
    """MMLU: four options in 57 subjects (--dataset test.parquet, or the CSV of simple-evals)."""

    name = "mmlu"
    template = _ASKS_LETTER
    publication = Publication.on_hub("cais/mmlu", "MIT", files="all/test*")

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The letter after `Answer:`, as simple-evals reads it."""
        return MmluLetter(
            "mmlu",
            "once markup is out (bold, $, boxes, braces), the first A to D after `Answer:`, case ignored, or after its "
            "like in other languages; a small letter is read and counts as wrong, as in simple-evals",
        )

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of Question, A to D, Answer and Subject; or of question, choices, answer (0 to 3) and subject."""
        if "Question" in row.fields:
            options = {letter: text_in(row, letter) for letter in LETTERS[:4]}
            text, gold, group = row.text("Question"), scalar(row, "Answer"), row.text("Subject", "")
        else:
            texts = row.texts("choices")
            if len(texts) != 4:
                raise row.error("the field 'choices' has to be a list of 4 texts")
            options = dict(zip(LETTERS, texts, strict=False))
            text, gold, group = row.text("question"), scalar(row, "answer"), row.text("subject", "")
            gold = LETTERS[int(gold)] if gold in ("0", "1", "2", "3") else gold
        if gold not in options:
            raise row.error(f"the answer has to be one of A, B, C, D (or 0 to 3), not {gold!r:.80}")
        return Question(name, text, (gold,), options, shown_columns(row), group=group)


class MmluPro(PublishedSuite):
    """MMLU-Pro: up to ten options in 14 subjects (--dataset test.parquet --few-shot-from validation.parquet)."""

    name = "mmlu-pro"
    template = (
        "Below is a multiple choice question about {category}. Think step by step, and finish with: The answer is "
        "(X), where X is the letter of the right option.\n\nQuestion: {input}\n\nOptions:\n{choices}"
    )
    option_mark = "."
    takes_first = True
    publication = Publication.on_hub(
        "TIGER-Lab/MMLU-Pro", "MIT; its code Apache-2.0", files="data/*"
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The three steps of its code."""
        return MmluProLetter(
            "mmlu-pro",
            "the first `answer is (X)`, else the first line's last `answer: X`, else the last capital A to J that "
            "stands alone; else unread, where the official code draws a letter",
        )

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of question, options, answer, answer_index, category and cot_content."""
        options = dict(
            zip(
                LETTERS[:10], (each for each in row.texts("options") if each != "N/A"), strict=False
            )
        )
        gold = row.text("answer")
        if gold not in options:
            raise row.error(
                f"the field 'answer' has to be one of {', '.join(options)}, not {gold!r:.80}"
            )
        worked = re.sub(r"^A:\s*", "", row.text("cot_content", "").strip())
        columns, group = shown_columns(row), row.text("category")
        return Question(
            name, row.text("question"), (gold,), options, columns, group=group, worked=worked
        )


_PRIVATE = b"GPQA's authors ask that its questions stay out of public pages"


class Gpqa(PublishedSuite):
    """GPQA: graduate-level questions with four options; its texts are private in records (--dataset FILE.csv)."""

    name = "gpqa"
    template = _ASKS_LETTER
    needs = frozenset({PRIVACY})
    privacy_key = _PRIVATE
    publication = Publication.on_hub(
        "Idavidrein/gpqa",
        "CC BY 4.0; its authors ask that no question is published",
        files="gpqa_diamond.csv",
        or_from="dataset.zip of github.com/idavidrein/gpqa, where there is no form to fill in",
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The letter after `Answer:` in the raw reply."""
        return GpqaLetter(
            "gpqa",
            "the first A to D after `Answer:`, case ignored, in the reply as it is; a small letter is read and counts "
            "as wrong, as in simple-evals",
        )

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:
        """A row of Question, Correct Answer and three Incorrect Answers, in an order by the row and the seed."""
        right, *wrong = (
            row.text(each).strip()
            for each in ("Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)))
        )
        if right in wrong:
            raise row.error("an incorrect answer is the same as the correct one")
        text = row.text("Question").strip()
        texts = sorted([right, *wrong])
        random.Random(f"{seed} {text} {texts}").shuffle(texts)  # noqa: S311 repeatable on purpose
        options = dict(zip(LETTERS, texts, strict=False))
        return Question(
            name,
            text,
            (LETTERS[texts.index(right)],),
            options,
            group=row.text("High-level domain", ""),
        )

    def shown_answer(self, answer: str) -> str:
        """The letter; of anything else only that it is private."""
        return answer if len(answer) == 1 else "[private]"


class Arc(PublishedSuite):
    """ARC: science questions of school exams with three to five options (--dataset FILE)."""

    name = "arc"
    template = "{input}\n\n{choices}"
    publication = Publication.on_hub(
        "allenai/ai2_arc", f"CC BY-SA 4.0, {_CARD}", files="ARC-Challenge/test*", folder="arc"
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The label that the reply states."""
        metric = LabelMetric()
        return ByMetric("choice", CHOICE, metric.format_line, metric=metric)

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of question, choices and answerKey."""
        text, options, label = arc_choice(row)
        return Question(name, text, (label,), options, shown_columns(row))


class TruthfulQa(PublishedSuite):
    """TruthfulQA: the one true answer among false ones, MC1 (--dataset FILE)."""

    name = "truthfulqa"
    template = "{input}\n\n{choices}"
    publication = Publication.on_hub(
        "truthfulqa/truthful_qa",
        f"Apache-2.0, {_CARD}",
        files="multiple_choice/*",
        folder="truthfulqa",
        or_from="TruthfulQA.csv of github.com/sylinrl/TruthfulQA",
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The label of MC1 that the reply states."""
        metric = LabelMetric()
        return ByMetric("choice", f"MC1: {CHOICE}", metric.format_line, metric=metric)

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:
        """A row of either configuration, or of the CSV; the options are in an order by the row and the seed."""
        text, options, label = truthful_choice(row, seed)
        return Question(name, text, (label,), options, shown_columns(row))


class IfEval(PublishedSuite):
    """IFEval: prompts with instructions whose following a program verifies (--dataset input_data.jsonl)."""

    name = "ifeval"
    template = "{input}"
    parts = ("questions", "ifeval")
    publication = Publication.on_hub(
        "google/IFEval",
        "Apache-2.0",
        files="ifeval_input_data.jsonl",
        or_from="instruction_following_eval/data of github.com/google-research",
    )

    @classmethod
    def load(cls, source: SuiteSource) -> PublishedSuite:
        """Raises KoderzError as all published sets, and where a library lacks."""
        require_libraries()
        return super().load(source)

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """Whether all instructions are followed, strictly."""
        about = (
            "every instruction of the prompt is followed, verified as lm-eval does it (strict); loose, by instruction "
            "and by prompt stand beside"
        )
        return Followed("ifeval", about, is_bounded=True)

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of key, prompt, instruction_id_list and kwargs."""
        return Question(name, row.text("prompt"), (), instructions=instructions_in(row))


class SimpleQa(PublishedSuite):
    """SimpleQA: short questions of fact, graded by a model (--dataset FILE.csv --role judge=MODEL)."""

    name = "simpleqa"
    template = "{input}"
    parts = ("questions", "simpleqa")
    publication = Publication.on_hub(
        "basicv8vc/SimpleQA",
        "MIT",
        or_from="simple_qa_test_set.csv of github.com/openai/simple-evals",
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:
        """A judge model's letter."""
        return Factual(draws=options.judge_draws)

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of problem, answer and metadata."""
        return Question(
            name, row.text("problem"), (text_in(row, "answer"),), columns=shown_columns(row)
        )


class Drop(PublishedSuite):
    """DROP: questions about a passage that take counting, sorting or sums (--dataset FILE)."""

    name = "drop"
    template = (
        "Read the passage and answer the question about it. Think step by step, then write a line of the form "
        '"Answer: $ANSWER" at the end.\n\n{input}'
    )
    publication = Publication.on_hub(
        "ucinlp/drop",
        f"CC BY-SA 4.0, {_CARD}",
        files="data/validation*",
        or_from="drop_v0_dev.jsonl.gz of github.com/openai/simple-evals",
    )

    @classmethod
    def official(cls, options: QuestionOptions) -> ScoringRule:  # noqa: ARG003
        """The text after `Answer:`, within a right answer or around it."""
        return DropSpan(
            "drop",
            "what follows the first `Answer:` to the line's end, else the whole reply; right where it is part of a "
            "right answer or the other way round, without case, punctuation and articles; EM and F1 beside",
        )

    @classmethod
    def question(cls, row: Row, name: str, seed: int) -> Question:  # noqa: ARG003
        """A row of context, ref_text and completion; or of passage, question and answers_spans."""
        if "context" in row.fields:
            text, targets = row.text("context"), row.text("ref_text").split("|")
            passage = text.rpartition("Question:")[0].strip()
        else:
            passage = row.text("passage").strip()
            text = f"{row.text('passage')}\n\nQuestion: {row.text('question')}"
            spans = row.fields.get("answers_spans")
            found = spans.get("spans") if isinstance(spans, dict) else spans
            if not are_texts(found):
                raise row.error("the field 'answers_spans' has to hold a list of texts 'spans'")
            targets = found
        targets = [each for each in dict.fromkeys(targets) if each.strip()]
        if not targets:
            raise row.error("there is no right answer")
        cluster = cluster_of_text("passage", passage) if passage else ""
        return Question(name, text, tuple(targets), columns=shown_columns(row), cluster=cluster)


def _require_number(row: Row, name: str, text: str) -> None:
    try:
        decimal_in(text)
    except ValueError:
        raise row.error(
            f"the field {name!r} has to end in a number behind ####, not {text!r:.80}"
        ) from None


SETS: Sequence[type[PublishedSuite]] = (
    Gsm8k,
    Math,
    Aime,
    Mmlu,
    MmluPro,
    Gpqa,
    Arc,
    TruthfulQa,
    IfEval,
    SimpleQa,
    Drop,
)
"""The suites of published sets."""
