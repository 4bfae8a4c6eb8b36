"""A failure that was told by another process as plain data, on its way through this one as an exception."""

from __future__ import annotations

from typing import Any

from holdfast.core.failures import Failure
from holdfast.core.model import Failed


class FailedElsewhere(Exception):
    """The attempt ends with this outcome, as it is: there is no exception here to describe."""

    def __init__(self, outcome: Failed) -> None:
        super().__init__(outcome.failure.message)
        self.outcome = outcome

    @classmethod
    def of(cls, message: str, **told: Any) -> FailedElsewhere:
        return cls(Failed(Failure(message=message, **told)))
