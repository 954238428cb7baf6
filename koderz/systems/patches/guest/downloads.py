"""Answers a test script's downloads from files fetched earlier, as there is no network where it runs.

A file holds what a URL answers, and is named by the SHA-256 of that URL, as GSO's harness names them.
"""

import hashlib
import io
import os
import urllib.request
from email.message import Message
from urllib.response import addinfourl

FOLDERS = ("/opt/koderz/downloads", "/.url_cache")  # the latter is in GSO's images


def found(url):
    name = hashlib.sha256(url.encode()).hexdigest()
    for folder in FOLDERS:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                return file.read()
        except OSError:
            pass
    raise OSError(
        f"there is no network here to fetch {url}: keep what it answers in the file {name} of `downloads`"
    )


def opened(url, *args, **kwargs):
    url = getattr(url, "full_url", url)
    if url.startswith(("file:", "data:")):
        return urlopen(url, *args, **kwargs)
    return addinfourl(io.BytesIO(found(url)), Message(), url, 200)


def requested(session, method, url, *args, **kwargs):
    import requests

    response = requests.Response()
    response.status_code, response.reason, response.url = 200, "OK", str(url)
    response._content = found(str(url))
    # for who reads it in parts
    response._content_consumed, response.raw = True, io.BytesIO(response._content)
    response.encoding = "utf-8"
    return response


def answer(source):
    """Replaces the downloads of urllib and requests. Call it once the script's imports can be found."""
    global urlopen
    if "urllib" in source:
        urlopen, urllib.request.urlopen = urllib.request.urlopen, opened
    if "requests" in source:
        try:
            import requests
        except ImportError:  # which the script says, if it wants it
            return
        requests.Session.request = requested
