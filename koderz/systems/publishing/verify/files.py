"""The files of a run that is verified: its journal, without the cached index that nobody vouches for, and its blobs."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from msgspec.structs import replace

from koderz.errors import JournalError, KoderzError
from koderz.systems.publishing.share import PUBLISHED, SUMS
from koderz.systems.publishing.verify.findings import Verification, is_redacted
from koderz_tracker.blobs import fetched, whole
from koderz_tracker.files import open_own, read_all, sha256_of
from koderz_tracker.index import CODES, DAMAGED, DOUBLED, Index, load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.messages import digest_of, restored
from koderz_tracker.privacy import Privacy
from koderz_tracker.records import Call, Experiment, Fault, LongMessage, Plan, Record
from koderz_tracker.runs import read_plan

_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_LONGEST_SUMS = 64 << 20


class ExperimentLines(NamedTuple):
    """The lines of one experiment in order, each with its number in the journal."""

    records: list[Record]
    numbers: list[int]

    @property
    def end(self) -> int | None:
        """The place of the last line that ends it, which figures are made of; None if none does."""
        places = [
            place for place, line in enumerate(self.records) if isinstance(line, Experiment | Fault)
        ]
        return places[-1] if places else None


class RunFiles:
    """A run's journal and blobs, read without its caches."""

    def __init__(self, folder: Path, result: Verification) -> None:
        self.folder = folder
        self.plan: Plan = read_plan(folder)
        self.result = result
        index = load_index(folder / NAME)
        self.redacts = bool((self.plan.environment.get(PUBLISHED) or {}).get("redacted"))
        self._count(index)
        self._index = index
        self._spans = index.grouped()
        self._offsets = [offset for (offset,) in index.columns("offset")]
        self._privacy: Privacy | None = None
        self._sound: set[str] = set()  # digests of long messages that are what they are said to be
        # of long messages: as stored, and as calls name them
        self._roles: dict[str, tuple[str, set[str]]] = {}

    @property
    def journal(self) -> Path:
        return self.folder / NAME

    def open_private(self, privacy: Privacy | None) -> None:
        """Decrypts private texts from here on."""
        self._privacy = privacy

    def experiments(self) -> set[int]:
        """The numbers of the experiments that have lines."""
        return set(self._spans.numbers())

    @property
    def count(self) -> int:
        """The number of lines of the journal."""
        return len(self._offsets)

    def lines_of(self, experiment: int, where: str) -> ExperimentLines:
        """The lines of an experiment, every text whole. One that can't be read is a finding."""
        found = ExperimentLines([], [])
        spans = self._spans.of(experiment)
        for (offset, _), record in zip(spans, read_records(self.journal, spans), strict=True):
            try:
                each = fetched(whole(record, self.folder), self.folder)
                each = self._privacy.opened(each) if self._privacy else each
                found.records.append(
                    self._with_messages(each, where) if isinstance(each, Call) else each
                )
                found.numbers.append(bisect_left(self._offsets, offset))
            except (JournalError, KoderzError) as error:
                text = (
                    str(error)
                    .replace(f"{self.folder}/", "")
                    .replace(str(self.folder), self.folder.name)
                )
                self.result.differs("blob", where, text, "the text that the line names")
        return found

    def lines(self, *kinds: str) -> Iterator[tuple[int, Record]]:
        """The lines of these kinds, each with its number in the journal."""
        wanted = {CODES[name] for name in kinds}
        for number, (code, length, offset) in enumerate(
            self._index.columns("code", "length", "offset")
        ):
            if code in wanted:
                yield from (
                    (number, record) for record in read_records(self.journal, [(offset, length)])
                )

    def conclude(self) -> None:
        """Compares the roles of long messages with those by which calls name them, of which one stored it."""
        for digest, (stored, named) in self._roles.items():
            if stored not in named:
                self.result.differs(
                    "blob", f"message {digest[:12]}", stored, " or ".join(sorted(named))
                )

    def _with_messages(self, call: Call, where: str) -> Call:
        if all("content" in message for message in call.messages):
            return call
        return replace(
            call,
            messages=[each for message in call.messages for each in self._restored(message, where)],
        )

    def _restored(self, message: dict[str, Any], where: str) -> list[dict[str, Any]]:
        if "content" in message:
            return [message]
        digest = str(message.get("digest", ""))
        try:
            spans = self._spans.of_message(int(digest[:16], 16))
            (stored, *_) = read_records(self.journal, spans[:1])
            text = whole(self._privacy.opened(stored) if self._privacy else stored, self.folder)
            assert isinstance(text, LongMessage)
            is_sound = digest in self._sound or digest_of(str(text.content)) == digest
            if not (is_sound or (self.redacts and is_redacted(text))):
                raise ValueError("it has another digest")
            self._sound.add(digest)
            self._roles.setdefault(digest, (text.role, set()))[1].add(str(message.get("role")))
            return restored(message, str(text.content))
        except (
            AssertionError,
            JournalError,
            ValueError,
            KeyError,
            TypeError,
            KoderzError,
        ) as error:
            self.result.differs(
                "blob",
                f"{where}, message {digest[:12]}",
                str(error),
                "the message that a call names",
            )
            return [{"role": str(message.get("role", "")), "content": ""}]

    def _count(self, index: Index) -> None:
        if index.damaged:
            self.result.differs("file", NAME, f"{len(index.damaged)} lines can't be read", "none")
        if doubled := index.count(DOUBLED):
            self.result.differs(
                "plan", NAME, f"{doubled} lines stand there twice", "each line once"
            )
        if index.end != self.journal.stat().st_size and not index.count(DAMAGED):
            self.result.note("the journal's last line is torn and left out")


def check_sums(folder: Path, summary: Path | None, result: Verification) -> None:
    """Compares the run's files with its SHA256SUMS, if it has one."""
    sums = folder / SUMS
    if not sums.is_file():
        return
    with open_own(sums, 2) as file:
        listed = read_all(file, _LONGEST_SUMS, str(sums)).decode("utf-8", "replace")
    named = set()
    for number, line in enumerate(listed.splitlines(), 1):
        matched = _SUM.fullmatch(line)
        path = matched and _inside(folder, matched[2], summary)
        if not matched or path is None:
            result.differs("file", f"{SUMS}, line {number}", line, "a digest and a path in the run")
            continue
        named.add(path)
        found = _sha256(path)
        if found != matched[1]:
            result.differs("file", matched[2], matched[1], found or "no such file")
    for path in (folder / NAME, *([summary] if summary else [])):
        if path not in named:
            result.differs("file", path.name, f"not in {SUMS}", "a line of its own")


def _inside(folder: Path, name: str, summary: Path | None) -> Path | None:
    """The file that a line of SHA256SUMS names: one below the run's folder, or the summary beside it."""
    pure = PurePosixPath(name)
    if summary and name == f"../{summary.name}":
        return summary
    if pure.is_absolute() or ".." in pure.parts or "\0" in name:
        return None
    return folder / pure


def _sha256(path: Path) -> str:
    """The digest of a file, 64 hex digits; empty if there is no such file."""
    try:
        return sha256_of(path)
    except OSError:
        return ""
