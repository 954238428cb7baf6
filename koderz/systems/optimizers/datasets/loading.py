"""Reads and cuts the datasets that options name, or that are found here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.settings.registry import digest_of_file, find_in_file, handed
from koderz.suites import added_dataset
from koderz.suites.dataset import Row
from koderz.suites.metrics import LabelMetric, Metric, NumberMetric, OwnMetric, TextMetric
from koderz.suites.options import require_no_column
from koderz.suites.scorers import Labels
from koderz.suites.tables import KINDS, kind_of, placeholders, read_rows, scalar
from koderz.systems.optimizers.datasets.generated import GENERATED
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.payload import (
    SPLITS,
    Dataset,
    Item,
    Piece,
    Preset,
    SplitDataset,
    SplitName,
    cut,
)
from koderz.systems.optimizers.datasets.published import PUBLISHED, TESTS, JudgeMetric
from koderz.types import Message
from koderz_tracker.files import MB, read_all, write_whole

_NAMES: Mapping[str, str] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
} | {
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_SPLIT = re.compile(rf"({'|'.join(_NAMES)})(?:$|[._-])", re.IGNORECASE)
_MOST_CHARACTERS = 1_000_000  # of an item

MakeItem = Callable[[str, Row], Item]
"""Makes an item of an id and a row. Raises KoderzError for an invalid row."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """A source split: the rows of one file, or of several in sequence."""

    dataset: str
    name: str  # of the source split
    files: tuple[Path, ...]
    make: MakeItem

    def __iter__(self) -> Iterator[Item]:
        number = 0
        for file in self.files:
            for row in read_rows(file):
                item = self.make(f"{self.dataset}/{self.name}/{number}", row)
                if len(item.text) > _MOST_CHARACTERS:
                    raise row.error(
                        f"an item of more than {_MOST_CHARACTERS:,} characters isn't read"
                    )
                yield item
                number += 1


def source_splits(
    dataset: str,
    path: Path,
    make: MakeItem,
    usual: str,
    folders: Collection[str] = (),
    unnamed: str = "",
    tests: str = "",
) -> list[FileRows]:
    """The source splits of a file or folder; in a folder, file names begin with their split's name.

    `usual`: the name of the split of a single file, and of files that match the pattern `unnamed`, whose names don't
    say it; `folders`: where files may lie in a folder that has none itself; `tests`: a folder whose files are the split
    test, whatever their names. Raises KoderzError where there is nothing of the kind.
    """
    if path.is_dir():
        for folder in (path, *(path / name for name in folders)):
            if found := _in_folder(folder, unnamed, usual):
                if tests and (path / tests).is_dir():
                    files = sorted(
                        file
                        for file in (path / tests).rglob("*")
                        if file.is_file() and kind_of(file)
                    )
                    found |= {"test": files} if files else {}
                return [
                    FileRows(dataset, name, tuple(files), make) for name, files in found.items()
                ]
        raise KoderzError(
            f"{path}: there is no train, validation or test file as {', '.join(KINDS)} (also .gz) for {dataset}"
        )
    if not path.is_file():
        raise KoderzError(f"{path}: there is no such file or folder for {dataset}")
    return [FileRows(dataset, _split_of(path) or usual, (path,), make)]


def _in_folder(folder: Path, unnamed: str, usual: str) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = _split_of(path) or (usual if fnmatch(path.name, unnamed) else "")
        if name and path.is_file() and kind_of(path):
            found.setdefault(name, []).append(path)
    return found


def _split_of(path: Path) -> str:
    begins = _SPLIT.match(path.name)
    return _NAMES[begins[1].lower()] if begins else ""


_SIZE = 150  # items of each split of one's own dataset
_TEST_MODE = 5
_NONE_HERE = (
    "No dataset is named and none of the published ones is here, so this run uses {}, which are GENERATED: their "
    "results say little about any real task. Name others with --demo-datasets, which says how to get a published one, "
    "and your own with --dataset."
)


def load_datasets(options: DatasetOptions) -> tuple[tuple[Dataset, ...], tuple[str, ...]]:
    """The datasets, and notes on their choice. Raises KoderzError if one is unknown or missing."""
    given = {
        name: Path(path) for name, _, path in (word.partition("=") for word in options.dataset)
    }
    if made_up := given.keys() & GENERATED.keys():
        raise KoderzError(
            f"--dataset {min(made_up)}=…: {min(made_up)} is generated; give your own another name"
        )
    added = {
        name: path for name in PUBLISHED if name not in given and (path := added_dataset(name))
    }
    known = {**added, **given}
    places = {name: known[name] for name in (*PUBLISHED, *given) if name in known}
    notices: tuple[str, ...] = ()
    names = tuple(dict.fromkeys(options.demo_datasets)) or tuple(places)
    if not names:
        names = tuple(GENERATED)
        notices = (_NONE_HERE.format(" and ".join(names)),)
    return tuple(_load(name, places, options) for name in names), notices


def _load(name: str, places: Mapping[str, Path], options: DatasetOptions) -> Dataset:
    if name in GENERATED:
        return _generated(name, options)
    if name in PUBLISHED:
        return _published(name, places, options)
    if name in places:
        return _own(name, places[name], options)
    known = ", ".join((*PUBLISHED, *GENERATED))
    raise KoderzError(
        f"there is no dataset {name!r}; there are {known}, and your own by --dataset {name}=PATH"
    )


def _generated(name: str, options: DatasetOptions) -> Dataset:
    require_no_column(options, f"{name} is generated")
    made = GENERATED[name]
    items = [*made.items(name, options.data_seed)]
    found = cut(
        name,
        {"generated": items},
        _sized(made.preset, options),
        seed=options.data_seed,
        policy=options.on_leak,
    )
    return _dataset(
        name,
        found,
        _system(made.instruction, made.user),
        options,
        source=f"generated from templates, seed {options.data_seed}",
        licence="koderz' own",
        generated=True,
    )


def _published(name: str, places: Mapping[str, Path], options: DatasetOptions) -> Dataset:
    about = PUBLISHED[name]
    if name not in places:
        raise about.publication(name).missing(name, "PATH", option=f"--dataset {name}=PATH")

    def make(item_id: str, row: Row) -> Item:
        item = about.make(item_id, row, options.data_seed)
        cluster = row.cluster_by(options.cluster_column) if options.cluster_column else ""
        return replace(item, shares=(cluster,)) if cluster else item

    usual = (
        about.preset["test"].source
        if len({piece.source for piece in about.preset.values()}) == 1
        else "train"
    )
    tests = TESTS if about.tested else ""
    sources = source_splits(
        name, places[name], make, usual, (about.config, "data"), about.unnamed, tests
    )
    found = _cut(name, sources, about.preset, options, about.unlabelled)
    user = about.closed_book if options.closed_book and about.closed_book else about.user
    source = f"{about.source}, {places[name]}"
    return _dataset(
        name, found, _system(about.instruction, user), options, source=source, licence=about.licence
    )


def _own(name: str, place: Path, options: DatasetOptions) -> Dataset:
    sources = source_splits(name, place, own_item(name, options), "train", ("data",))
    preset = {split: Piece(split, 0, _SIZE) for split in SPLITS}
    found = _cut(name, sources, preset, options)
    messages = plain_messages(options.input_columns)
    return _dataset(name, found, messages, options, source=str(place), licence="one's own")


def _dataset(
    name: str,
    found: SplitDataset,
    messages: tuple[Message, ...],
    options: DatasetOptions,
    *,
    source: str,
    licence: str,
    generated: bool = False,
) -> Dataset:
    if options.initial_prompt:
        messages = read_prompt(options.initial_prompt, messages, found.splits["test"][0].columns)
    metric = metric_of(name, found.splits, options)
    return Dataset(
        name=name,
        source=source,
        licence=licence,
        splits=found.splits,
        messages=messages,
        format_line=metric.format_line if options.format_line else "",
        metric=metric,
        leakage=found.leakage,
        generated=generated,
        notes=found.notes,
    )


def metric_of(
    name: str, splits: Mapping[SplitName, Sequence[Item]], options: DatasetOptions
) -> Metric:
    """The chosen metric, else the dataset's own. Raises KoderzError if it can't score the items."""
    if options.metric == "opik":
        if name not in PUBLISHED:
            raise KoderzError(
                "--metric opik: the original of these benchmarks knows the published datasets alone"
            )
        return PUBLISHED[name].original
    if options.metric:
        return chosen_metric(options.metric, [*chain.from_iterable(splits.values())])
    usual = PUBLISHED.get(name) or GENERATED.get(name)
    return usual.metric if usual else chosen_metric("exact_match", ())


def _cut(
    name: str,
    sources: list[FileRows],
    preset: Preset,
    options: DatasetOptions,
    unlabelled: str = "",
) -> SplitDataset:
    rows = {each.name: each for each in sources}
    preset = _sized(_of_sources(name, preset, [*rows], unlabelled), options)
    wanted = {piece.source for piece in preset.values()}
    used = {source: rows[source] for source in rows if source in wanted}
    return cut(name, used, preset, seed=options.data_seed, policy=options.on_leak)


def _of_sources(name: str, preset: Preset, sources: list[str], unlabelled: str) -> Preset:
    """The preset if its source splits exist; else one in which each split has its own source.

    `unlabelled`: a source split that may be there and isn't used by the preset, as it has no answers.
    """
    if {piece.source for piece in preset.values()} == {*sources} - {unlabelled}:
        return preset
    if len(sources) == 1:
        start, pieces = 0, dict[SplitName, Piece]()
        for split in SPLITS:
            pieces[split] = Piece(sources[0], start, preset[split].size)
            start += preset[split].size
        return pieces
    if missing := [split for split in ("train", "test") if split not in sources]:
        raise KoderzError(f"{name}: there is no {missing[0]} file; there are {', '.join(sources)}")
    plain: dict[SplitName, Piece] = {split: Piece(split, 0, preset[split].size) for split in SPLITS}
    if "validation" not in sources:
        plain["validation"] = Piece("train", plain["train"].size, preset["validation"].size)
    return plain


def _sized(preset: Preset, options: DatasetOptions) -> Preset:
    given = {
        "train": options.train_items,
        "validation": options.validation_items,
        "test": options.test_items,
    }
    usual = {
        split: _TEST_MODE if options.test_mode else piece.size for split, piece in preset.items()
    }
    return {
        split: piece._replace(size=given[split] or usual[split]) for split, piece in preset.items()
    }


def _system(instruction: str, user: str) -> tuple[Message, ...]:
    return {"role": "system", "content": instruction}, {"role": "user", "content": user}


def write_rows(dataset: Dataset, folder: Path) -> Iterator[tuple[Path, int]]:
    """The items of each split as JSON lines of their columns and `answer`."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        path, items = folder / f"{split}.jsonl", dataset.splits[split]
        rows = (f"{json.dumps({**item.columns, 'answer': item.gold})}\n".encode() for item in items)
        write_whole(path, rows, durable=False)
        yield path, len(items)


