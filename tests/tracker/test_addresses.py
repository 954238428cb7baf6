"""Addresses that are this machine's own, and where each server and client of koderz asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz_tracker.addresses import host_of, is_loopback

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_has_names_and_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1.evil.com",
        "127.evil.com",
        "127.",
        "127.0.0.1@evil.com",
        "localhost.evil.com",
        "notlocalhost",
        "127.0.0.1 ",
        "0.0.0.0",
        "::",
        "",
        "127.0.0.256",
        "::1.evil.com",
    ],
)
def test_loopback_is_no_name_that_looks_like_it(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("header", "host"),
    [("127.0.0.1:80", "127.0.0.1"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.com", "a.com"), ("", "")],
)
def test_host_header_is_without_its_port(header: str, host: str) -> None:
    assert host_of(header) == host


def test_loopback_is_told_in_one_place() -> None:
    """No module has a rule of its own, such as a beginning that a foreign name can have, too."""
    own = [
        str(path)
        for package in ("koderz", "tracker")
        for path in (ROOT / package).rglob("*.py")
        if ".is_loopback" in (text := path.read_text()).replace("addresses.is_loopback", "")
        or 'startswith("127' in text
    ]
    assert own == [str(ROOT / "tracker" / "addresses.py")]
