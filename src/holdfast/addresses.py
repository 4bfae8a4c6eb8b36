"""Addresses: of a database (`sqlite:///…`, `postgresql://…`), or of a server in front of one (`http://…`)."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.core.errors import StoreUrlInvalid
from holdfast.core.masking import mask_secrets
from holdfast.store import store_from_url


def is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def check_address(url: str) -> str:
    """The address as it is used; StoreUrlInvalid where it is none."""
    if is_server(url):
        return check_server_url(url)
    store_from_url(url)
    return url


def check_server_url(url: str) -> str:
    """The address of a server without a slash at its end."""
    try:
        parts = urlsplit(url)
        is_valid = is_server(url) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment or not url.isprintable():
        raise StoreUrlInvalid(
            f"{mask_secrets(url)!r} is not the address of a server.",
            guidance="Use http://host:port, for example http://127.0.0.1:8083.",
        )
    return url.rstrip("/")
