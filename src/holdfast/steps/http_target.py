"""Which machines an http step may reach, where the worker's owner has forbidden private ones.

    host name ──resolve──▶ addresses ──each is checked──▶ connect to one of those very addresses

The check is made where the connection is: a name that means another machine a moment later, a redirect, and
an address in disguise (decimal, octal, IPv4 within IPv6) all end at the address that is connected to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any, TypeAlias

import httpcore
import httpx

from holdfast.core.errors import PermanentError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# IPv4 within IPv6, by a translator at the edge of the network.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Of these Python says that they are global, or some of its versions do: protocol assignments and relays, the
# metadata service of Oracle's cloud among them; that of Azure; and what is there for documentation.
_NEARBY = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20"))
)


def is_public(address: Address) -> bool:
    """Whether it is a machine of the open internet, and no disguise of one nearby."""
    if isinstance(address, ipaddress.IPv6Address):
        hidden = _ipv4_within(address)
        if hidden is not None:
            return is_public(hidden)
        if address.teredo is not None or address.is_site_local:
            return False
    if any(address in network for network in _NEARBY):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    )


def _ipv4_within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def forbidden(host: str, address: str) -> PermanentError:
    return PermanentError(
        f"{host} is at {address}, which is no public address, and this worker forbids those.",
        error_type="target_forbidden",
        user_message="The step may not reach this address",
        guidance="Use a public address; or let the worker's owner set HOLDFAST_HTTP_PRIVATE=allow.",
    )


class PublicOnly(httpcore.AsyncNetworkBackend):
    """Makes connections to public addresses, and to no others."""

    def __init__(self) -> None:
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await _resolve(host, port, timeout)
        for address in addresses:
            if not is_public(ipaddress.ip_address(address.partition("%")[0])):
                raise forbidden(host, address)
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise forbidden(path, "a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


async def _resolve(host: str, port: int, seconds_max: float | None) -> list[str]:
    # Also for what looks like an address: the system reads 0177.0.0.1 and 2130706433 as it will connect.
    lookup = asyncio.ensure_future(
        asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    lookup.add_done_callback(_forget)
    await asyncio.wait([lookup], timeout=seconds_max)
    if not lookup.done():
        lookup.cancel()
        raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time")
    try:
        found = lookup.result()
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"the name {host} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def _forget(lookup: asyncio.Future[Any]) -> None:
    if not lookup.cancelled():
        lookup.exception()


class PublicTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport on connections that are checked."""

    def __init__(self, limits: httpx.Limits) -> None:
        super().__init__(limits=limits)
        # httpx has no parameter for it. Should it keep its pool elsewhere one day, nothing is sent unchecked.
        if not isinstance(self.__dict__.get("_pool"), httpcore.AsyncConnectionPool):
            raise RuntimeError("this version of httpx cannot be kept from private addresses")
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=PublicOnly(),
        )
