"""Addresses of this machine's own, by which every server and client of koderz tells who is local."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself: `localhost`, a name below it, or an address such as 127.0.0.1 and ::1.

    A name that only looks like an address, such as 127.0.0.1.example.org, is somebody else's.
    """
    name = host.lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The host in a `Host` header, without its port and an IPv6 address's brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
