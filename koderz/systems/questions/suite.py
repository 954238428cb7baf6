"""Suites of questions: their prompts, the verdicts on their replies, and the suite `qa` of one's own rows."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from koderz.errors import KoderzError
from koderz.settings.registry import digest_of_file, file_of, find_in_file
from koderz.settings.schema import Settings
from koderz.suites import file_state, task_digest
from koderz.suites.dataset import Row
from koderz.suites.metrics import UNREAD, Graded, OwnMetric
from koderz.suites.suite import JudgeContext, Suite, SuiteSource, digest_of_rows
from koderz.suites.tables import LETTERS, fill, listed, placeholders, rows_in
from koderz.systems.questions.apart import SHORT, Reader
from koderz.systems.questions.judging import Factual, Judged
from koderz.systems.questions.options import QaOptions, QuestionOptions
from koderz.systems.questions.question import (
    Examples,
    Question,
    SimulatedAnswers,
    as_text,
    checked,
    id_of,
    shown_columns,
    text_in,
)
from koderz.systems.questions.rules import ByMetric, ScoringRule, rule_named
from koderz.types import JUDGE, Headline, Measure, Message, Reply, Task, Verdict
from koderz_tracker.files import MB, read_all
from koderz_tracker.results import ANSWER


def own_questions(
    path: Path, options: QaOptions, *, needs_target: bool, name: str = "qa"
) -> Iterator[tuple[Row, Question]]:
    """The rows with their questions. Raises KoderzError, naming file and line, for a row that lacks a field."""
    for number, row in enumerate(rows_in(path)):
        if not number:
            wanted = {"input": options.input} | ({"target": options.target} if needs_target else {})
            lacking = [option for option, name in wanted.items() if row.value(name) is None]
            meant = {
                option: next((name for name in _USUAL[option] if name in row.fields), "")
                for option in lacking
            }
            if any(meant.values()):
                flags = " ".join(f"--{option} {name or 'COLUMN'}" for option, name in meant.items())
                raise row.error(
                    f"the field {wanted[lacking[0]]!r} is missing; to read others: {flags}"
                )
        choices = _choices(row, options)
        yield (
            row,
            Question(
                id=id_of(row, name, number, options.id),
                text=text_in(row, options.input, "--input"),
                targets=_targets(row, options.target, choices, needs_target=needs_target),
                options=choices,
                columns=shown_columns(row),
                system=_extra(row, "system"),
                group=_extra(row, "group"),
                cluster=row.cluster_by(options.cluster_column),
            ),
        )


_USUAL = {
    "input": ("question", "prompt", "query", "problem", "instruction", "text"),
    "target": ("answer", "expected", "output", "label", "solution", "gold"),
}
"""How columns are often called that are `input` and `target` here."""


def _extra(row: Row, name: str) -> str:
    return "" if row.fields.get(name) is None else text_in(row, name)


def _choices(row: Row, options: QaOptions) -> Mapping[str, str]:
    """The options by label; empty if the row has none."""
    names = options.choices
    if len(names) > 1:
        return {name: text_in(row, name) for name in names}
    name = names[0] if names else "choices"
    value = row.value(name)
    if value is None and not names:
        return {}
    found = _table(row, name, _parsed(value))
    if len(found) < 2 or not all(label.strip() for label in found):
        raise row.error(
            f"the field {name!r} has to be a list of options, or a table of label and text"
        )
    return found


def _parsed(value: Any) -> Any:
    """The value; of a text that is JSON, as in a CSV, what it says."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _table(row: Row, name: str, value: Any) -> dict[str, str]:
    if (
        isinstance(value, Mapping)
        and isinstance(value.get("label"), list)
        and isinstance(value.get("text"), list)
    ):
        pairs = [*zip(value["label"], value["text"], strict=False)]
        if len(value["label"]) != len(value["text"]):
            raise row.error(
                f"the field {name!r} has {len(value['label'])} labels, but {len(value['text'])} texts"
            )
    elif isinstance(value, Mapping):
        pairs = [*value.items()]
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        pairs = [(each.get("label"), each.get("text")) for each in value]
    elif isinstance(value, list) and len(value) <= len(LETTERS):
        pairs = [*zip(LETTERS, value, strict=False)]
    else:
        return {}
    found = {as_text(row, name, label): as_text(row, name, text) for label, text in pairs}
    if len(found) < len(pairs):
        raise row.error(f"the field {name!r} has one label twice")
    return found


