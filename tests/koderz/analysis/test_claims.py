"""Claims: they stand, move or fall with their evidence, nothing of them is changed, and all is one look away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from koderz.analysis.claims import claim, claims, lines_after, lines_of, recheck
from koderz.errors import KoderzError
from koderz_tracker.memory import Draft, open_cortex
from koderz_tracker.memory.claims import as_claim, claims_in, events_of
from koderz_tracker.memory.memories import InvalidMemory
from koderz_tracker.memory.store import Store
from tests.koderz.analysis.remembered import forget_run, remember, run_id
from tests.koderz.analysis.test_questions import passing


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "memory.db") as opened:
        yield opened


def states(store: Store) -> list[tuple[str, str]]:
    """The changes that a check of all claims finds: each state with its reason."""
    return [(event.state, event.reason) for _, event in recheck(store)]


def test_claim_holds_evidence_outcome_and_interval(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(24)})

    (row,) = claim(store, "all pass", ["latest"], made_by="me").rows

    memory = store.get(row["id"])
    assert memory
    found = as_claim(memory)
    assert (found.sentence, found.made_by, found.outcome.verdict, found.outcome.n) == ("all pass", "me", "rate", 24)
    assert [(each.run, bool(each.digest), each.dataset) for each in found.evidence] == [(run, True, "d")]
    assert found.outcome.interval[0] < found.outcome.value == 100
    assert "24 of 24" in row["says"]
    assert memory.is_protected
    assert states(store) == []


def test_claim_over_a_rescored_run_falls(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(24)})
    (row,) = claim(store, "all pass", [run]).rows

    remember(store, 1, {"zero-shot": passing(0)}, minute=5)
    changed = recheck(store, [run])

    assert [(event.state, "(24 of 24)" in event.reason, "(0 of 24)" in event.reason) for _, event in changed] == [
        ("fallen", True, True)
    ]
    assert next(lines_of(changed)).startswith(f"claim {row['id']} HAS FALLEN: all pass (was: ")
    assert states(store) == []  # once
    assert [each["sentence"] for each in claims(store, fallen=True).rows] == ["all pass"]


def test_claim_over_a_retried_run_moves_and_stands_within_its_interval(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": [*passing(11, 22), None, None]})
    claim(store, "about half pass", [run])

    remember(store, 1, {"zero-shot": [*passing(11, 22), True, False]}, minute=5)  # two faults retried
    moved = states(store)
    remember(store, 1, {"zero-shot": [*passing(12, 22), True, False]}, minute=6)
    remember(store, 1, {"zero-shot": [*passing(11, 22), None, None]}, minute=7)
    again = states(store)

    assert [(state, "(11 of 22)" in why, "(12 of 24)" in why) for state, why in moved] == [("moved", True, True)]
    assert again == [("stands", "its evidence is as it was")]


def test_claim_stands_where_the_figure_stays_within_its_interval(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(12)})
    claim(store, "half pass", [run])

    remember(store, 1, {"zero-shot": passing(13)}, minute=5)

    assert [state for state, _ in states(store)] == ["stands"]


def test_claim_over_deleted_evidence_cannot_be_checked(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(12)})
    claim(store, "half pass", [run])

    forget_run(store, run)
    (gone,) = states(store)
    remember(store, 1, {"zero-shot": passing(12)})

    assert gone == ("can't be checked", f"this store has no results of {run} any more")
    assert states(store) == [("stands", "its evidence is as it was")]
    assert not claims(store, fallen=True).rows


def test_claim_over_a_merged_run_is_checked_by_its_longer_journal(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(6, 12), "iterative": passing(12, 12)})
    (row,) = claim(store, "iterating helps", [run]).rows

    remember(store, 1, {"zero-shot": passing(12), "iterative": passing(24)}, minute=5)  # with the other machine's part
    (moved,) = states(store)
    remember(store, 1, {"zero-shot": passing(12), "iterative": passing(12)}, minute=6)
    (fallen,) = states(store)

    assert row["outcome"]["verdict"] == "better"
    assert (moved[0], fallen[0]) == ("moved", "fallen")
    assert [event.state for event in events_of(store, row["key"])] == ["moved", "fallen"]


@pytest.mark.parametrize("runs", [1, 2])
def test_claim_whose_judge_changed_falls(store: Store, runs: int) -> None:
    judge = {"prompt": "Is it right?", "caveats": ["it is a model"]}
    made = [remember(store, n, {"zero-shot": passing(8 * n)}, judge=judge) for n in range(1, runs + 1)]
    claim(store, "so it is", made)

    remember(store, 1, {"zero-shot": passing(8)}, minute=5, judge={**judge, "caveats": []})
    same = states(store)
    remember(store, 1, {"zero-shot": passing(9)}, minute=6, judge={"prompt": "Is it wrong?"})

    assert same == []
    assert [(state, "judge" in why) for state, why in states(store)] == [("fallen", True)]


def test_claim_over_runs_that_are_not_comparable_any_more_falls(store: Store) -> None:
    a, b = (remember(store, n, {"zero-shot": passing(10 * n)}) for n in (1, 2))
    claim(store, "b is better", [a, b])

    remember(store, 2, {"zero-shot": passing(19)}, minute=5, environment={"dataset_digest": "other"})

    assert [(state, "not comparable" in why) for state, why in states(store)] == [("fallen", True)]


def test_verify_lets_claims_fall_and_stand_again(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(12)})
    claim(store, "half pass", [run])

    found = [*lines_after(store.path, [run], findings=["verdict T/3"])]
    meanwhile = states(store)
    again = [*lines_after(store.path, [run], findings=[])]

    assert "HAS FALLEN" in found[0]
    assert "verdict T/3" in found[0]
    assert meanwhile == []
    assert "stands" in again[0]


def test_decided_run_becomes_one_claim(store: Store) -> None:
    run = remember(store, 1, {"a": passing(4), "b": passing(24)})

    decision = {
        "a": "a",
        "b": "b",
        "outcome": "shown",
        "tasks": 24,
        "planned": 24,
        "a_mean": 16.7,
        "b_mean": 100.0,
        "difference": 83.3,
        "interval": (50.0, 100.0),
        "e_value": 99.0,
        "alpha": 0.05,
        "margin": None,
        "measure": "success",
    }

    first = lines_after(store.path, [run], decision)
    second = lines_after(store.path, [run], decision)

    assert len(first) == 1
    assert "is stored" in first[0]
    assert second == []
    assert [as_claim(each).made_by for each in claims_in(store)] == ["koderz decide"]


def test_supersedes_forms_no_circle_and_shows_the_successor(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(12), "iterative": passing(20)})
    (old,) = claim(store, "iterating helps", [run]).rows
    (new,) = claim(store, "iterating helps much", [run], supersedes=old["id"]).rows
    (doubt,) = claim(store, "it may be chance", [run], contradicts=new["id"]).rows

    with pytest.raises(InvalidMemory, match="circle"):
        claim(store, "iterating helps", [run], supersedes=new["key"])
    with pytest.raises(InvalidMemory, match="never changed"):
        claim(store, "it may be chance", [run])
    with pytest.raises(InvalidMemory, match="is no claim"):
        claim(store, "else", [run], supersedes=run)

    found = {row["id"]: row for row in claims(store).rows}
    assert found[old["id"]]["superseded_by"] == [new["id"]]
    assert found[new["id"]]["contradicted_by"] == [doubt["id"]]


def test_same_claim_is_stored_once(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(12)})

    assert claim(store, "half", [run]).rows[0]["id"] == claim(store, "half", [run], made_by="another").rows[0]["id"]


def test_two_processes_write_one_event(store: Store, tmp_path: Path) -> None:
    run = remember(store, 1, {"zero-shot": passing(24)})
    (row,) = claim(store, "all pass", [run]).rows
    remember(store, 1, {"zero-shot": passing(0)}, minute=5)

    def check(_: int) -> int:
        with Store(tmp_path / "memory.db") as own:
            return len(recheck(own, [run]))

    with ThreadPoolExecutor(4) as several:
        found = list(several.map(check, range(4)))

    assert sum(found) == 1
    assert [event.state for event in events_of(store, row["key"])] == ["fallen"]


def test_recall_marks_a_fallen_claim_and_show_has_its_history(store: Store, tmp_path: Path) -> None:
    run = remember(store, 1, {"zero-shot": passing(24)})
    (row,) = claim(store, "everything passes easily", [run]).rows
    remember(store, 1, {"zero-shot": passing(0)}, minute=5)
    recheck(store)

    async def look() -> tuple[Any, Any]:
        async with open_cortex(tmp_path / "memory.db") as cortex:
            with pytest.raises(InvalidMemory, match="never changed"):
                await cortex.remember("changed", "changed", key=row["key"])
            forgotten = await cortex.forget(tags=["claim"], dry_run=False)
            assert forgotten["protected"] == 1
            return await cortex.recall("everything passes easily", tags=["claim"]), await cortex.get_memory(row["id"])

    found, memory = asyncio.run(look())

    assert found[0]["title"] == "[FALLEN] everything passes easily"
    assert [event["state"] for event in memory["claim"]["history"]] == ["fallen"]


def test_claims_refuse_what_has_no_interval_or_no_evidence(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(1, 3), "iterative": passing(2, 3)})

    with pytest.raises(KoderzError, match="nothing of bench_00000009"):
        claim(store, "x", [run_id(9)])
    with pytest.raises(KoderzError, match="one run or two"):
        claim(store, "x", [run, run, run])
    with pytest.raises(KoderzError, match="one run or two"):
        claim(store, "  ", [run])


def test_notes_with_the_tag_of_claims_are_none(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(12)})
    claim(store, "half pass", [run])
    forged = Draft(title="x", content="", key="claim:forged", tags=["claim", f"evidence:{run}"], metadata={"claim": 1})
    store.remember([Draft(title="my claim", content="", tags=["claim"]), forged])

    with pytest.raises(InvalidMemory, match="is no claim"):
        claim(store, "else", [run], supersedes="9" * 30)

    assert lines_after(store.path, [run]) == []
    assert [row["sentence"] for row in claims(store).rows] == ["half pass"]
