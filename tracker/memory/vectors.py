"""Vectors of things, by which recall finds what a question means in other words. They lie in the store's own file.

A thing has one vector, of what it is about, by one model: another model, or another version of it, makes all anew. They
are made when a question needs them, and without the store's lock. numpy is loaded only then.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from koderz_tracker.errors import KoderzError
from koderz_tracker.memory import database
from koderz_tracker.memory.detail import GIST, gist_of
from koderz_tracker.memory.store import Narrowed, Store
from koderz_tracker.registry import find

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Rows = NDArray[np.float32]

SERVERS: Mapping[str, str] = {
    "http": "koderz.models.embeddings:Served",
    "https": "koderz.models.embeddings:Served",
}
"""Who asks a server, by its address: HTTP clients stand above the tracker, and are found by names as sinks are."""

NEAREST = 50  # things that a question may mean
SECONDS = 5.0  # to make vectors in, before a question is answered without
_RESTING = 60.0  # seconds after a failure, for which nothing is asked for
_FORM = 1  # of what vectors are made of, see `gist_of`
_OFF = 0.04  # how far from 1 the square of a stored vector's length may be


class NoVectors(KoderzError):
    """There are no vectors at present; the message says why."""


class Embedder(Protocol):
    """A model that makes vectors of texts."""

    @property
    def name(self) -> str:
        """The model, with its version and digest as far as they are known."""
        ...

    @property
    def at_once(self) -> int:
        """The number of texts that it gets at a time, few enough for an answer within `SECONDS`."""
        ...

    def embed(self, texts: Sequence[str]) -> Any:
        """A vector a text, of any length: rows of floats. Raises NoVectors."""
        ...


def embedder_for(named: str | None) -> Embedder | None:
    """The model that a setting names: `none`, or a server's address; without one the static model, if installed.

    Raises KoderzError for what is neither.
    """
    if named == "none":
        return None
    if named:
        scheme = named.partition("://")[0]
        if scheme not in SERVERS:
            raise KoderzError(
                f"embeddings {named}: say none, or an address such as http://127.0.0.1:11434/v1#MODEL"
            )
        served: Embedder = find("embeddings", scheme, SERVERS, "koderz.embeddings")(named)
        return served
    there = find_spec("wordllama")  # which isn't imported: that takes a second
    places = there.submodule_search_locations if there else None
    return StaticModel(Path(places[0])) if places else None


class StaticModel:
    """The table of the package wordllama, which has a vector for each token; that of a text is their mean."""

    at_once = 256

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        return self._loaded.name

    def embed(self, texts: Sequence[str]) -> Rows:
        import numpy as np

        _, tokenizer, table = self._loaded
        rows = np.zeros((len(texts), table.shape[1]), np.float32)
        for row, found in zip(
            rows, tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True
        ):
            if found.ids:
                row[:] = table[found.ids].astype(np.float32).mean(0)
        return rows

    @cached_property
    def _loaded(self) -> _Loaded:
        try:
            import numpy as np
            from tokenizers import Tokenizer

            read = (self._folder / "tokenizers" / "l2_supercat_tokenizer_config.json").read_bytes()
            tokenizer = Tokenizer.from_str(read.decode())
            tokenizer.no_padding()
            tokenizer.no_truncation()
            with (self._folder / "weights" / "l2_supercat_256.safetensors").open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            begin = 8 + int.from_bytes(data[:8], "little")
            told = orjson.loads(data[8:begin])["embedding.weight"]
            start, end = told["data_offsets"]
            kind = {"F16": "<f2", "F32": "<f4"}[told["dtype"]]
            table = np.frombuffer(
                data, kind, (end - start) // np.dtype(kind).itemsize, begin + start
            ).reshape(told["shape"])
            digest = hashlib.sha256(read)
            digest.update(data)
            return _Loaded(f"l2_supercat_256 {digest.hexdigest()[:16]}", tokenizer, table)
        except Exception as error:  # noqa: BLE001 the tokenizer raises nothing more precise
            raise NoVectors(f"the model of {self._folder} can't be read ({error})") from None


class _Loaded(NamedTuple):
    name: str
    tokenizer: Tokenizer
    table: NDArray[np.float16]


class Vectors:
    """The vectors of a store by the model that a setting names, and how it went to make them."""

    def __init__(self, named: str | None) -> None:
        self._named = named
        self.trouble: str | None = None  # why the last question was answered without
        self._rests_until = 0.0

    @cached_property
    def _embedder(self) -> Embedder | None:
        return embedder_for(self._named)

    def meant_by(self, store: Store, question: str) -> Meant | None:
        """The vector of a question, once all things have theirs; None where that can't be, see `trouble`.

        Raises KoderzError where the setting names nothing that there is.
        """
        if self._embedder is None or time.monotonic() < self._rests_until:
            return None
        self.trouble = None
        try:
            return _meant(store, self._embedder, question)
        except NoVectors as error:
            self.trouble = f"only words were compared: {error}"
            self._rests_until = time.monotonic() + (0 if isinstance(error, _NotYet) else _RESTING)
            return None


class _NotYet(NoVectors):
    """They are still being made."""


@dataclass(frozen=True, slots=True)
class Meant:
    """A question as a vector."""

    model: str
    vector: Rows
    made: Mapping[int, bytes]  # of things, a moment ago, whether or not the store could take them

    def likeness(self, store: Store, narrowed: Narrowed) -> dict[int, float]:
        """The things that are nearest to the question among those with a memory that fits, with the cosine.

        What isn't a vector of length 1, since the file is damaged, is left out.
        """
        import numpy as np

        condition, values = narrowed.condition()
        size = 2 * len(self.vector)
        found = store.rows(database.VECTORS.format(narrowed=condition), (self.model, size, *values))
        if self.made:
            fitting = store.rows(database.FITTING.format(narrowed=condition), values)
            found = sorted(
                (dict(found) | {id: self.made[id] for (id,) in fitting if id in self.made}).items()
            )
        stored = np.frombuffer(b"".join([vector for _, vector in found]), "<f2")
        with np.errstate(all="ignore"):
            rows = stored.reshape(len(found), len(self.vector)).astype(np.float32)
            is_sound = np.abs(np.einsum("ij,ij->i", rows, rows) - 1) <= _OFF
            # no machine's last digits decide
            alike = np.where(is_sound, np.round(rows @ self.vector, 4), 0)
        best = np.argsort(-alike, kind="stable")[:NEAREST]
        return {found[at][0]: float(alike[at]) for at in best if alike[at] > 0}


def _meant(store: Store, embedder: Embedder, question: str) -> Meant:
    """The question's vector; those of things that have none by this model are made before."""
    end = time.monotonic() + SECONDS
    name = embedder.name
    (vector,) = _normal(embedder.embed([question[:GIST].encode(errors="replace").decode()]), 1)
    model, size = f"{name}, {len(vector)} dimensions, form {_FORM}", 2 * len(vector)
    made: dict[int, bytes] = {}
    last = 0
    while rows := store.rows(database.WITHOUT_VECTOR, (last, model, size, embedder.at_once)):
        if time.monotonic() > end:
            ((left,),) = store.rows(database.HAVE_NO_VECTOR, (last, model, size))
            raise _NotYet(f"the vectors of {left} tasks and notes are still to be made; ask again")
        told = [gist_of(name, about, content) for _, name, about, content in rows]
        vectors = _normal(embedder.embed(told), len(told), len(vector)).astype("<f2")
        new = {row[0]: vector.tobytes() for row, vector in zip(rows, vectors, strict=True)}
        store.keep_vectors(
            [(id, model, new[id], id, about, content) for id, _, about, content in rows]
        )
        made |= new
        last = rows[-1][0]
    return Meant(model, vector, made)


def _normal(found: Any, number: int, length: int | None = None) -> Rows:
    """So many vectors, each of length 1, or of zeros. Raises NoVectors for anything else."""
    import numpy as np

    try:
        rows = np.asarray(found, np.float64)
    except (TypeError, ValueError, OverflowError):
        rows = np.zeros(())
    if rows.ndim != 2 or len(rows) != number or not rows.shape[1] or not np.isfinite(rows).all():
        raise NoVectors("the model gave no vectors of numbers, one a text")
    if length not in (None, rows.shape[1]):
        raise NoVectors(f"the model gave vectors of {rows.shape[1]} numbers after one of {length}")
    # scaled, or squares might overflow
    rows = rows / (np.abs(rows).max(1, keepdims=True) + np.finfo(np.float64).tiny)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths, lengths, 1), np.float32)