def _targets(
    row: Row, name: str, choices: Mapping[str, str], *, needs_target: bool
) -> tuple[str, ...]:
    value = row.value(name)
    if value is None and not needs_target:
        return ()
    values: Sequence[Any] = value if isinstance(value, list) else [value]
    if not values:
        raise row.error(f"the field {name!r} is an empty list")
    if value is None:
        text_in(row, name, "--target")  # which says that it lacks
    if choices:
        return tuple(dict.fromkeys(_label(row, name, each, choices) for each in values))
    return tuple(dict.fromkeys(as_text(row, name, each) for each in values))


def _label(row: Row, name: str, value: Any, choices: Mapping[str, str]) -> str:
    """The label of the right option, which is named by its label, its text, or its number from 0."""
    text = as_text(row, name, value)
    if text in choices:
        return text
    labels = [*choices]
    meant = {label for label, option in choices.items() if option.strip() == text.strip()}
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(labels):
        meant.add(labels[value])
    if len(meant) == 1:
        return meant.pop()
    if meant:
        raise row.error(f"the field {name!r} may mean {' or '.join(sorted(meant))}; name the label")
    raise row.error(
        f"the field {name!r} has to be one of {', '.join(labels)} or an option's text, not {text!r:.80}"
    )


_Options = TypeVar("_Options", bound=QuestionOptions)

_FILES = ("few_shot_from", "template", "rubric")
_MARK = b"koderz questions"


