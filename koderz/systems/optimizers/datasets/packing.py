"""Datasets in one file for a machine without them: the items that were cut, and the initial prompts."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from koderz.errors import KoderzError
from koderz.systems.optimizers.datasets.loading import metric_of
from koderz.systems.optimizers.datasets.metrics import OwnMetric
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.payload import Dataset, Item, Leakage, SplitName


def packed(datasets: Sequence[Dataset]) -> bytes:
    """All datasets as bytes, with the source of the user's own metric if there is one."""
    names = [field.name for field in fields(Dataset) if field.name != "metric"]
    content = {
        "datasets": [{name: getattr(each, name) for name in names} for each in datasets],
        "metric": next((each.metric.source for each in datasets if isinstance(each.metric, OwnMetric)), ""),
    }
    return gzip.compress(msgspec.json.encode(content), mtime=0)


def unpacked(path: Path, options: DatasetOptions) -> tuple[Dataset, ...]:
    """The datasets in a file made by `packed`. Raises KoderzError for any other file."""
    try:
        content = msgspec.json.decode(gzip.decompress(path.read_bytes()))
        with _metric_at_hand(options, content["metric"]) as at_hand:
            return tuple(_dataset(about, at_hand) for about in content["datasets"])
    except (OSError, EOFError, TypeError, KeyError, msgspec.MsgspecError) as error:
        raise KoderzError(f"{path} holds no packed datasets ({error}); name a dataset as NAME=PATH") from None


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
    splits: dict[SplitName, tuple[Item, ...]] = msgspec.convert(about["splits"], dict[SplitName, tuple[Item, ...]])
    about |= {name: tuple(about[name]) for name in ("messages", "notes")}
    about |= {"splits": splits, "leakage": msgspec.convert(about["leakage"], Leakage)}
    return Dataset(**about, metric=metric_of(about["name"], splits, options))
