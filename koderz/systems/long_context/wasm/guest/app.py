"""The guest: a session's namespace in WASM.

componentize-py keeps in the image only what is imported here, so the imports are the standard library that cells get.
"""

import repl
import wit_world

import _strptime, abc, array, ast, asyncio, base64, bisect, calendar, cmath, codecs, collections, concurrent, contextlib
import contextvars, copy, csv, dataclasses, datetime, decimal, difflib, enum, fnmatch, fractions, functools, glob
import gzip, hashlib, heapq, html, html.parser, importlib, inspect, io, itertools, json, locale, logging, math
import numbers, operator, os, pathlib, pickle, pprint, queue, random, re, secrets, select, shlex, shutil, sqlite3
import statistics, string, struct, sys, tempfile, textwrap, time, traceback, types, typing, unicodedata
import urllib.parse, uuid, warnings, weakref, xml.etree.ElementTree, zipfile, zlib, zoneinfo
import encodings.ascii, encodings.idna, encodings.latin_1, encodings.utf_8

STEP = 0.01  # seconds: a deadline can't interrupt one call of the host

_real_sleep, _real_monotonic = time.sleep, time.monotonic
_ticks = 0.0


def _clock():
    """Seconds that grow by a microsecond a call, the same in every replay."""
    global _ticks
    _ticks += 1e-6
    return _ticks


def _sleep(seconds):
    global _ticks
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    _ticks += seconds
    end = _real_monotonic() + seconds
    while (left := end - _real_monotonic()) > 0:
        _real_sleep(min(left, STEP))


def _select(readers, writers, others, timeout=None):
    """Reports that nothing is ready, since there is nothing to wait for."""
    _sleep(1e9 if timeout is None else timeout)
    return [], [], []


time.sleep, time.monotonic, time.perf_counter, time.process_time = _sleep, _clock, _clock, _clock
time.monotonic_ns = time.perf_counter_ns = time.process_time_ns = lambda: int(_clock() * 1e9)
select.select = _select
if hasattr(select, "poll"):
    del select.poll

_repl = repl.Repl(wit_world.call)


class WitWorld(wit_world.WitWorld):
    begin, chunk, commit = _repl.begin, _repl.chunk, _repl.commit
    run, get = _repl.run, _repl.get
