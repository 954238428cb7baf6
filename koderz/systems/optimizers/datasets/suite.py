"""The suite `datasets`: each task is a dataset, for solvers that score prompts on its items."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import msgspec

from koderz.errors import KoderzError
from koderz.settings.schema import Settings
from koderz.suites import task_digest
from koderz.suites.matrix import Matrix
from koderz.suites.metrics import OwnMetric
from koderz.suites.suite import ExperimentContext, Publication, Suite, SuiteSource, linked
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.evaluator import WORDS, Evaluator, open_evaluator
from koderz.systems.optimizers.datasets.loading import load_datasets, metric_of, write_rows
from koderz.systems.optimizers.datasets.options import (
    DatasetOptions,
    expected_calls,
    require_budget,
)
from koderz.systems.optimizers.datasets.payload import (
    SPLITS,
    Dataset,
    DatasetRecord,
    Item,
    Leakage,
    LeakageRecord,
    SplitName,
    SplitRecord,
)
from koderz.systems.optimizers.datasets.published import PUBLISHED
from koderz.systems.optimizers.datasets.simulated import SimulatedReader
from koderz.types import JUDGE, Expected, Headline, Measure, Message, Task

EVALUATOR = "evaluator"


class DatasetSuite(Suite):
    """Graded items for optimizers of prompts: published datasets, one's own, and two that are made up.

    Each task is a dataset. Its solver scores prompts on the items by the handle `evaluator`, which makes the verdict.
    """

    name = "datasets"
    options = DatasetOptions
    named_datasets: ClassVar[Mapping[str, Publication]] = {
        name: each.publication(name) for name, each in PUBLISHED.items()
    }
    mode = "optimize"
    words = WORDS
    parts = ("optimize",)
    sinks = ("checkpoint",)
    measures = (Measure("score", "higher", "share"), Measure("unread", "lower", "share"))
    headline = Headline("score", passed="", panels=("cost", "trend"))
    required = frozenset({EVALUATOR})

    def __init__(self, datasets: Sequence[Dataset], notices: Sequence[str] = ()) -> None:
        self.tasks = tuple(map(_task, datasets))
        self.notices = (
            *notices,
            *(f"{each.name}: {note}" for each in datasets for note in each.notes),
        )
        self.source = "; ".join(f"{each.name}: {each.source}" for each in datasets)
        self.asks_judge = any(each.metric.asks_judge for each in datasets)
        own = [each.metric.digest for each in datasets if isinstance(each.metric, OwnMetric)]
        self.own_files = {"--metric": own[0]} if own else {}
        self._simulated = SimulatedReader(datasets)

    @classmethod
    def load(cls, source: SuiteSource) -> DatasetSuite:
        """A `dataset` that is the place of no `part` is a file of `packed`.

        Raises KoderzError for a dataset that isn't known, found, or as it should be.
        """
        options: DatasetOptions = source.options or DatasetOptions()
        if part := source.part:
            options = replace(options, dataset=(f"{part}={source.dataset}",), demo_datasets=(part,))
            # all rows are read
            options = replace(options, train_items=1, validation_items=1, test_items=1)
        elif source.dataset is not None:
            return cls(unpacked(source.dataset, options))
        return cls(*load_datasets(options))

    def messages(self, task: Task[Dataset], prompts: Any) -> tuple[Message, ...]:  # noqa: ARG002
        """The initial prompt with its placeholders."""
        return task.payload.messages

    def expected(self, task: Task[Dataset], solver: Any, settings: Settings) -> list[Expected]:
        """The calls of one experiment: of the test alone, or of a search and the test."""
        return expected_calls(
            task.payload, settings.of(DatasetOptions), is_baseline=solver.name == BASELINE
        )

    def details(self, tasks: Sequence[Task[Dataset]], settings: Settings) -> dict[str, Any]:
        """The record of each dataset. Raises KoderzError if the budget of metric calls is too small."""
        options = settings.of(DatasetOptions)
        for task in tasks:
            require_budget(task.id, len(task.payload.validation), options.budget_calls)
        if self.asks_judge and not (options.judge_model or settings.given_roles.get(JUDGE)):
            raise KoderzError("this metric asks a model; name one with --judge-model")
        return {task.id: described(task.payload) for task in tasks}

    def arms(self, tasks: Sequence[Task[Dataset]], settings: Settings) -> Matrix:  # noqa: ARG002
        """The optimizers beside the initial prompt alone."""
        from koderz.systems.optimizers.datasets.arms import arms_of

        matrix, notes = arms_of(settings.of(DatasetOptions))
        self.notices = (*self.notices, *notes)
        return matrix

    def simulate(self, messages: Sequence[Message], sampling: Any) -> str:
        """The simulated model's reply to an item, or to a request for prompts."""
        return self._simulated.reply(messages, sampling)

    def open_evaluator(self, context: ExperimentContext) -> AbstractAsyncContextManager[Evaluator]:
        """Opens the evaluator, which scores prompts on the dataset's items."""
        return open_evaluator(context.task.payload, context.handles, context.settings)

    def packed(self) -> bytes:
        """All datasets as one file, without rows that no item was cut from."""
        return packed([task.payload for task in self.tasks])

    def export(self, folder: Path) -> Iterator[tuple[Path, int]]:
        """Writes the splits of each dataset into a folder of its own."""
        for task in self.tasks:
            yield from write_rows(task.payload, folder / task.id)


