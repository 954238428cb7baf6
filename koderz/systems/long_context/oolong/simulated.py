"""The simulated model on OOLONG's generated questions: has each form of line labelled, and counts by code."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

from koderz.systems.long_context.oolong.generated import TEMPLATES
from koderz.systems.long_context.oolong.questions import KINDS, TextLine
from koderz.systems.long_context.simulated import Player

_BEGINNINGS = {
    re.match(r"[^{]*?(?= \{| a \{| the \{|$)", template)[0]: label  # type: ignore[index]
    for label, templates in TEMPLATES.items()
    for template in templates
}
_LINE = re.compile(r"^Date: (\w{3} \d\d, \d{4}) \|\| User: (\d+) \|\| Instance: (.*)$", re.MULTILINE)
_LABEL_OF = "What is the label of this line?"


def answers(asked: str) -> list[str]:
    """The right answers to a generated text and question, read from them alone; empty for others."""
    question = asked.rpartition("\n")[2]
    if question == _LABEL_OF:
        return [entry.label for entry in _entries(asked)]
    for kind in KINDS:
        if found := kind.pattern.match(question):
            about = found.groupdict()
            right = kind.answer([*_entries(asked)], about.get("a", ""), about.get("b", ""))
            return [] if right is None else [str(right)]
    return []


def _entries(text: str) -> Iterator[TextLine]:
    for day, user, said in _LINE.findall(text):
        label = next((label for start, label in _BEGINNINGS.items() if said.startswith(start)), "")
        if label:
            yield TextLine(datetime.datetime.strptime(day, "%b %d, %Y").date(), user, label)


_SEARCH = f"""I have a line of each form labelled, and count all lines by code.

```repl
from datetime import date
months = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split()
forms = '|'.join({[*_BEGINNINGS]!r})
lines = re.findall(r'^Date: (.+?) \\|\\| User: (\\d+) \\|\\| Instance: (' + forms + ')', context, re.MULTILINE)
seen = [*dict.fromkeys(form for _, _, form in lines)]
shown = [re.search('^Date: .*Instance: ' + form + '.*', context, re.MULTILINE)[0] for form in seen]
said = llm_query_batched([line + '\\n{_LABEL_OF}' for line in shown]) if seen else []
labels = {{form: reply[8:] for form, reply in zip(seen, said) if reply.startswith('Answer: ')}}
print(len(lines), 'lines', labels)

days = {{day: date(int(day[8:]), months.index(day[:3]) + 1, int(day[4:6])) for day in {{day for day, _, _ in lines}}}}
user, after = re.search(r' of user (\\d+)', question), re.search(r' after (\\d\\S+)', question)
rows = [(days[day], who, labels[form]) for day, who, form in lines if form in labels]
rows = [each for each in rows if not user or each[1] == user[1]]
rows = [each for each in rows if not after or each[0] > date.fromisoformat(after[1])]
column = 1 if 'Which user' in question else 0 if ' date' in question else 2
counts, named = Counter(each[column] for each in rows), re.findall(r"label '(.+?)'", question)
ranked, times = [each for each, _ in counts.most_common()], re.search(r'exactly (\\d+) lines', question)
if not rows:
    parts = [context[at : at + 20_000] for at in range(0, len(context), 20_000)]
    replies = llm_query_batched([part + '\\n' + question for part in parts])
else:
    if times:
        found = [*counts.values()].count(int(times[1]))
    elif 'In which month' in question:
        by_month = Counter((each[0].replace(day=1), each[2]) for each in rows)
        found = [m for m in sorted({{m for m, _ in by_month}}) if by_month[m, named[0]] > by_month[m, named[1]]]
        found = f'{{found[0]:%B %Y}}' if found else 'none'
    elif 'How many lines' in question:
        found = counts[named[0]]
    elif 'Is label' in question:
        one, other = counts[named[0]], counts[named[1]]
        found = 'more common than' if one > other else 'less common than' if one < other else 'same frequency as'
    else:
        found = ranked[-1 if ' least ' in question else 1 if ' second ' in question else 0]
    replies = ['Answer: ' + (f'{{found:%Y-%m-%d}}' if column == 0 and not times else str(found))]
print(replies)
```"""

PLAYER = Player(answers, _SEARCH)
