"""The corpus of BrowseComp-Plus, which adds documents to questions; it isn't encrypted."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from koderz.errors import Fault, KoderzError
from koderz.systems.long_context.contexts import Reading, in_characters, recipe_digest
from koderz.systems.long_context.published import Layout, Place, files_in, listed, rows_at

_LAYOUT = Layout({"text": str}, {"docid": int | str})


@dataclass(frozen=True)
class Corpus:
    """The documents {docid, text, url} of a file or folder, in parquet or JSON lines, read only when needed."""

    path: Path

    @property
    def digest(self) -> str:
        """A digest of the files' names and sizes. Raises KoderzError if there are none."""
        try:
            return recipe_digest(*((file.name, file.stat().st_size) for file in files_in(self.path)))
        except OSError as error:
            raise KoderzError(f"--corpus {self.path} can't be read: {error.strerror}") from None

    def others(self, count: int, known: Collection[str], draw: random.Random) -> list[Document]:
        """A number of drawn documents other than the known ones. Raises Fault if there are too few."""
        left = [docid for docid in self._places if docid not in known]
        if len(left) < count:
            raise Fault(
                f"--corpus {self.path} has {len(left):,} other documents, and {count:,} are wanted", cause="data"
            )
        chosen = draw.sample(left, count)
        found = {each.docid: each for each in self._read(chosen)}
        return [found[docid] for docid in chosen]

    @cached_property
    def _places(self) -> dict[str, tuple[Path, Place]]:
        """The place of each document, by its docid."""
        return {
            str(fields["docid"]): (file, place)
            for file in files_in(self.path)
            for place, fields, _ in listed(file, _LAYOUT)
        }

    def _read(self, docids: Collection[str]) -> Iterator[Document]:
        places: dict[Path, list[Place]] = {}
        for file, place in map(self._places.__getitem__, docids):
            places.setdefault(file, []).append(place)
        for file, here in places.items():
            for row in rows_at(file, here, ("docid", "text", "url")):
                yield Document(str(row["docid"]), str(row["text"]), str(row.get("url") or ""))


FORM = """

Answer from the documents alone. They are many, and it takes several of them. Reply with these three lines:
Explanation: how you know it, with the numbers of the documents that say so in brackets, such as [10001]
Exact Answer: the answer alone
Confidence: how sure you are, from 0% to 100%"""


class Document(NamedTuple):
    """One of the searched texts."""

    docid: str
    text: str
    url: str = ""


class Sought(NamedTuple):
    """The expected answer and evidence, by which a reply is judged."""

    query: str
    answer: str
    evidence: frozenset[str]  # docids


def read_about(
    documents: Sequence[Document], query: str, answer: str, evidence: frozenset[str], **more: Any
) -> tuple[Reading, Sought]:
    """The documents as one text with the question, and the expected answer. `more` goes into the record."""
    context = "".join(f"[{each.docid}] {each.url}\n{each.text}\n\n" for each in documents)
    made = in_characters(context, f"{query}{FORM}", documents=len(documents), **more)
    return made, Sought(query, answer, evidence)
