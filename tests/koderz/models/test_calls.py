"""What a call meets on its way: faults, waits and load, at a real server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from koderz.errors import FatalFault, Fault, ReplyTimedOut, Unreachable
from koderz.models import Price
from koderz.models.faults import LONGEST_WAIT, retry_after
from koderz.models.transport import MAX_BYTES
from koderz.types import Message, Sampling

from .conftest import Clock, Models
from .loopback import Answer, Server, chat, refusal, until

KEY = "sk-test-0123456789abcdef"


async def test_reply_carries_its_usage(server: Server, models: Models, prompt: list[Message]) -> None:
    model = await models.open(prices={"openai/m": Price(1.0, 10.0)})
    completion = await model.complete(prompt, Sampling())
    assert (completion.text, completion.finish_reason, completion.model) == ("hello", "stop", "m-2026-01-31")
    assert (completion.tokens_in, completion.tokens_out, completion.retries) == (11, 7, 0)
    assert completion.cost == pytest.approx(81e-6)
    assert completion.cost_known
    assert completion.latency > 0
    assert completion.raw is None


@pytest.mark.parametrize(
    "bad",
    [
        Answer(status=408),
        Answer(status=409),
        Answer(status=429),
        Answer(status=500),
        Answer(status=503),
        Answer(status=529),
        Answer(b"<html>\x00\xff not json"),
        Answer(b'{"choices": [{"message": {"con', 200),
        Answer(b""),
        Answer(b'{"choices": [{"message": {"content": 5}}]}'),
        Answer(b'{"choices": ' + b"[" * 100_000),
        Answer(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        Answer(b"{}" * 500, drop=7),
        Answer(raw=b""),
        Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-le"),
        Answer(raw=b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        Answer(b"x", headers={"content-encoding": "gzip"}),
        Answer(b'{"error": {"message": "upstream is down", "code": 502}}'),
    ],
)
async def test_retry_follows_a_passing_failure(
    server: Server, models: Models, prompt: list[Message], clock: Clock, bad: Answer
) -> None:
    server.answers = [bad, bad, chat("at last")]
    completion = await (await models.open()).complete(prompt, Sampling())
    assert (completion.text, completion.retries, len(server.asked)) == ("at last", 2, 3)
    assert len(clock.slept) == 2


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422])
async def test_permanent_failure_is_told_at_once_in_the_servers_words(
    server: Server, models: Models, prompt: list[Message], status: int
) -> None:
    server.answers = [refusal("you can't have that", status)]
    model = await models.open()
    with pytest.raises(
        Fault, match=f"openai/m at {server.url}: (Authentication failed: )?{status}: you can't have that"
    ):
        await model.complete(prompt, Sampling())
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        refusal("bad key", 401),
        refusal("no such model", 404),
        refusal("forbidden", 403),
        Answer(b'{"error": {"message": "pay first", "code": "insufficient_quota"}}', 429),
        Answer(b'{"error": "model requires more system memory (40 GiB) than is available"}', 500),
        Answer(b'{"error": {"message": "nope is not a valid model ID", "code": 400}}', 400),
        Answer(b"", 307, {"location": "https://elsewhere.example/v1"}),
    ],
)
async def test_fatal_failure_ends_the_run(
    server: Server, models: Models, prompt: list[Message], answer: Answer
) -> None:
    server.answers = [answer]
    model = await models.open()
    with pytest.raises(FatalFault):
        await model.complete(prompt, Sampling())
    assert len(server.asked) == 1


async def test_refused_prompt_ends_its_experiment_only(server: Server, models: Models, prompt: list[Message]) -> None:
    server.answers = [refusal("too many words")]
    model = await models.open()
    with pytest.raises(Fault) as caught:
        await model.complete(prompt, Sampling())
    assert not isinstance(caught.value, FatalFault)


async def test_patience_ends(server: Server, models: Models, prompt: list[Message], clock: Clock) -> None:
    server.answers = [refusal("out of order", 500)]
    model = await models.open(max_retries=3, backoff=1.0)
    with pytest.raises(Fault, match="500: out of order"):
        await model.complete(prompt, Sampling())
    assert len(server.asked) == 4
    for slept, least in zip(clock.slept, (1, 2, 4), strict=True):
        assert least <= slept <= least + 1


async def test_retries_of_zero_try_once(server: Server, models: Models, prompt: list[Message]) -> None:
    server.answers = [refusal("out of order", 500)]
    model = await models.open(max_retries=0)
    with pytest.raises(Fault):
        await model.complete(prompt, Sampling())
    assert len(server.asked) == 1


@pytest.mark.slow
async def test_hanging_server_is_given_up_after_a_few_tries(
    server: Server, models: Models, prompt: list[Message], clock: Clock
) -> None:
    server.answers = [Answer(hang=True)]
    model = await models.open(timeout=0.5)
    with pytest.raises(Fault, match=r"no answer within 0\.5 s"):
        await model.complete(prompt, Sampling())
    assert 1 <= len(server.asked) <= 3  # as far as it had read what was asked
    assert len(clock.slept) == 2


async def test_reply_that_is_late_by_the_models_doing_is_not_asked_for_again(
    server: Server, models: Models, prompt: list[Message], clock: Clock
) -> None:
    server.answers = [Answer(hang=True)]
    model = await models.open(timeout=0.3, timeout_is="failure")
    with pytest.raises(ReplyTimedOut, match=r"no answer within 0\.3 s"):
        await model.complete(prompt, Sampling())
    assert clock.slept == []
    assert any("0.3 s, which counts as a failure (--timeout-is failure)" in said for said in models.pool.notices)


@pytest.mark.slow
async def test_hanging_server_is_asked_again(server: Server, models: Models, prompt: list[Message]) -> None:
    server.answers = [Answer(hang=True), chat()]
    completion = await (await models.open(timeout=3)).complete(prompt, Sampling())
    assert (completion.text, completion.retries) == ("hello", 1)


async def test_unreachable_server_is_a_fault_of_the_call(models: Models, prompt: list[Message]) -> None:
    model = await models.open(base_url="http://127.0.0.1:9/v1", max_retries=1)
    with pytest.raises(Fault, match="cannot connect"):
        await model.complete(prompt, Sampling())


async def test_retry_waits_as_long_as_the_server_says(
    server: Server, models: Models, prompt: list[Message], clock: Clock
) -> None:
    server.answers = [refusal("slow down", 429, retry_after="7"), chat()]
    model = await models.open()
    await model.complete(prompt, Sampling())
    assert clock.slept == [7.0]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("99999", LONGEST_WAIT),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("Wed, 99 Foo 2020", None),
    ],
)
def test_retry_after_in_seconds(header: str, seconds: float | None) -> None:
    assert retry_after(header, datetime.now(UTC)) == seconds


def test_retry_after_as_a_date() -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert retry_after(format_datetime(now + timedelta(seconds=42), usegmt=True), now) == 42.0
    assert retry_after(format_datetime(now - timedelta(hours=1), usegmt=True), now) == 0.0
    assert retry_after(format_datetime(now + timedelta(days=1), usegmt=True), now) == LONGEST_WAIT
    assert retry_after("Sun Mar  1 12:00:42 2026", now) == 42.0


async def test_concurrency_falls_under_load_and_rises_with_success(
    server: Server, models: Models, prompt: list[Message]
) -> None:
    pool = await models.pooled(concurrency=16)
    model, other = pool.open("openai/m"), pool.open("openai/other")
    for one in (model, other):  # until it has answered, 8 at most ask it
        await one.complete(prompt, Sampling())
    server.gate = asyncio.Event()
    server.answers = [*[refusal("slow down", 429)] * 16, chat()]
    calls = [asyncio.create_task(one.complete(prompt, Sampling())) for one in (model, other) for _ in range(16)]
    await until(lambda: server.in_flight == 16)
    assert pool.throttle[0].in_flight == 16
    server.gate.set()
    await asyncio.gather(*calls)
    assert server.peak == 16
    assert pool.throttle[0].provider == "openai"
    lowered = pool.throttle[0].limit
    for _ in range(40):
        await model.complete(prompt, Sampling())
    assert lowered <= pool.throttle[0].limit == 16


async def test_refusals_for_load_are_counted(server: Server, models: Models, prompt: list[Message]) -> None:
    server.answers = [refusal("slow down", 429), refusal("broken", 500), refusal("busy", 529), chat()]
    model = await models.open(max_retries=3)
    assert (await model.complete(prompt, Sampling())).throttled == 2
    server.answers = [refusal("slow down", 429)]
    with pytest.raises(Fault) as caught:
        await model.complete(prompt, Sampling())
    assert caught.value.throttled == {"openai": 4}


@pytest.mark.parametrize(
    "told",
    [("0", "0", "1s"), ("-1", "-1", "-1s"), ("60", "-7", "1s"), ("60", "0", "8760h0m0s"), ("nan", "inf", "soon")],
)
async def test_lying_limit_headers_hold_no_call_longer_than_a_minute(
    server: Server, models: Models, prompt: list[Message], clock: Clock, told: tuple[str, str, str]
) -> None:
    names = [f"x-ratelimit-{name}-requests" for name in ("limit", "remaining", "reset")]
    server.answers = [replace(chat(), headers=dict(zip(names, told, strict=True)))]
    model = await models.open()
    for _ in range(3):
        await model.complete(prompt, Sampling())
    assert max(clock.slept, default=0.0) <= 60.0


async def test_connections_are_kept(server: Server, models: Models, prompt: list[Message]) -> None:
    model = await models.open()
    for _ in range(5):
        await model.complete(prompt, Sampling())
    assert server.connections == 1


async def test_cancelled_call_leaves_the_pool_usable(server: Server, models: Models, prompt: list[Message]) -> None:
    server.answers = [Answer(hang=True), chat()]
    pool = await models.pooled(concurrency=1)
    model = pool.open("openai/m")
    call = asyncio.create_task(model.complete(prompt, Sampling()))
    await until(lambda: bool(server.asked))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await model.complete(prompt, Sampling())).text == "hello"
    assert pool.throttle[0].in_flight == 0


@pytest.mark.parametrize("told", [True, False])
async def test_endless_answer_is_cut_off(server: Server, models: Models, prompt: list[Message], told: bool) -> None:
    head = f"content-length: {MAX_BYTES + 1}" if told else "connection: close"
    body = b"" if told else b" " * (MAX_BYTES + 1)
    server.answers = [Answer(raw=f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body)]
    model = await models.open(timeout=60.0)
    with pytest.raises(Fault, match="longer than 32 MB"):
        await model.complete(prompt, Sampling())
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
async def test_key_echoed_by_the_server_is_not_repeated(
    server: Server, models: Models, prompt: list[Message], status: int
) -> None:
    said = json.dumps({"error": {"message": f"the key {KEY} is bad", "param": KEY, "code": KEY}})
    server.answers = [Answer(said.encode(), status)]
    model = await models.open(api_key=KEY, max_retries=1)
    with pytest.raises(Fault, match=r"\*\*\*") as caught:
        await model.complete(prompt, Sampling())
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)


async def test_key_in_a_reply_or_a_redirect_is_not_repeated(
    server: Server, models: Models, prompt: list[Message]
) -> None:
    server.answers = [chat(f"your key is {KEY}"), Answer(status=302, headers={"location": f"http://x/?key={KEY}"})]
    model = await models.open(api_key=KEY)
    assert (await model.complete(prompt, Sampling())).text == "your key is ***"
    with pytest.raises(FatalFault, match=r"redirected to http://x/\?key=\*\*\*"):
        await model.complete(prompt, Sampling())
    assert len(server.asked) == 2  # the redirect was not followed


async def test_key_is_in_no_log(
    server: Server, models: Models, prompt: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    asyncio.get_running_loop().set_debug(True)  # what else logs of a call is up to the library
    await (await models.open(api_key=KEY)).complete(prompt, Sampling())
    assert caplog.text
    assert KEY not in caplog.text


async def test_key_stand_in_is_no_secret(server: Server, models: Models, prompt: list[Message]) -> None:
    server.answers = [chat("return EMPTY")]
    model = await models.open(api_key="EMPTY")
    assert (await model.complete(prompt, Sampling())).text == "return EMPTY"


async def test_key_hidden_within_words_of_an_error_changes_no_outcome(
    server: Server, models: Models, prompt: list[Message]
) -> None:
    server.answers = [refusal("This model's maximum context length is 4 tokens.")]
    completion = await (await models.open(api_key="x")).complete(prompt, Sampling())
    assert completion.finish_reason == "context"
    assert "ma***imum conte***t" in completion.text


async def test_server_text_is_shown_without_control_characters(
    server: Server, models: Models, prompt: list[Message]
) -> None:
    server.answers = [refusal("\x1b[31mred\x07\u202e\nsecond line " + "x" * 10_000)]
    model = await models.open()
    with pytest.raises(Fault) as caught:
        await model.complete(prompt, Sampling())
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b'"no"', b"<h1>no</h1>", b'{"error": null}', b'{"error": {"message": {"a": 1}}}']
)
async def test_error_of_any_shape_is_a_fault(
    server: Server, models: Models, prompt: list[Message], body: bytes
) -> None:
    server.answers = [Answer(body, 400)]
    model = await models.open()
    with pytest.raises(Fault, match=r"400: .|400, and no word why"):
        await model.complete(prompt, Sampling())


async def test_text_that_json_can_not_carry_is_sent_all_the_same(
    server: Server, models: Models, prompt: list[Message]
) -> None:
    model = await models.open()
    await model.complete([{"role": "user", "content": "half \ud83d a pair"}], Sampling())
    assert server.asked[0].json["messages"][0]["content"] == "half ? a pair"


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"half \ud83d a pair", "half \ufffd a pair"),
        (rb"\udc00 \ud83d\ude00 \\ud83d", "\ufffd \U0001f600 \\ud83d"),
        (b"broken \xff utf-8", "broken \ufffd utf-8"),
    ],
)
async def test_reply_with_a_broken_character_is_a_reply(
    server: Server, models: Models, prompt: list[Message], sent: bytes, read: str
) -> None:
    server.answers = [Answer(b'{"choices": [{"message": {"content": "' + sent + b'"}}]}')]
    completion = await (await models.open()).complete(prompt, Sampling())
    assert (completion.text, completion.retries) == (read, 0)


async def test_check_finds_an_unreachable_server_before_the_run(models: Models) -> None:
    for name, remedy in (("openai/m", "OPENAI_BASE_URL"), ("llama3", "ollama serve")):
        model = await models.open(name, base_url="http://127.0.0.1:9")
        with pytest.raises(Unreachable, match=remedy) as caught:
            await model.check()
        assert caught.value.exit_code == 4


@pytest.mark.parametrize("status", [403, 404, 429, 500, 200])
async def test_check_that_is_impossible_is_left_to_the_first_call(server: Server, models: Models, status: int) -> None:
    server.answers = [Answer(b"what?", status)]
    for name in ("openai/m", "claude-x", "llama3"):
        assert await (await models.open(name)).check() == {}


async def test_check_survives_one_lost_connection(server: Server, models: Models) -> None:
    server.answers = [Answer(raw=b""), Answer(b'{"models": [{"name": "llama3:latest", "digest": "abc"}]}')]
    assert await (await models.open("llama3")).check() == {"digest": "abc"}


@pytest.mark.parametrize(
    "proxy", ["socks6://me:secret@proxy.example", "http://me:secret@proxy.example:port", "http://:0"]
)
async def test_proxy_that_is_unusable_is_told_without_its_password(
    models: Models, prompt: list[Message], monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    model = await models.open(base_url="https://elsewhere.example/v1")
    with pytest.raises(FatalFault, match="the environment names") as caught:
        await model.complete(prompt, Sampling())
    assert "secret" not in str(caught.value)


async def test_check_finds_a_bad_key_before_the_run(server: Server, models: Models) -> None:
    server.answers = [refusal("no such key", 401)]
    for name in ("openai/m", "claude-x"):
        model = await models.open(name)
        with pytest.raises(FatalFault, match="no such key; see whether the key"):
            await model.check()
