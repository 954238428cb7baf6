"""No secret gets into the store, and what is none stays as it is."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.memory import scrubbing
from tracker.memory.scrubbing import REDACTED, Scrubber

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
def test_a_secret_is_taken_out(text: str, secret: str) -> None:
    scrubbed = SCRUBBER.text(f"before {text} after")

    assert secret not in scrubbed
    assert REDACTED in scrubbed
    assert scrubbed.startswith("before ")
    assert not SCRUBBER.is_clean(f"before {text} after")


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
def test_what_is_no_secret_stays(text: str) -> None:
    assert SCRUBBER.text(text) == text


def test_a_json_document_stays_one() -> None:
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
    assert not SCRUBBER.is_clean(json.dumps(metadata["known"]))


@pytest.mark.parametrize(
    "piece", ["a-", "eyJ-", "a.", "token", "token=", "sk-", "key = ", "-----BEGIN PRIVATE KEY-----", "://a:", "bearer "]
)
def test_a_megabyte_meant_to_hold_the_patterns_up_does_not(piece: str) -> None:
    begun = time.process_time()
    SCRUBBER.text(piece * (1_000_000 // len(piece)))
    assert time.process_time() - begun < 20


@given(st.from_regex(scrubbing._SHAPES))
def test_the_quick_look_misses_no_shape_of_a_secret(text: str) -> None:
    assert not SCRUBBER.is_clean(text)
    assert REDACTED in SCRUBBER.text(text)
