"""The tools over MCP: answers that a client takes, in pages and parts of which none is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koderz.systems.memory.server import make_server
from koderz.systems.memory.tools import TOOLS, USUAL, text_of
from koderz_tracker import open_cortex
from koderz_tracker.memory.cortex import Cortex
from koderz_tracker.memory.memories import Draft
from koderz_tracker.memory.store import Store

Call = Callable[..., Awaitable[Any]]


def asked(path: Path, work: Callable[[Call], Awaitable[Any]]) -> Any:
    """What `work` makes of the answers of a server of the store in `path`, each checked for its length."""
    from mcp.client.client import Client

    async def worked() -> Any:
        async with open_cortex(path / "memory.db") as cortex, Client(make_server(cortex)) as client:

            async def call(tool: str, **arguments: Any) -> Any:
                answer = await client.call_tool(tool, arguments)
                (content,) = answer.content
                text = getattr(content, "text")  # noqa: B009 one of several kinds of content
                assert answer.structured_content is None  # or it would count twice
                assert len(text) <= arguments.get("maxCharacters", USUAL), tool
                assert not answer.is_error, text
                return json.loads(text) if text[:1] in '[{"' else text

            return await work(call)

    return asyncio.run(worked())


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The folder of a store with 60 experiments, four runs of half a million characters, and notes of 60,000."""
    arms = {"iterative": {"summary": {"total_problems": 9, "successes": 4, "success_rate_interval": [18.9, 73.3]}}}
    summary = json.dumps({"arms": arms, "filler": "best success rate so far " * 20_000})
    told = {"arm": "iterative", "model": "qwen", "success": False, "verdict": "failed", "cause": "assertion"}
    with Store(tmp_path / "memory.db") as store:
        store.remember(
            [
                Draft(
                    title=f"Experiment exp_{n}",
                    content=f"Asked:\nthe palindrome of {n}\n\n" + "sorting was off by one. " * 80,
                    key=f"exp_{n}",
                    tags=["result", f"exp_{n}", "bench_1"],
                    metadata={**told, "problem_id": f"HumanEval/{n}", "benchmark_run_id": "bench_1"},
                )
                for n in range(60)
            ]
        )
        store.remember(
            [
                Draft(
                    title=f"Benchmark Run bench_{n}",
                    content=summary,
                    key=f"bench_{n}",
                    importance="critical",
                    tags=["benchmark_run", f"bench_{n}"],
                    metadata={"benchmark_run_id": f"bench_{n}", "mode": "iterative", "model": "qwen"},
                )
                for n in range(4)
            ]
        )
        notes = [
            Draft(title=f"a note {n}", content=f"rate {n} " + 'é"\n' * 20_000, tags=["note"], project=f"p{n}" * 99)
            for n in range(60)
        ]
        store.remember(notes)
    return tmp_path


def test_answers_of_every_tool_keep_to_what_a_client_takes(large: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("recall", {"query": "best success rate so far", "detail": detail}) for detail in ("line", "lesson", "full")
    ]
    calls += [("recall", {"mode": mode, "limit": 200, "maxCharacters": 9000}) for mode in ("recent", "important")]
    calls += [("recall", {"query": "rate", "tags": ["benchmark_run"], "maxCharacters": 1000})]
    calls += [("get_context", {"format": form, "query": "rate"}) for form in ("summary", "detailed", "raw")]
    calls += [("start_session", {}), ("memory_stats", {}), ("export_memories", {}), ("consolidate", {})]
    calls += [("forget", {"query": "rate"}), ("get_memory", {"id": "bench_1"})]
    calls += [("remember", {"title": "t" * 60_000, "content": "c" * 60_000, "metadata": {"m": ["é"] * 60_000}})]
    calls += [(name, {"limit": 50}) for name in ("find", "best", "hardest", "lessons", "claims")]
    calls += [("tried", {"plan": "iterative"}), ("claim", {"sentence": "c" * 60_000, "runs": ["bench_1"]})]
    calls += [("claims", {})]
    assert {name for name, _ in calls} >= set(TOOLS) - {"end_session", "import_memories", "compare"}

    async def work(call: Call) -> None:
        for tool, arguments in calls:
            await call(tool, **arguments)
        found = await call("recall", query="best success rate so far")
        assert len(json.dumps(found)) < 8000
        assert "iterative 4 of 9 (19 to 73 %)" in found["memories"][0]["text"]

    asked(large, work)


