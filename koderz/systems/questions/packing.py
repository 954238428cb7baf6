"""The files of a suite of questions as one archive, for an engine elsewhere."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from koderz.settings.registry import file_of
from koderz.suites.suite import SuiteSource
from koderz.systems.questions.options import QuestionOptions

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
    for name, path in zip(_FILES, (options.few_shot_from, options.template, options.rubric), strict=True):
        if path:
            yield name, path
    if options.scorer and ":" in options.scorer:
        yield "scorer", file_of(options.scorer)
