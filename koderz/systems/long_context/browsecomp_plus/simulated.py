"""The simulated model on questions about made-up documents, as a player and as a judge."""

from __future__ import annotations

import re
from collections.abc import Sequence

from koderz.systems.long_context.browsecomp_plus.generated import RELATIONS
from koderz.systems.long_context.simulated import Player

_QUERY = re.compile(r"What is the name of ([^?]+)\?")
_CITED = re.compile(r"(?: \[\d+\])+$")
_SAYS = {
    each.phrase: [
        re.compile(rf"(?:^|\. ){re.escape(sentence).replace(re.escape('{}'), '([^.]+?)')}", re.IGNORECASE)
        for sentence in each.sentences
    ]
    for each in RELATIONS
}
_SEARCH = f"""I follow the question from its innermost name outwards, and read only the documents that mention it.

```repl
phrases = {[each.phrase for each in RELATIONS]!r}
name, steps = re.search(r'name of ([^?]+)', question)[1], []
while begun := [each for each in phrases if name.startswith(each)]:
    steps.insert(0, begun[0])
    name = name[len(begun[0]):]
documents, seen, reply = re.split(r'\\n\\n(?=\\[)', context), [], ''
for step in steps:
    about = [each for each in documents if name.removeprefix('the ') in each]
    print(len(about), 'documents mention', name)
    asked = '\\n\\nWhat is the name of ' + step + name + '?'
    reply = llm_query('\\n\\n'.join(about) + asked)
    if 'Exact Answer: ' not in reply:  # once more, each by itself
        again = llm_query_batched([each + asked for each in about])
        reply = max([reply, *again], key=lambda said: 'Exact Answer: ' in said)
    found = re.search(r'Exact Answer: (.+)', reply)
    if not found:
        break
    name, seen = found[1], seen + re.findall(r'\\[\\d+\\]', reply)
replies = [re.sub(r'Explanation: .*', 'Explanation: ' + ' '.join(seen), reply)]
```"""


def answers(asked: str) -> list[str]:
    """The requested name with the numbers of the documents that tell it, if all of them are in the text."""
    queries = _QUERY.findall(asked)
    if not queries:
        return []
    name, phrases = _read_question(queries[-1])
    cited = ""
    for phrase in phrases:
        document = re.search(rf"^\[(\d+)\] .*\n({re.escape(name)} is .*)$", asked, re.MULTILINE | re.IGNORECASE)
        sentence_match = document and next(
            filter(None, (sentence.search(document[2]) for sentence in _SAYS[phrase])), None
        )
        if not (document and sentence_match):
            return []
        name, cited = sentence_match[1], f"{cited} [{document[1]}]"
    return [f"{name}{cited}"]


def _read_question(query: str) -> tuple[str, list[str]]:
    """The name in a question, and the phrases around it from the innermost outwards."""
    phrases: list[str] = []
    while begun := next((phrase for phrase in _SAYS if query.startswith(phrase)), None):
        phrases.insert(0, begun)
        query = query.removeprefix(begun)
    return query, phrases


def _answer(found: Sequence[str], chance: float) -> str:
    cited = _CITED.search(found[0])
    name = found[0][: cited.start()] if cited else found[0]
    return (
        f"Explanation: one document after the other says so{cited[0] if cited else ''}.\n"
        f"Exact Answer: {name}\nConfidence: {chance:.0%}"
    )


PLAYER = Player(answers, _SEARCH, _answer)

READER = Player(lambda _: [])
"""The player of published questions, which need more than a search for words."""