def _task(dataset: Dataset) -> Task[Dataset]:
    known = [
        *dataset.digests.values(),
        *map(str, dataset.messages),
        dataset.format_line,
        repr(dataset.metric),
    ]
    return Task(
        dataset.name, payload=dataset, needs=frozenset({EVALUATOR}), digest=task_digest(*known)
    )


def described(dataset: Dataset) -> dict[str, Any]:
    """The record of a dataset in a plan: a `DatasetRecord` as JSON has it."""
    leakage, digests = dataset.leakage, dataset.digests
    exact, near = leakage.total
    clusters = linked({item.id: item.shares for item in dataset.test})
    # The shared value itself may be a whole text, so that clusters are numbered.
    numbers = {name: str(number) for number, name in enumerate(dict.fromkeys(clusters.values()), 1)}
    record = DatasetRecord(
        source=dataset.source,
        licence=dataset.licence,
        generated=dataset.generated,
        metric=dataset.metric.name,
        metrics=list(dataset.metric.others),
        messages=list(dataset.messages),
        format_line=dataset.format_line,
        splits={
            split: SplitRecord(
                digests[split],
                len(dataset.splits[split]),
                leakage.exact[split],
                leakage.near[split],
            )
            for split in SPLITS
        },
        leakage=LeakageRecord(exact, near, leakage.policy),
        notes=list(dataset.notes),
        clusters={item: numbers[name] for item, name in clusters.items()},
    )
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {name: value for name, value in fields.items() if name != "clusters" or value}


def packed(datasets: Sequence[Dataset]) -> bytes:
    """All datasets as bytes, with the source of the user's own metric if there is one."""
    names = [field.name for field in fields(Dataset) if field.name != "metric"]
    content = {
        "datasets": [{name: getattr(each, name) for name in names} for each in datasets],
        "metric": next(
            (each.metric.source for each in datasets if isinstance(each.metric, OwnMetric)), ""
        ),
    }
    return gzip.compress(msgspec.json.encode(content), mtime=0)


def unpacked(path: Path, options: DatasetOptions) -> tuple[Dataset, ...]:
    """The datasets in a file made by `packed`. Raises KoderzError for any other file."""
    try:
        content = msgspec.json.decode(gzip.decompress(path.read_bytes()))
        with _metric_at_hand(options, content["metric"]) as at_hand:
            return tuple(_dataset(about, at_hand) for about in content["datasets"])
    except (OSError, EOFError, TypeError, KeyError, msgspec.MsgspecError) as error:
        raise KoderzError(
            f"{path} holds no packed datasets ({error}); name a dataset as NAME=PATH"
        ) from None


@contextmanager
def _metric_at_hand(options: DatasetOptions, source: str) -> Iterator[DatasetOptions]:
    """The options with the user's own metric in a local file."""
    if not source or options.metric is None:
        yield options
        return
    file, _, attribute = options.metric.rpartition(":")
    with TemporaryDirectory(prefix="koderz-") as folder:
        place = Path(folder, Path(file).name)
        place.write_text(source, "utf-8")
        yield replace(options, metric=f"{place}:{attribute}")


def _dataset(about: dict[str, Any], options: DatasetOptions) -> Dataset:
    splits: dict[SplitName, tuple[Item, ...]] = msgspec.convert(
        about["splits"], dict[SplitName, tuple[Item, ...]]
    )
    about |= {name: tuple(about[name]) for name in ("messages", "notes")}
    about |= {"splits": splits, "leakage": msgspec.convert(about["leakage"], Leakage)}
    return Dataset(**about, metric=metric_of(about["name"], splits, options))
