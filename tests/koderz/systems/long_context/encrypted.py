"""Rows in BrowseComp-Plus' layout, encrypted with a canary of the tests' own."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

CANARY = "BENCHMARK DATA OF THESE TESTS: a canary that no data set has"
SENTENCE = "The lighthouse keeper of Vundrassel hid the seventh ledger beneath the copper orrery."
"""Stands in a document of each question, and nowhere else."""

ANSWER = "Quillabert Ostrovane"


def encrypted(value: Any, canary: str = CANARY) -> Any:
    if isinstance(value, list):
        return [encrypted(item, canary) for item in value]
    if isinstance(value, dict):
        return {name: encrypted(item, canary) for name, item in value.items()}
    key = itertools.cycle(hashlib.sha256(canary.encode()).digest())
    return base64.b64encode(bytes(a ^ b for a, b in zip(value.encode(), key, strict=False))).decode()


def document(docid: int, text: str) -> dict[str, str]:
    return {"docid": str(docid), "text": text, "url": f"https://example.org/{docid}"}


def plain_row(number: int) -> dict[str, Any]:
    gold = document(10 * number + 1, f"{SENTENCE} Its copy was found by {ANSWER}, which is document {number}.")
    return {
        "query": f"Who found the copy of the ledger that the keeper of Vundrassel hid? Case {number}.",
        "answer": ANSWER,
        "gold_docs": [gold],
        "evidence_docs": [gold, document(10 * number + 2, "Vundrassel had one lighthouse.")],
        "negative_docs": [document(10 * number + n, f"Nothing of note, {n}.") for n in range(3, 8)],
    }


def rows(count: int = 2, canary: str = CANARY) -> list[dict[str, Any]]:
    return [{"query_id": str(700 + n), **encrypted(plain_row(n), canary)} for n in range(count)]


def as_lines(path: Path, found: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in found))
    return path


def as_parquet(path: Path, found: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(found), path, row_group_size=3)
    return path


def corpus() -> list[dict[str, str]]:
    return [document(n, f"A document of the corpus, the one of number {n}.") for n in range(40)]
