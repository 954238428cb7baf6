"""Stands for an MCP server where an agent starts one: links the two by way of koderz, which records what passes.

It reaches koderz through the bridge of its sandbox, and carries bytes without reading them. A server of stdio works
below it, or below another one in a sandbox of its own. It runs on whatever python3 there is, and imports nothing of
koderz.
"""

import json
import os
import socket
import subprocess
import sys
from threading import Thread

PIECE, WORDS = 65536, 4000  # bytes that are carried at once, and of stderr that are told
PATIENCE = 5.0  # seconds for what is still under way
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
INHERITED = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", *PROXIES)


def main(told):
    """Links an agent (`agent`), the server that it starts (`server`), or both. Returns the server's exit code."""
    about = json.loads(told)
    if about["agent"]:
        link = linked(about, "agent")
        beside(0, lambda piece: send(link, piece))
        hearing = beside(link.fileno(), into(sys.stdout.buffer))
    status = served(about["server"], linked(about, "server")) if about["server"] else 0
    if about["agent"]:
        hearing.join(PATIENCE if about["server"] else None)
    return status


def served(server, link):
    """Runs a server with the variables of its arm alone. The last line that koderz gets says how it ended."""
    own = {name: os.environ[name] for name in INHERITED if name in os.environ}
    argv, words, status = [server["command"], *server.get("args", ())], bytearray(), 127

    def overhear(piece):
        os.write(2, piece)
        words.extend(piece)
        del words[:-WORDS]

    try:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env={**own, **server.get("env", {})}
        )
    except OSError as error:
        overhear(f"{argv[0]}: {error.strerror}\n".encode())
    else:
        hearing = beside(process.stderr.fileno(), overhear)
        beside(link.fileno(), into(process.stdin))
        carry(process.stdout.fileno(), lambda piece: piece and send(link, piece))
        process.stdout.close()  # at which it ends, where koderz is heard no more
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        hearing.join(PATIENCE)
    ended = {"status": status, "words": words.decode("utf-8", "replace")}
    send(link, b"\n\0" + json.dumps(ended).encode() + b"\n")  # no line of JSON-RPC begins so
    send(link, b"")
    return status


def linked(about, end):
    """A connection to koderz that carries bytes both ways: a request of HTTP in chunks, and an answer that is long."""
    host, _, port = about["url"].rpartition("/")[2].partition(":")
    link = socket.create_connection((host, int(port)))
    path, kind = f"/mcp/{about['name']}/{end}/{os.getpid()}", "Transfer-Encoding: chunked"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {about['token']}\r\n{kind}\r\n\r\n"
    link.sendall(head.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += link.recv(1) or sys.exit("koderz is gone")
    return (
        link
        if answer.startswith(b"HTTP/1.1 200 ")
        else sys.exit(f"koderz has no link to {about['name']}")
    )


def send(link, piece):
    """Sends a chunk; an empty one is the last."""
    link.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))


def into(file):
    """Writes pieces into a file, and closes it after the last."""
    return lambda piece: (file.write(piece), file.flush()) if piece else file.close()


def carry(source, take):
    """Hands on bytes as they come; an empty piece is the last."""
    try:
        while take(piece := os.read(source, PIECE)) or piece:
            pass
    except (OSError, ValueError):  # either end is gone
        return


def beside(source, take):
    """A thread that carries."""
    thread = Thread(target=carry, args=(source, take), daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