_MOST_LABELS = 50


def own_item(name: str, options: DatasetOptions) -> MakeItem:
    """A function that makes the items of one's own dataset from rows. Raises KoderzError if no columns are named."""
    inputs, output = options.input_columns, options.output_column
    if not inputs or not output:
        raise KoderzError(
            f"{name} is a dataset of your own: name its columns with --input-column and --output-column"
        )
    if output in inputs:
        raise KoderzError(
            f"--output-column {output}: prompts may show the --input-column ones, so it can't be one"
        )

    def make(item_id: str, row: Row) -> Item:
        cluster = scalar(row, options.cluster_column) if options.cluster_column else row.cluster
        shares = (cluster,) if cluster else ()
        return Item(
            item_id,
            {column: scalar(row, column) for column in inputs},
            scalar(row, output),
            shares=shares,
        )

    return make


def plain_messages(columns: Collection[str]) -> tuple[Message, ...]:
    """The default prompt of a user's own dataset."""
    shown = "\n\n".join(f"{column}: {{{column}}}" for column in columns)
    return {"role": "system", "content": "Answer."}, {"role": "user", "content": shown}


def read_prompt(
    path: Path, usual: tuple[Message, ...], columns: Collection[str]
) -> tuple[Message, ...]:
    """The initial prompt in a file: a text replaces the instruction in `usual`, JSON is messages.

    Raises KoderzError for a file that can't be read, and for messages that aren't any or show no column.
    """
    try:
        text = read_all(path, MB).decode("utf-8")
    except (OSError, ValueError) as error:
        raise KoderzError(f"--initial-prompt {path} can't be read: {error}") from None
    said = _as_json(text)
    if not isinstance(said, list):
        return {**usual[0], "content": text.strip()}, *usual[1:]
    if not said or not all(map(_is_message, said)) or said[-1]["role"] != "user":
        raise KoderzError(
            f'--initial-prompt {path}: write [{{"role": "system", "content": …}}, {{"role": "user", "content": …}}], '
            "the user's message last"
        )
    if not placeholders(said[-1]["content"], columns):
        known = ", ".join(f"{{{column}}}" for column in columns)
        raise KoderzError(
            f"--initial-prompt {path}: its last message shows nothing of an item; there are {known}"
        )
    messages = tuple({"role": each["role"], "content": each["content"]} for each in said)
    return (
        messages
        if messages[0]["role"] == "system"
        else ({"role": "system", "content": ""}, *messages)
    )


def chosen_metric(name: str, items: Collection[Item]) -> Metric:
    """The metric with this name for these items. Raises KoderzError if it can't score them."""
    if ":" in name:
        function = find_in_file("--metric", name)
        if not callable(function):
            raise KoderzError(f"--metric {name}: that is no function")
        attribute = name.rpartition(":")[2]
        own = handed(name)
        source = own.source if own else Path(name.rpartition(":")[0]).read_text("utf-8")
        return OwnMetric(attribute, function, digest_of_file(name), source)
    if name in ("choice", "label"):
        if name == "choice" and all(item.options for item in items):
            return LabelMetric()
        labels = sorted({item.gold for item in items})
        if len(labels) > _MOST_LABELS:
            raise KoderzError(
                f"--metric {name}: there may be {_MOST_LABELS} labels, not the {len(labels)} here"
            )
        return LabelMetric(Labels({label: (label,) for label in labels}, is_cased=name == "choice"))
    beside = {"exact_match": ("f1",), "f1": ("exact_match",)}.get(name, ())
    if name == "number":
        return NumberMetric()
    return JudgeMetric() if name == "judge" else TextMetric(name, beside)


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in ("system", "user", "assistant")
        and isinstance(value.get("content"), str)
    )
