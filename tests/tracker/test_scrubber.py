"""Secrets are told from other texts, and what is none stays as it is."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import time
import uuid
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koderz.testing import a_plan
from koderz_tracker import credentials
from koderz_tracker.plain_text import REDACTED
from koderz_tracker.records import Arm, Attempt, Call, Plan
from koderz_tracker.scrubber import KEY_VARIABLES, Scrubber, fits, scrubber_of, secret_variables, secrets_of
from tests.tracker.secrets import NAMED, SECRETS, drawn

SCRUBBER = Scrubber(
    {"MY_API_KEY": "plain words here", "QUOTED_TOKEN": 'a"b\\c"d', "SHORT_TOKEN": "abc", "HOME": "/root"}
)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("use sk-proj-abcdEFGH1234567890 now", "sk-proj-abcdEFGH1234567890"),
        ("sk-ant-api03-aaaaBBBBcccc_dddd-eeee", "sk-ant-api03-aaaaBBBBcccc_dddd-eeee"),
        ("ghp_abcdefghijklmnopqrstuvwxyz012345", "ghp_abcdefghijklmnopqrstuvwxyz012345"),
        ("github_pat_11ABCDEFG0abcdefghij_KLMNOP", "github_pat_11ABCDEFG0abcdefghij_KLMNOP"),
        ("hf_abcdefghijklmnopqrstuvwxyzABCD", "hf_abcdefghijklmnopqrstuvwxyzABCD"),
        ("xoxb-1234567890-abcdefghij", "xoxb-1234567890-abcdefghij"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "AIzaSyA1234567890abcdefghijklmnopqrstuv"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIiOiIxIn0"),
        ("Authorization: Bearer abcdef.123456~x", "abcdef.123456~x"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("curl -H 'bearer 0123456789abcdef'", "0123456789abcdef"),
        ("OPENAI_API_KEY=whatever-it-is", "whatever-it-is"),
        ("export DB_PASSWORD='hunter2 and more'", "hunter2 and more"),
        ("password: swordfish", "swordfish"),
        ('{"client_secret": "s3cr3t"}', "s3cr3t"),
        ("access_token=1a2b3c4d", "1a2b3c4d"),
        ("postgresql://me:pa55word@db.example/runs", "pa55word"),
        ("https://token123@git.example/x.git", "token123"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("the value was plain words here.", "plain words here"),
    ],
)
def test_scrubber_removes_a_secret(text: str, secret: str) -> None:
    scrubbed = SCRUBBER.text(f"before {text} after")

    assert secret not in scrubbed
    assert REDACTED in scrubbed
    assert scrubbed.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "def f(key):\n    return sorted(data, key=lambda x: x[1])",
        "token = tokens.pop()",
        "tokens: 512, max_tokens=4096",
        "the secret of a good test: few words",
        "HumanEval/3 failed with exception:KeyError",
        "see https://example.org/a?b=c and mail me@example.org",
        "a skill, a task-force, risk-free",
        "abc",
    ],
)
def test_scrubber_keeps_ordinary_text(text: str) -> None:
    assert SCRUBBER.text(text) == text


def test_scrubber_keeps_json_valid() -> None:
    document = {"config": {"api_key_env": "MY_KEY", "token": 12345678, "password": None, "secret": "abcdefgh"}}
    scrubbed = json.loads(SCRUBBER.text(json.dumps(document, indent=2)))

    assert scrubbed == {"config": {**document["config"], "secret": REDACTED}}


def test_metadata_is_scrubbed_in_depth_and_by_name() -> None:
    metadata = {
        "api_key": "short",
        "nested": [{"note": "Bearer abcdefgh12345678", "tokens": "12", "Authorization": "x"}],
        "known": 'a"b\\c"d',
        "count": 3,
        "token": 12,
    }
    assert SCRUBBER.value(metadata) == {
        "api_key": REDACTED,
        "nested": [{"note": f"Bearer {REDACTED}", "tokens": "12", "Authorization": REDACTED}],
        "known": REDACTED,
        "count": 3,
        "token": 12,
    }


@pytest.mark.parametrize(
    "piece", ["a-", "eyJ-", "a.", "token", "token=", "sk-", "key = ", "-----BEGIN PRIVATE KEY-----", "://a:", "bearer "]
)
def test_scrubber_patterns_are_fast_on_a_hostile_megabyte(piece: str) -> None:
    begun = time.process_time()
    SCRUBBER.text(piece * (1_000_000 // len(piece)))
    assert time.process_time() - begun < 20


@pytest.mark.slow
@given(st.from_regex(credentials._PREFIXED))
def test_quick_look_misses_no_format(text: str) -> None:
    assert REDACTED in SCRUBBER.text(f" {text} ")


@given(st.from_regex(credentials._TELLING), st.text(max_size=9))
def test_quick_look_for_words_misses_no_name(telling: str, around: str) -> None:
    for text in (around + telling, telling + around, f"{telling}={around}x7Kq9Lm2"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(credentials, "_TELLING_WORDS", [""])  # which any text has: every pattern is tried
            slowly = credentials.named_values(text)
        assert credentials.named_values(text) == slowly


@pytest.mark.parametrize("name", SECRETS)
def test_secret_of_any_format_is_taken_out_whole(name: str) -> None:
    secret = SECRETS[name]
    for around in ("{}", "it is {}.", "KEY={}\n", '{{"a": "{}"}}', "x = '{}'  # mine", "curl -u {}:x", "<{}>"):
        scrubbed = SCRUBBER.text(around.format(secret))

        assert REDACTED in scrubbed, around
        assert not any(secret[at : at + 12] in scrubbed for at in range(8, len(secret) - 11)), around


PLACES: Mapping[str, Callable[[str], object]] = {
    "a text": lambda text: SCRUBBER.text(f"it says {text}\nand more"),
    "a value": lambda text: SCRUBBER.value({"note": [{"said": f"it says {text}"}, (text,)]}),
    "a name of a value": lambda text: SCRUBBER.value({f"it says {text}": 1}),
    "JSON in a text": lambda text: SCRUBBER.text(json.dumps({"said": f"it says {text}"})),
    "a reply": lambda text: SCRUBBER.record(
        Call(experiment_id="exp_0", call=1, purpose="attempt", model="m", messages=[], reply=text, key="0")
    ),
    "a message": lambda text: SCRUBBER.record(
        Call(
            experiment_id="exp_0",
            call=1,
            purpose="attempt",
            model="m",
            messages=[{"role": "user", "content": [{"type": "text", "text": text}]}],
            reply="",
            key="0",
        )
    ),
    "an attempt": lambda text: SCRUBBER.record(
        Attempt(
            experiment_id="exp_0",
            problem_id="T/0",
            solver="s",
            arm="s",
            sample=0,
            number=1,
            verdict="failed",
            program=f"KEY = '{text}'",
            feedback=text,
            facts={"answer": text},
        )
    ),
    "a plan": lambda text: SCRUBBER.record(
        Plan(
            run_id="bench_abc123de_20260131_234512",
            mode="m",
            arms=[Arm(name="s", solver="s", models={"main": "m"}, parameters={"note": text})],
            tasks=["t"],
            samples=1,
            config={"tags": {"note": text}},
            environment={"note": text},
        )
    ),
}
"""Everything that a scrubber is handed."""


@pytest.mark.parametrize("name", [*SECRETS, *NAMED])
@pytest.mark.parametrize("place", PLACES)
def test_secret_of_any_shape_is_taken_out_in_every_place(place: str, name: str) -> None:
    text, secret = (SECRETS[name],) * 2 if name in SECRETS else NAMED[name]

    scrubbed = str(PLACES[place](text))

    assert REDACTED in scrubbed
    assert secret not in scrubbed
    assert not any(secret[at : at + 12] in scrubbed for at in range(8, len(secret) - 11))


@pytest.mark.parametrize("name", [name for name in SECRETS if name != "private key"])
def test_secret_of_any_format_is_taken_out_of_addresses(name: str) -> None:
    for around in (
        "https://h/{}/v1",
        "https://h/v1?key={}",
        "https://{}@h/v1",
        "https://me:{}@h/v1",
        "https://h/v1#{}",
    ):
        address = around.format(SECRETS[name].replace("/", "%2F"))
        assert SECRETS[name][8:20] not in SCRUBBER.address(address)


@pytest.mark.parametrize("cut", ["...", " … ", "…"])
def test_secret_that_was_cut_in_its_middle_is_taken_out(cut: str) -> None:
    secret = SECRETS["GitHub"]
    scrubbed = SCRUBBER.text(f"returned '{secret[:20]}{cut}{secret[20:]}'")

    assert scrubbed == f"returned '{REDACTED}{cut}{REDACTED}'"


def test_secret_of_hex_digits_that_was_cut_in_its_middle_is_taken_out() -> None:
    secret = SECRETS["ElevenLabs"]
    scrubbed = SCRUBBER.text(f"returned '{secret[:24]}…{secret[28:]}'")

    assert scrubbed == f"returned '{REDACTED}…{REDACTED}'"


@pytest.mark.parametrize("name", NAMED)
def test_secret_of_a_telling_name_is_taken_out(name: str) -> None:
    text, secret = NAMED[name]
    assert secret not in SCRUBBER.text(f"first\n{text}\nlast")
    assert secret not in SCRUBBER.text(repr(f"first\n{text}\nlast"))


@pytest.mark.parametrize(
    "text",
    [
        "    password = auth[2]\n    passwd = None\n    token = token.NEWLINE",
        "def login(user, password=None, token=None): self.password = password",
        "if token == 'plus': token = 'NUMBER'",
        "exp_0123456789abcdef in bench_abc123de_20260131_234512, commit da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "openai/gpt-4o-mini-2024-07-18, test_case_number_1_of_the_longest_increasing_subsequence_2",
        "print_the_longest_palindromic_substring_of('a_b_c_d_e_f_g_hf_i_j_k_l_m_n_o_p_q_r_s_t')",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "123e4567-e89b-12d3-a456-426614174000",
        "/usr/lib/python3/dist-packages/Some/Where/Else2/file.py",
        "models12.Conv2dBatchNorm2dWithLeakyReLU6, HTTPServer2.BaseHTTPRequestHandlerWithTimeout30",
        "main.3f2a1b4c5d6e7f8091a2b3c4.chunk.js, index-DiwrgTda.js, koderz-0.1.0.dev20261129123456",
        "0123456789abcdef0123456789abcdef.0123456789abcdef0123456789abcdef",
        "assets8.logoForDarkModeAtTwiceTheSize2x, 1.2.3-rc1.20260131T235959Z",
        "tests.koderz.suites.TestRowsOfFiles3.test_utf16_and_cp1252",
        "cells[LAST_KEY] = new_value; ctx.meta[LANG_KEY] = value",
        'headers["Access-Control-Allow-Credentials"] = "true"',
        "names = ['api_key', 'password', 'token']",
    ],
)
def test_code_and_ids_stay(text: str) -> None:
    assert SCRUBBER.text(text) == text


@pytest.mark.parametrize("value", ["EMPTY", "ollama", "not-needed", "no-key", "lm-studio", "dummy", "simulated"])
def test_placeholder_of_a_key_is_no_secret(value: str) -> None:
    assert Scrubber({"OPENAI_API_KEY": value}).text(f"it says {value}.") == f"it says {value}."


@pytest.mark.parametrize(("value", "shown"), [("ab-c1", "ab-c1"), ("ab-c12", REDACTED)])
def test_value_of_a_secret_variable_is_secret_from_six_characters(value: str, shown: str) -> None:
    assert Scrubber({"OPENAI_API_KEY": value}).text(f"it says {value}.") == f"it says {shown}."


@pytest.mark.parametrize(("value", "half"), [("ab-cd ef-gh ij-", "ab-cd e"), ("ab-cd ef-gh ij-k", REDACTED)])
def test_first_half_of_a_value_is_secret_from_sixteen_characters(value: str, half: str) -> None:
    scrubber = Scrubber({"OPENAI_API_KEY": value})
    assert scrubber.text(f"it begins with {value[: len(value) // 2]}.") == f"it begins with {half}."


def test_values_of_named_variables_are_secret_in_every_form() -> None:
    scrubber = Scrubber({"GATEWAY": 'pa ss/wo"rd', "PATH": "/usr/bin:/bin"}, variables=["GATEWAY", "MISSING"])
    for form in ('pa ss/wo"rd', json.dumps('pa ss/wo"rd'), "pa%20ss%2Fwo%22rd"):
        assert scrubber.text(f"<{form}>") == f"<{form.replace(form.strip(chr(34)), REDACTED)}>"
    assert scrubber.text("/usr/bin:/bin") == "/usr/bin:/bin"


def test_passwords_within_addresses_of_variables_are_secret() -> None:
    scrubber = Scrubber({"HTTPS_PROXY": "http://me:open%2Dsesame@proxy:1", "GATEWAY": "https://tok3nAB12@gate/v1"})
    for secret in ("open-sesame", "tok3nAB12"):
        assert secret not in scrubber.text(f"it said {secret}.")
    assert scrubber.text("proxy and gate") == "proxy and gate"


@pytest.mark.parametrize("before", ["", "a", "ab", "me:", "four"])
def test_known_values_are_secret_in_base64_and_by_half(before: str) -> None:
    key = drawn("known", 40)
    scrubber = Scrubber({"MY_API_KEY": key})
    for coded in (base64.b64encode, base64.urlsafe_b64encode):
        text = coded(f"{before}{key} and more".encode()).decode()
        scrubbed = scrubber.text(f"x {text}")
        assert REDACTED in scrubbed
        left = [scrubbed[at : at + 12] for at in range(len(scrubbed) - 11)]
        assert not any(part in text[len(before) + 8 : len(before) + 48] for part in left)
    assert key[:20] not in scrubber.text(f"{before} it begins with {key[:20]}")


@pytest.mark.parametrize(("before", "start", "end"), [("", 0, 53), ("-", 2, 54), ("--", 3, 56)])
def test_base64_of_a_known_value_is_taken_out_to_its_last_character(before: str, start: int, end: int) -> None:
    value = "plain words " * 3 + "here"
    text = base64.b64encode(f"{before}{value} and more".encode()).decode()
    assert Scrubber({"MY_API_KEY": value}).text(text) == text[:start] + REDACTED + text[end:]


def ordinary_lines() -> list[str]:
    """500 lines that hold no secret: digests, ids, base64 of a picture, and code."""
    picture = base64.b64encode(bytes(hashlib.sha512(str(n).encode()).digest()[n % 7] for n in range(9000))).decode()
    lines = [f"{number:03} {hashlib.sha256(str(number).encode()).hexdigest()}" for number in range(80)]
    lines += [f"commit {hashlib.sha1(str(number).encode()).hexdigest()}" for number in range(80)]
    lines += [str(uuid.UUID(bytes=hashlib.md5(str(number).encode()).digest())) for number in range(80)]
    lines += [picture[at : at + 76] for at in range(0, 76 * 130, 76)]
    source = inspect.getsource(credentials).splitlines() + inspect.getsource(inspect).splitlines()
    code = [line for line in source if len(line) > 30 and "_ | " not in line]
    return lines + code[: 500 - len(lines)]


def test_ordinary_lines_stay() -> None:
    lines = ordinary_lines()
    changed = [line for line in lines if SCRUBBER.text(line) != line]
    assert len(lines) == 500
    assert len(changed) <= 5, changed


def test_records_are_scrubbed_but_for_what_tells_them_apart() -> None:
    secret = SECRETS["OpenAI"]
    call = Call(
        experiment_id="exp_0123456789abcdef",
        call=1,
        purpose="attempt",
        model="openai/gpt-4o-mini-2024-07-18",
        messages=[{"role": "user", "content": [{"type": "text", "text": f"use {secret}"}]}],
        reply=f"I use {secret}",
        key="0123456789abcdef0123456789abcdef",
    )
    scrubbed = SCRUBBER.record(call)

    assert secret not in str(scrubbed)
    assert (scrubbed.key, scrubbed.model, scrubbed.time) == (call.key, call.model, call.time)
    assert scrubbed.reply == f"I use {REDACTED}"
    plain = Attempt(experiment_id="exp_00", problem_id="T/0", solver="s", arm="s", sample=0, number=1, verdict="passed")
    assert SCRUBBER.record(plain) is plain
    named = Attempt(experiment_id=secret, problem_id=secret, solver="s", arm="s", sample=0, number=1, verdict="passed")
    assert SCRUBBER.record(named) is named


def test_plan_is_scrubbed() -> None:
    config = {
        "base_url": "http://me:pa55word@localhost:1/v1",
        "api_key": "abcd",
        "tags": {"note": "password: swordfish"},
    }
    plan = Plan(
        run_id="bench_abc123de_20260131_234512",
        mode="m",
        arms=[Arm(name="s", solver="s", models={"main": "m"}, parameters={"api_key": "abcd"})],
        tasks=["t"],
        samples=1,
        config=config,
        environment={},
    )
    scrubbed = SCRUBBER.record(plan)

    assert scrubbed.config["base_url"] == f"http://{REDACTED}@localhost:1/v1"
    assert "swordfish" not in str(scrubbed)
    assert "abcd" not in str(scrubbed.config)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://h/proxy/sk-live-abcdef0123456789abcdef/v1", "http://h/proxy/[redacted]/v1"),
        ("https://h/accounts/0123456789abcdef0123456789abcdef/ai/v1", "https://h/accounts/[redacted]/ai/v1"),
        ("https://h/550e8400-e29b-41d4-a716-446655440000", "https://h/[redacted]"),
        ("https://h/x%73k-proj-abcdefghijkl1234/v1/", "https://h/[redacted]/v1/"),
        ("https://h/abcdefghijklmnopqrstuvwxyz/v1", "https://h/[redacted]/v1"),
        ("https://h/abcdefghijklmnopqrstuvwx/v1", "https://h/[redacted]/v1"),
        ("https://h/a1b2c3d4e5f6/v1", "https://h/[redacted]/v1"),
        ("https://h/plain words here/v1", "https://h/[redacted]/v1"),
        ("https://user:word@h/v1?key=zzz&plain#part", "https://[redacted]@h/v1?key=[redacted]&[redacted]#[redacted]"),
        ("https://sk-proj-abcdEFGH1234567890.h/v1", "https://[redacted].h/v1"),
        ("h:8000/token-sk-proj-abcdEFGH1234567890", "h:8000/[redacted]"),
    ],
)
def test_addresses_are_shown_without_what_could_be_a_secret(address: str, shown: str) -> None:
    assert SCRUBBER.address(address) == shown
    assert SCRUBBER.address(shown) == shown
    assert "?" in address or fits(address, shown)
    assert not fits(f"{address}/more", shown)
    assert not fits(shown, shown)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:11434",
        "http://[::1]:8000/v1/",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "https://name.openai.azure.com/openai/deployments/gpt-4o-mini-2024-07-18",
        "https://router.huggingface.co/models/Qwen/Qwen2.5-Coder-32B-Instruct/v1",
        "https://h/Meta-Llama-3.1-70B-Instruct-Turbo/mixtral-8x7b-instruct-v0.1",
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        "https://h/abcdefghijklmnopqrstuvw/v1",
        "https://abc123def456ghi7.us-east-1.aws.endpoints.huggingface.cloud/v1",
    ],
)
def test_addresses_without_secrets_are_shown_as_they_are(address: str) -> None:
    assert SCRUBBER.address(address) == address
    assert secrets_of(address) == []
    assert fits(address, address)


def test_secrets_of_addresses_in_variables_and_settings_are_known() -> None:
    scrubber = Scrubber({"OPENAI_BASE_URL": "http://h/proxy/0123-a1b2c3d4e5f6a7b8/v1"})
    assert scrubber.text("it says 0123-a1b2c3d4e5f6a7b8.") == f"it says {REDACTED}."
    assert scrubber.text("it says v1 and proxy.") == "it says v1 and proxy."


def test_secrets_of_a_plan_are_those_of_its_addresses() -> None:
    config = {"judge_url": "http://h/0123-a1b2c3d4e5f6a7b8/v1", "note": "http://h/0123-b1b2c3d4e5f6a7b8/v1", "seed": 7}
    plan = a_plan(config={**config, "server_url": None})
    told = scrubber_of(plan, {}).text("it says 0123-a1b2c3d4e5f6a7b8 and 0123-b1b2c3d4e5f6a7b8.")
    assert told == f"it says {REDACTED} and 0123-b1b2c3d4e5f6a7b8."


@pytest.mark.parametrize(
    "value",
    ["/proxy/0123-a1b2c3d4e5f6a7b8", "see http://h/0123-a1b2c3d4e5f6a7b8", "a://b,http://h/0123-a1b2c3d4e5f6a7b8"],
)
def test_paths_of_variables_that_are_no_address_are_known_to_hold_no_secret(value: str) -> None:
    assert Scrubber({"NOTE": value}).text("it says 0123-a1b2c3d4e5f6a7b8.") == "it says 0123-a1b2c3d4e5f6a7b8."


def test_secret_variables_are_those_that_settings_and_providers_name() -> None:
    config = {"api_key_env": "MINE", "judge_key_env": "", "model": "gpt", "extra_headers": ["a=$THEIRS", "b=plain"]}
    plan = Plan(
        run_id="r",
        mode="m",
        arms=[],
        tasks=[],
        samples=1,
        config=config,
        environment={},
        details={KEY_VARIABLES: ["OURS"]},
    )
    assert secret_variables(plan) == ["MINE", "THEIRS", "OURS"]
