"""The ids of a plan's experiments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import orjson

from koderz_tracker import records


def planned_ids(record: records.Plan) -> Iterator[tuple[str, str, str, int]]:
    """The experiments of a recorded plan: their ids, tasks, arms and samples, in the order of its cells."""
    cells = record.cells
    if cells is None:
        cells = [
            records.Cell(task, arm.name, record.samples)
            for task in record.tasks
            for arm in record.arms
        ]
    for cell in cells:
        number_of = NumberOfSamples(record.run_id, cell.task, cell.arm, record.basis.digest)
        for sample in range(cell.samples):
            yield f"exp_{number_of(sample):016x}", cell.task, cell.arm, sample


class NumberOfSamples:
    """The ids of one task's samples as numbers. Their common part is hashed once, which speeds up resuming."""

    def __init__(self, *parts: object) -> None:
        self._begun = hashlib.blake2b(f"{repr(parts)[:-1]}, ".encode(), digest_size=8)

    def __call__(self, sample: int) -> int:
        digest = self._begun.copy()
        digest.update(b"%d)" % sample)
        return int.from_bytes(digest.digest(), "big")


def digest_of(value: Any) -> str:
    """A digest of a JSON value, 32 hex digits."""
    return hashlib.blake2b(
        orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16
    ).hexdigest()