def test_recall_goes_on_at_its_cursor_while_a_run_writes(large: Path) -> None:
    async def work(call: Call) -> None:
        whole = await call("recall", query="palindrome sorting", tags=["result"], limit=1000, maxCharacters=2_000_000)
        assert (whole["found"], whole["counted"], "cursor" in whole) == (60, "all", False)
        page, seen = await call("recall", query="palindrome sorting", tags=["result"], limit=7, detail="line"), []
        for n in range(100, 120):
            seen += [hit["id"] for hit in page["memories"]]
            if "cursor" not in page:
                break
            more = {"tags": ["result", f"exp_{n}"], "metadata": {"problem_id": f"HumanEval/{n}"}}
            await call("remember", title=f"palindrome sorting {n}", content="palindrome sorting", **more)
            page = await call(
                "recall", query="palindrome sorting", tags=["result"], limit=7, detail="line", cursor=page["cursor"]
            )
        assert len(seen) == len(set(seen))
        assert {hit["id"] for hit in whole["memories"]} <= set(seen)

    asked(large, work)


def test_export_in_pages_and_parts_is_the_export(large: Path) -> None:
    async def whole(cortex: Cortex) -> Any:
        return await cortex.export_memories()

    async def opened() -> Any:
        async with open_cortex(large / "memory.db") as cortex:
            return await whole(cortex)

    expected = {memory["id"]: (memory["title"], memory["content"]) for memory in asyncio.run(opened())}

    async def work(call: Call) -> None:
        found: dict[int, Any] = {}
        page: dict[str, Any] = {"cursor": "0"}
        while "cursor" in page:
            page = await call("export_memories", cursor=page["cursor"], maxCharacters=50_000)
            for memory in page["memories"]:
                if "whole" in memory:
                    parts = [await call("get_memory", id=memory["id"])]
                    while "next_offset" in parts[-1]:
                        parts += [await call("get_memory", id=memory["id"], offset=parts[-1]["next_offset"])]
                    memory = {**parts[0], "content": "".join(part["content"] for part in parts)}
                assert memory["id"] not in found
                found[memory["id"]] = memory["title"], memory["content"]
        assert found == expected
        asked_for = await call("export_memories", tags=["note"], limit=2, maxCharacters=2_000_000)
        assert [memory["content"] for memory in asked_for["memories"]] == [c for _, c in list(expected.values())[64:66]]

    asked(large, work)


def test_bad_cursors_and_offsets_say_what_to_give(large: Path) -> None:
    async def work(cortex: Cortex) -> None:
        for tool, arguments in (
            ("recall", {"query": "rate", "cursor": "no"}),
            ("recall", {"query": "rate", "cursor": "é"}),
            ("export_memories", {"cursor": "-1"}),
            ("get_memory", {"id": 1, "offset": 10**9}),
        ):
            with pytest.raises(Exception, match=r"give the one of the answer before|has [0-9]+ characters"):
                await TOOLS[tool](**arguments).call(cortex)

    async def opened() -> None:
        async with open_cortex(large / "memory.db") as cortex:
            await work(cortex)

    asyncio.run(opened())


@pytest.mark.parametrize(
    "answer",
    [
        "word " * 90_000,
        {"a": ['é"\n' * 99] * 9999, "b": {str(n): n for n in range(99_999)}, "c": 1},
        [[["x" * 200_000]]],
        {"deep": {"deep": {"deep": list(range(99_999))}}, "k" * 30_000: 1},
        [{"id": n} for n in range(99_999)],
    ],
)
@pytest.mark.parametrize("most", [1000, USUAL])
def test_answer_that_is_too_long_is_cut_as_json_and_says_so(answer: Any, most: int) -> None:
    text = text_of(answer, most)

    assert most // 3 < len(text) <= most
    assert "cut" in text if isinstance(answer, str) else json.loads(text)["cut"]


def test_store_that_is_not_entered_says_what_to_write(tmp_path: Path) -> None:
    cortex: Any = open_cortex(tmp_path / "memory.db")

    with pytest.raises(AttributeError, match="async with open_cortex\\(\\) as cortex"):
        cortex.recall("sorting")

    async def awaited() -> None:
        await cortex

    with pytest.raises(TypeError, match="async with open_cortex\\(\\) as cortex"):
        asyncio.run(awaited())
    assert list(tmp_path.iterdir()) == []
