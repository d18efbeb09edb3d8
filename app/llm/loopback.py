"""Tells whether a server is on this machine."""

import ipaddress
import urllib.parse

__all__ = ["is_loopback", "is_loopback_url"]


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses; names aren't resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    return is_loopback(urllib.parse.urlsplit(url).hostname or "")
