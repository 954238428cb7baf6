"""A question about numbered documents, laid out as one text, with the instructions beside the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from koderz.systems.long_context.contexts import Reading, in_characters

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
