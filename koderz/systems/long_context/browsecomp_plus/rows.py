"""BrowseComp-Plus' published rows, encrypted so that no model is trained on them; decrypted in memory only."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from koderz.errors import Fault, KoderzError
from koderz.systems.long_context.browsecomp_plus.corpus import Corpus, Document, Sought, read_about
from koderz.systems.long_context.contexts import Reading
from koderz.systems.long_context.published import Fields, Layout, PublishedRow, published
from koderz_tracker.privacy import xored

_LAYOUT = Layout(
    {"gold_docs": list, "evidence_docs": list, "negative_docs": list},
    {"query_id": int | str, "query": str, "answer": str},
)


def key_of(canary: str) -> bytes:
    """The key of the rows' encryption."""
    return hashlib.sha256(canary.encode()).digest()


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of the documents for a question."""

    documents: int | None  # None: those that its row names
    corpus: Corpus | None
    seed: int

    def of(self, query_id: str, row: Mapping[str, list[Document]]) -> list[Document]:
        """Gold and evidence, then negatives, then others of the corpus, up to the wanted number; shuffled.

        Raises Fault where there are too few.
        """
        draw = random.Random(f"{self.seed} {query_id}")  # noqa: S311 repeatable on purpose
        needed = {each.docid: each for name in ("gold_docs", "evidence_docs") for each in row[name]}
        others = {each.docid: each for each in row["negative_docs"] if each.docid not in needed}
        if self.documents is None:
            chosen = [*needed.values(), *others.values()]
        else:
            chosen = [*needed.values(), *others.values()][: max(self.documents, len(needed))]
            chosen += self._more(self.documents - len(chosen), {*needed, *others}, draw)
        draw.shuffle(chosen)
        return chosen

    def _more(self, count: int, known: set[str], draw: random.Random) -> list[Document]:
        if count <= 0:
            return []
        if self.corpus is None:
            raise Fault(
                f"--documents {self.documents}, but its row has {len(known)} of them; add --corpus", cause="data"
            )
        return self.corpus.others(count, known, draw)


def encrypted_rows(path: Path, key: bytes, choice: Choice) -> Iterator[PublishedRow]:
    """The rows of a file or folder. Raises KoderzError for another layout or another key."""
    for row in published(path, _LAYOUT, lambda _: True, partial(_of_row, key, choice)):
        for name in ("query", "answer"):
            try:
                decrypted(row.fields[name], key)
            except ValueError:
                where = f"{path}, query_id {row.fields['query_id']}"
                raise KoderzError(f"{where}: the {name} isn't encrypted with this --canary") from None
        yield row


def decrypted(value: Any, key: bytes) -> Any:
    """A value with its texts decrypted. Raises ValueError if the key is another one."""
    if isinstance(value, str):
        return xored(base64.b64decode(value, validate=True), key).decode()
    if isinstance(value, list):
        return [decrypted(item, key) for item in value]
    if isinstance(value, Mapping):
        return {name: decrypted(item, key) for name, item in value.items()}
    return value


def _of_row(key: bytes, choice: Choice, fields: Fields, late: Fields) -> tuple[Reading, Sought]:
    query_id = str(fields["query_id"])
    try:
        row = {name: [_document(each) for each in decrypted(late[name], key)] for name in _LAYOUT.late}
    except (KeyError, TypeError, ValueError):
        raise Fault(
            f"a document of query_id {query_id} isn't {{docid, text, url}} with this --canary", cause="data"
        ) from None
    evidence = frozenset(each.docid for each in row["evidence_docs"])
    query, answer = decrypted(fields["query"], key), decrypted(fields["answer"], key)
    return read_about(choice.of(query_id, row), query, answer, evidence, generator="published")


def _document(fields: Fields) -> Document:
    return Document(str(fields["docid"]), str(fields["text"]), str(fields.get("url") or ""))
