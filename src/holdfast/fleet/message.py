"""What a message of the broker says: which attempt waits, and the fence that whoever takes it must show.

No workload, no secret, nothing that could be run: who forges one without a fence that stands gets nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.core.errors import InvalidInput
from holdfast.core.model import Lane, LeaseRef

TASK_NAME = "holdfast.attempt"
MESSAGE_VERSION = 1
QUEUE_PREFIX_DEFAULT = "holdfast"
_FENCE = re.compile(r"[0-9A-Za-z_-]{1,200}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Message(NamedTuple):
    """`time_limit` is after how many seconds the process that runs the attempt is to be killed."""

    lease: LeaseRef
    lane: Lane
    time_limit: float

    @property
    def words(self) -> dict[str, Any]:
        return {"version": MESSAGE_VERSION, "queue_id": self.lease.queue_id, "fence": self.lease.fence}


def lease_in(words: Mapping[str, Any]) -> LeaseRef:
    """The lease that a message names, or InvalidInput: whatever has put it there, it was none of ours."""
    version, queue_id, fence = (words.get(name) for name in ("version", "queue_id", "fence"))
    if version != MESSAGE_VERSION:
        raise InvalidInput(
            f"The message is of version {str(version)[:20]}; this Holdfast reads version {MESSAGE_VERSION}.",
            guidance="Run the same version of Holdfast in the dispatcher and in the Celery workers.",
        )
    is_fence = isinstance(fence, str) and _FENCE.fullmatch(fence) is not None
    if not isinstance(queue_id, int) or isinstance(queue_id, bool) or not is_fence:
        raise InvalidInput(
            "The message names no attempt.",
            guidance="Only `holdfast worker --executor celery` sends these messages.",
        )
    return LeaseRef(queue_id, str(fence))


def queue_of(prefix: str, lane: Lane) -> str:
    return f"{prefix}.{lane}"


def check_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"{prefix!r} cannot begin the name of a queue.",
            guidance="Use up to 100 letters, digits, '.', '_' and '-', a letter or a digit first.",
        )
    return prefix
