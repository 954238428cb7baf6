"""The corpus of BrowseComp-Plus, out of which questions are filled up with documents; it isn't encrypted."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from koderz.errors import Fault, KoderzError
from koderz.systems.long_context.browsecomp_plus.documents import Document
from koderz.systems.long_context.contexts import recipe_digest
from koderz.systems.long_context.published import Layout, Place, files_in, listed, rows_at

_LAYOUT = Layout({"text": str}, {"docid": int | str})


@dataclass(frozen=True)
class Corpus:
    """The documents {docid, text, url} of a file or folder, in parquet or JSON lines; where they lie is held alone."""

    path: Path

    @property
    def digest(self) -> str:
        """Changes with the files' names and sizes. Raises KoderzError where there are none."""
        try:
            return recipe_digest(*((file.name, file.stat().st_size) for file in files_in(self.path)))
        except OSError as error:
            raise KoderzError(f"--corpus {self.path} can't be read: {error.strerror}") from None

    def others(self, count: int, known: Collection[str], draw: random.Random) -> list[Document]:
        """So many drawn documents but for those known. Raises Fault where there are too few."""
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
        """Where each document lies, by its docid."""
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
