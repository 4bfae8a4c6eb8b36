"""A sql step's view of a database, for tests: ask it, or see how it fails."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.failures import Classification, classify, failure_from_exception
from holdfast.steps import sql
from holdfast.steps.interface import StepCall, StepSettings
from running import run


class Database:
    """One of the three, with a step's view of it."""

    def __init__(self, url: str, settings: StepSettings) -> None:
        self.url = url
        self.kind = url.partition(":")[0]
        self.settings = settings

    def call(self, query: Any, params: Any = None, **config: Any) -> StepCall:
        return StepCall(
            config={"url": self.url, "query": query, "params": params, **config},
            settings=self.settings,
            timeout_seconds=120,
        )

    def __call__(self, query: Any, params: Any = None, **config: Any) -> Any:
        return run(sql.run(self.call(query, params, **config)))

    def fails(self, query: str, params: Any = None, **config: Any) -> Classification:
        with pytest.raises(Exception) as raised:
            self(query, params, **config)
        return classify(failure_from_exception(raised.value))
