"""The account that processes share: real files, real processes, and what is left when one is killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from koderz.models.limiter import RateAccount, account_name, accounts_folder
from koderz.models.names import Rates
from koderz.models.rates import Booking, RateLimit

RATES = Rates(rpm=600)  # ten may go at once

BOOKING = """
import sys, time
from pathlib import Path
from koderz.models.limiter import RateAccount
from koderz.models.names import Rates
from koderz.models.rates import Booking

account = RateAccount(Rates(rpm=600), Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
booked = 0
while sys.argv[2] == "for ever" or booked < int(sys.argv[2]):
    booked += account.book(Booking("m", (0.1, 0, 0, 0)), 1000.0) == 0
print(booked, flush=True)
"""


def booking(tokens: float = 0.0) -> Booking:
    return Booking("m", (1.0, tokens, tokens, 0.0))


def booked(account: RateAccount, moment: float, tries: int = 20) -> int:
    return sum(account.book(booking(), moment) == 0 for _ in range(tries))


def started(path: Path, times: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BOOKING, str(path), times]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_account_is_shared_by_all_who_name_its_file(tmp_path: Path) -> None:
    one, other = (RateAccount(RATES, tmp_path / "rates" / "x") for _ in range(2))
    assert booked(one, 1000.0, 6) == 6
    assert booked(other, 1000.0) == 4
    assert booked(RateAccount(RATES, tmp_path / "rates" / "y"), 1000.0) == 10


def test_account_tells_others_the_limits_that_it_heard(tmp_path: Path) -> None:
    one, other = (RateAccount(path=tmp_path / "x") for _ in range(2))
    first = booking()
    assert one.book(first, 1000.0) == 0
    first.limits, first.is_answered = {0: RateLimit(60, 3)}, True
    one.settle(first, 1000.0)
    assert booked(other, 1000.0) == 3
    assert other.knows("m")


def test_account_of_another_time_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert booked(RateAccount(RATES, path), 5000.0) == 10
    for moment in (6000.0, 10.0):  # later, and after the machine was started again
        assert booked(RateAccount(RATES, path), moment) == 10


@pytest.mark.parametrize("content", [b"", b"\xff" * 4096, b"\x05\0\0\0\0\0\0\0hello", os.urandom(100_000)])
def test_account_file_with_nonsense_is_made_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert booked(RateAccount(RATES, tmp_path / "x"), 1000.0) == 10
    assert booked(RateAccount(RATES, tmp_path / "x"), 1000.0) == 0


def test_account_file_keeps_to_a_page_however_many_models(tmp_path: Path) -> None:
    account = RateAccount(path=tmp_path / "x")
    for number in range(200):
        assert account.book(Booking(f"model-{number}", (1.0, 0.0, 0.0, 0.0)), 1000.0) == 0
    assert (tmp_path / "x").stat().st_size <= 4096


def test_account_file_is_for_its_user_alone_and_holds_no_key(tmp_path: Path) -> None:
    name = account_name("openai", "https://api.openai.com/v1", "sk-secret-0123456789")
    account = RateAccount(RATES, tmp_path / "rates" / name)
    booked(account, 1000.0)
    assert stat.S_IMODE((tmp_path / "rates").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "rates" / name).stat().st_mode) == 0o600
    assert "secret" not in name
    assert b"secret" not in (tmp_path / "rates" / name).read_bytes()
    assert name != account_name("openai", "https://api.openai.com/v1", "another")


def test_account_that_can_not_be_shared_goes_on_alone_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "rates").write_text("a file where the folder should be")
    said: list[str] = []
    account = RateAccount(RATES, tmp_path / "rates" / "x", said.append)
    assert booked(account, 1000.0) == 10
    (notice,) = said
    assert "can't be used" in notice


@pytest.mark.slow
def test_account_is_not_waited_for_when_its_holder_is_stopped(tmp_path: Path) -> None:
    import fcntl

    holder = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    said: list[str] = []
    account = RateAccount(RATES, tmp_path / "x", said.append)
    assert booked(account, 1000.0) == 10
    assert len(said) == 1
    os.close(holder)


def test_account_books_nothing_twice_for_processes_at_once(tmp_path: Path) -> None:
    processes = [started(tmp_path / "x", "30") for _ in range(3)]
    for process in processes:
        begin(process)
    assert [process.communicate()[0].strip() for process in processes] == ["30"] * 3
    account = RateAccount(Rates(rpm=600), tmp_path / "x")
    left = sum(account.book(Booking("m", (0.1, 0.0, 0.0, 0.0)), 1000.0) == 0 for _ in range(50))
    assert left == 10  # of a hundred


def test_account_survives_kills(tmp_path: Path) -> None:
    for _ in range(3):
        process = started(tmp_path / "x", "for ever")
        begin(process)
        time.sleep(0.05)
        process.kill()
        process.communicate()
    said: list[str] = []
    account = RateAccount(Rates(rpm=600), tmp_path / "x", said.append)
    assert account.book(Booking("m", (0.1, 0.0, 0.0, 0.0)), 1000.0) > 0  # it is all booked
    assert account.book(Booking("m", (0.1, 0.0, 0.0, 0.0)), 1001.0) == 0
    assert not said


def test_accounts_folder_is_the_runtime_folder_or_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert accounts_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "koderz" / "rates"
    for environ in ({}, {"XDG_RUNTIME_DIR": str(tmp_path / "gone")}):
        assert accounts_folder(environ).is_relative_to(tmp_path / "cache")