def packed_files(dataset: Path, options: QuestionOptions) -> bytes:
    """The dataset and all files that options name, as an archive that `unpacked_source` reads."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = _MARK
        for name, path in _named(dataset, options):
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    archive.write(file, f"{name}/{file.relative_to(path.parent)}")
    return buffer.getvalue()


def unpacked_source(source: SuiteSource, options: _Options) -> tuple[Path | None, _Options]:
    """The dataset and the options; of an archive with the paths where its files now lie, in a folder beside it."""
    path = source.dataset
    if path is None or not path.is_file() or not zipfile.is_zipfile(path):
        return path, options
    with zipfile.ZipFile(path) as archive:
        if archive.comment != _MARK:
            return path, options
        folder = path.parent.parent / "questions"
        archive.extractall(folder)
    there = {each.name: next(each.iterdir()) for each in folder.iterdir()}
    changes: dict[str, Any] = {name: there[name] for name in _FILES if name in there}
    if "scorer" in there and options.scorer:
        changes["scorer"] = f"{there['scorer']}:{options.scorer.rpartition(':')[2]}"
    return there["dataset"], replace(options, **changes)


def _named(dataset: Path, options: QuestionOptions) -> Iterator[tuple[str, Path]]:
    yield "dataset", dataset
    for name, path in zip(
        _FILES, (options.few_shot_from, options.template, options.rubric), strict=True
    ):
        if path:
            yield name, path
    if options.scorer and ":" in options.scorer:
        yield "scorer", file_of(options.scorer)


_SHOTS = 5  # where --few-shot-from names a file, and nobody says how many
_LONGEST_ANSWER = 1000  # characters of an answer on record
_MODES: Mapping[str, Sequence[str]] = {
    "": ("zero-shot",),
    "zero-shot": ("zero-shot",),
    "iterative": ("iterative",),
    "comparative": ("zero-shot", "iterative"),
}


class QuestionSuite(Suite):
    """Questions with right answers, scored by a rule that says what was read off each reply."""

    modes = _MODES
    parts: Sequence[str] = ("questions",)
    tasks: tuple[Task[Question], ...]
    template: ClassVar[str] = "{input}\n\n{choices}"
    """The user's message, with `{input}`, `{choices}` and any column in braces."""

    option_mark: ClassVar[str] = ")"
    """What stands behind the label of an option."""

    takes_first: ClassVar[bool] = False
    """Whether the set's rule takes the first examples of a group, where others are drawn."""

    def __init__(
        self,
        source: str,
        questions: Sequence[Question],
        rule: ScoringRule,
        options: QuestionOptions,
        seed: int,
    ) -> None:
        self.source, self.rule, self._options = source, rule, options
        self.asks_judge, self.rule_text = rule.asks_judge, rule.about
        self.own_files = {
            flag: digest_of_rows([_read_text(flag, path)])
            for flag, path in (("--template", options.template), ("--rubric", options.rubric))
            if path
        }
        if isinstance(rule, OfFile) and isinstance(rule.metric, OwnMetric):
            self.own_files["--scorer"] = rule.metric.digest
        self._template = (
            _read_template(options.template, questions[0]) if options.template else self.template
        )
        self.examples = self._examples(questions, seed)
        self.tasks = tuple(map(self._task, questions))
        found = [Measure("score", "higher", "share", two_valued=not rule.is_graded)]
        if isinstance(rule, Judged) and rule.draws > 1:
            found.append(Measure("judge_spread", "lower", "share"))
        if isinstance(rule, Factual):
            found.append(Measure("attempted", "higher", "share", two_valued=True))
        if rule.name == "drop":
            found += [
                Measure("em", "higher", "share", two_valued=True),
                Measure("f1", "higher", "share"),
            ]
        self.measures = tuple(found)
        self.headline = Headline("score") if rule.is_graded else None
        if isinstance(rule, Judged | Factual):
            self.judge_record, self.judge_calls = rule.record, rule.draws
        self.notices = (f"Answers are read by this rule ({rule.name}): {rule.about}.",)
        asked = {str(task.messages[-1]["content"]): task.payload for task in self.tasks}
        self._simulated = SimulatedAnswers(asked, rule.demonstrated)
        self._reader = Reader()

    def messages(self, task: Task[Question], prompts: Any) -> tuple[Message, ...]:  # noqa: ARG002
        """The row's system message, the worked examples, and the question."""
        return task.messages

    async def judge(
        self, task: Task[Question], answer: Reply | str, context: JudgeContext
    ) -> Verdict:
        """The verdict by the rule. Raises Fault if a judge model can't be read twice."""
        reply, finish = (
            (answer.text, answer.finish_reason) if isinstance(answer, Reply) else (answer, "stop")
        )
        rule = self.rule
        if rule.is_bounded or (
            len(reply) > SHORT and not rule.asks_judge and not isinstance(rule, OfFile)
        ):
            graded = await self._reader.grade(rule, task.payload, reply)
        else:
            graded = await rule.grade(task.payload, reply, context.ask)
        return self._verdict(graded, finish)

    def _verdict(self, graded: Graded, finish: str) -> Verdict:
        is_unread = graded.cause in UNREAD
        facts = {ANSWER: None if is_unread else self.shown_answer(graded.answer)}
        metrics = dict(graded.metrics)
        if graded.score == 1:
            return Verdict("passed", score=1.0, metrics=metrics, facts=facts)
        feedback = "The answer is wrong."
        if is_unread:
            what = (
                "Several answers were read" if graded.cause == "ambiguous" else "No answer was read"
            )
            feedback = f"{what}. {self.rule.format_line}".strip()
        word, cause = (
            ("error", "length") if is_unread and finish == "length" else ("failed", graded.cause)
        )
        return Verdict(
            word, cause, feedback, graded.reason, score=graded.score, metrics=metrics, facts=facts
        )

    def shown_answer(self, answer: str) -> str:
        """The answer as results have it, without what is too long."""
        flat = answer.strip().encode("utf-8", "replace").decode()
        return flat if len(flat) <= _LONGEST_ANSWER else f"{flat[:_LONGEST_ANSWER]}…"

    def details(self, tasks: Sequence[Task[Question]], settings: Settings) -> Mapping[str, Any]:  # noqa: ARG002
        """The rule and the worked examples. Raises KoderzError if a model is to judge and none is named."""
        if self.asks_judge and not settings.given_roles.get(JUDGE):
            raise KoderzError(
                f"the scorer {self.rule.name} asks a model; name one with --role judge=MODEL"
            )
        return {
            "scorer": self.rule.name,
            "rule": self.rule.about,
            "few_shot": self.examples.record,
            "file": file_state(self),
        }

    def pairing_text(self, task: Task[Question]) -> str:
        """The question with its options in no order."""
        return task.payload.content

    def rows_digest(self) -> str:
        """16 hex digits of the questions with their options and right answers, in no order."""

        def row(question: Question) -> str:
            right = sorted(question.options.get(target, target) for target in question.targets)
            return "\n".join((question.content, *right))

        return digest_of_rows(row(task.payload) for task in self.tasks)

    def packed(self) -> bytes:
        """The dataset and the files that options name."""
        return packed_files(Path(self.source), self._options)

    def simulate(self, messages: Sequence[Message], sampling: Any) -> str:
        """The simulated model's reply, or its grade."""
        return self._simulated.reply(messages, sampling)

    # What is sent

    def user_message(self, question: Question) -> str:
        """The user's message about a question."""
        values = {
            **question.columns,
            "input": question.text,
            "choices": listed(question.options, self.option_mark),
        }
        asked = fill(self._template, values).strip()
        line = self.rule.format_line if not self._options.template else ""
        return f"{asked}\n\n{line}".strip()

    def worked(self, question: Question) -> str:
        """A right reply, for an example. Raises KoderzError if none is known."""
        if text := self.rule.demonstrated(question).strip():
            return text
        raise KoderzError(
            f"--few-shot: {question.id} has no right reply that could be shown as an example"
        )

    def pool(self, path: Path) -> tuple[Question, ...]:
        """The questions of the file that examples come from."""
        raise NotImplementedError

    def _examples(self, questions: Sequence[Question], seed: int) -> Examples:
        place = self._options.few_shot_from
        count = self._options.few_shot
        if count is None:
            count = _SHOTS if place else 0
        pool = self.pool(place) if place and count else questions
        source = str(place) if place else "the dataset"
        drawn = None if self.takes_first else seed
        return Examples(count, pool, source, user=self.user_message, reply=self.worked, seed=drawn)

    def _task(self, question: Question) -> Task[Question]:
        system: tuple[Message, ...] = (
            ({"role": "system", "content": question.system},) if question.system else ()
        )
        asked: Message = {"role": "user", "content": self.user_message(question)}
        messages = (*system, *self.examples.messages(question), asked)
        known = [
            repr(question.targets),
            repr(dict(question.options)),
            repr(question.instructions),
            self.rule.name,
        ]
        return Task(
            question.id,
            prompt=str(asked["content"]),
            payload=question,
            needs=self.needs,
            digest=task_digest(*map(str, messages), *known, self.rule.about),
            groups={"group": question.group} if question.group else {},
            cluster=question.cluster,
            messages=messages,
        )

    needs: ClassVar[frozenset[str]] = frozenset()
    """The needs of the tasks."""


