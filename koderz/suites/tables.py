"""Rows of tables as people have them: JSON, CSV and parquet, of one file after another."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.dataset import GZIP, Row, read_rows

KINDS = (".jsonl", ".json", ".csv", ".parquet")


def kind_of(path: Path) -> str:
    """How a file's name ends, but for `.gz`; empty where it isn't one of a table."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in KINDS else ""


def read_table(path: Path) -> Iterator[Row]:
    """The rows of a table by how its name ends; of any other name as JSON. CSV has a header, its values are texts.

    Raises KoderzError, naming file and line, for what isn't one.
    """
    return {".csv": _of_csv, ".parquet": _of_parquet}.get(kind_of(path), read_rows)(path)


def _of_csv(path: Path) -> Iterator[Row]:
    line = 0
    try:
        with path.open("rb") as plain:
            zipped = plain.peek(2).startswith(GZIP)
        opener = gzip.open if zipped else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            if not names or len(names) != len({*names}) or not all(names):
                raise KoderzError(f"{path}, line 1: the columns need a name each, all different")
            line = reader.line_num + 1
            for values in reader:
                where = f"{path}, line {line}"
                if values and len(values) != len(names):
                    raise KoderzError(f"{where}: {len(values)} columns, but the header has {len(names)}")
                if values:
                    yield Row(where, dict(zip(names, values, strict=True)))
                line = reader.line_num + 1
    except FileNotFoundError:
        raise KoderzError(f"there is no dataset {path}") from None
    except csv.Error as error:
        raise KoderzError(f"{path}, line {line or 1}: not CSV ({error})") from None
    except UnicodeDecodeError:
        raise KoderzError(f"{path}, after line {line}: not UTF-8 text") from None
    except (OSError, EOFError) as error:
        raise KoderzError(f"the dataset {path} can't be read: {error}") from None


def _of_parquet(path: Path) -> Iterator[Row]:
    number = 0
    with opened_parquet(path) as file:
        for batch in file.iter_batches(batch_size=1000):
            for fields in batch.to_pylist():
                yield Row(f"{path}, row {number}", fields)
                number += 1


@contextmanager
def opened_parquet(path: Path, error: type[KoderzError] = KoderzError) -> Iterator[Any]:
    """pyarrow's ParquetFile. What can't be read, now or within, is an `error` that names the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except FileNotFoundError:
        raise error(f"there is no dataset {path}") from None
    except (OSError, pa.ArrowException) as problem:
        raise error(f"the dataset {path} can't be read: {problem}") from None
