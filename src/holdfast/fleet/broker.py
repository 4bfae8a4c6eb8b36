"""The dispatcher's side of the broker: messages are published on a thread of their own, and never waited for
longer than a socket may take.

Whatever goes wrong with the broker comes out as BrokerUnavailable: nothing that happens there is a reason to
give up, and no password of its address is ever shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import BrokerUnavailable, InvalidInput
from holdfast.core.masking import clean_message, mask_secrets
from holdfast.core.model import Lane
from holdfast.fleet.message import TASK_NAME, Message, queue_of

if TYPE_CHECKING:
    from celery import Celery

SOCKET_SECONDS_MAX = 10.0
# A copy that nobody fetched for so long is dropped by whoever fetches it. Far longer than clocks disagree.
EXPIRES_SECONDS = 3600.0
_QUERY_PASSWORD = re.compile(r"(?i)([?&][a-z_]*password=)[^&]*")


def shown_broker(url: str) -> str:
    return _QUERY_PASSWORD.sub(r"\1***", mask_secrets(url))


class Broker:
    def __init__(self, url: str, prefix: str) -> None:
        self.shown = shown_broker(url)
        self._prefix = prefix
        self.queues = [queue_of(prefix, lane) for lane in Lane]
        self._app = _producer(url, self.shown)
        self._thread = ThreadPoolExecutor(1, "holdfast-broker")

    async def send(self, messages: Sequence[Message]) -> None:
        """All of them, in their order. Where it fails, some may have been sent: copies do no harm."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._send, messages)

    def _send(self, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                self._app.send_task(
                    TASK_NAME,
                    kwargs=message.words,
                    queue=queue_of(self._prefix, message.lane),
                    expires=EXPIRES_SECONDS,
                    time_limit=message.time_limit,
                    ignore_result=True,
                    serializer="json",
                    retry=False,
                )
        except Exception as error:
            told = clean_message(str(error)) or type(error).__name__
            raise BrokerUnavailable(
                f"The broker {self.shown} does not take messages: {told}",
                guidance="Check that it runs and can be reached. What is leased waits, and is sent then.",
            ) from error

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._app.close)


def _producer(url: str, shown: str) -> Celery:
    """A Celery app that only sends. The team's own app, with its tasks and settings, is not needed here."""
    try:
        from celery import Celery
    except ImportError:
        raise InvalidInput(
            "Celery is not installed.", guidance="Install it with Holdfast: pip install 'holdfast[celery]'."
        ) from None
    app = Celery("holdfast-dispatcher", broker=url, set_as_current=False)
    options: dict[str, Any] = {}
    if url.startswith(("redis", "valkey")):
        options = {"socket_timeout": SOCKET_SECONDS_MAX, "socket_connect_timeout": SOCKET_SECONDS_MAX}
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        result_backend=None,
        broker_connection_timeout=SOCKET_SECONDS_MAX,
        broker_transport_options=options,
    )
    try:
        app.connection_for_write().get_transport_cls()
    except Exception as error:
        raise InvalidInput(
            f"{shown!r} does not name a broker that Celery can use here: {clean_message(str(error))}",
            guidance="For example redis://host:6379/0.",
        ) from error
    return app