class Qa(QuestionSuite):
    """Questions of one's own: JSON lines, CSV or Parquet with a question and what is right (--dataset)."""

    name = "qa"
    options = QaOptions

    def __init__(
        self,
        source: str,
        questions: Sequence[Question],
        rule: ScoringRule,
        options: QaOptions,
        seed: int,
    ) -> None:
        self._columns = options
        super().__init__(source, questions, rule, options, seed)

    @classmethod
    def load(cls, source: SuiteSource) -> Qa:
        """Raises KoderzError where there is no file, or naming the line of a row that lacks a field."""
        dataset, options = unpacked_source(source, source.options or QaOptions())
        if dataset is None:
            raise KoderzError(
                "the suite qa needs your questions: name their file with --dataset FILE"
            )
        questions = checked(
            own_questions(dataset, options, needs_target=_needs_target(options)), dataset
        )
        usual = "choice" if all(question.options for question in questions) else "exact_match"
        rule = chosen_rule(options, questions, options.scorer or usual)
        return cls(str(dataset), questions, rule, options, source.seed)

    def pool(self, path: Path) -> tuple[Question, ...]:
        """The rows of a file in the same columns."""
        return checked(own_questions(path, self._columns, needs_target=True), path)


def _needs_target(options: QuestionOptions) -> bool:
    """Whether each row has to say what is right."""
    return not (
        options.scorer and (":" in options.scorer or (options.scorer == "judge" and options.rubric))
    )


def chosen_rule(options: QuestionOptions, questions: Sequence[Question], name: str) -> ScoringRule:
    """The rule that `--scorer` names. Raises KoderzError if it can't score these questions, or an option has no use."""
    for value, scorer, flag in (
        (options.pattern, "regex", "--pattern"),
        (options.rubric, "judge", "--rubric"),
    ):
        if value and name != scorer:
            raise KoderzError(f"{flag} is that of --scorer {scorer}")
    if ":" in name:
        function = find_in_file("--scorer", name)
        if not callable(function):
            raise KoderzError(f"--scorer {name}: that is no function")
        file, _, attribute = name.rpartition(":")
        about = f"the function {attribute} of {Path(file).name}, {digest_of_file(name)}"
        return OfFile(
            attribute,
            about,
            is_graded=True,
            metric=OwnMetric(attribute, function, digest_of_file(name)),
        )
    if name == "judge":
        rule = Judged(draws=options.judge_draws)
        return (
            replace(rule, rubric=_read_text("--rubric", options.rubric)) if options.rubric else rule
        )
    return rule_named(name, questions, options.pattern)


class OfFile(ByMetric):
    """The rule of a user's own function, which is handed the question with all its right answers."""

    async def grade(self, question: Question, reply: str, ask: Any = None) -> Graded:  # noqa: ARG002
        return await self.metric(question, reply)


def _read_text(flag: str, path: Path) -> str:
    try:
        text = read_all(path, MB).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        raise KoderzError(f"{flag} {path} can't be read: {error}") from None
    if not text:
        raise KoderzError(f"{flag} {path} is empty")
    return text


def _read_template(path: Path, question: Question) -> str:
    text = _read_text("--template", path)
    known = {**question.columns, "input": "", "choices": ""}
    if not placeholders(text, known):
        names = ", ".join(f"{{{name}}}" for name in [*known][:20])
        raise KoderzError(f"--template {path} shows nothing of a question; there are {names}")
    return text
