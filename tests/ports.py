"""Ports of 127.0.0.1 that stay ours while a server is away: nobody else's free port is one of them.

A socket that is bound and does not listen keeps a port from being given to others, and a server that is named
it may still listen there, again and again.
"""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def kept_ports(count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as sockets:
        ports = []
        for _ in range(count):
            keeper = sockets.enter_context(socket.socket())
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.bind(("127.0.0.1", 0))
            ports.append(keeper.getsockname()[1])
        yield ports


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    with kept_ports(1) as [port]:
        yield port
