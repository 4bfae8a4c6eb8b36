"""The rows of a query on their way to an output: bounded in number and in bytes, every value storable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import PermanentError
from holdfast.steps.storable import TooDeep, storable, storable_text

BYTES_BESIDES = 4096


class Rows:
    """Takes rows until it is full. One row more than it may hold tells that there are more."""

    def __init__(self, columns: Iterable[str], rows_max: int, output_bytes_max: int) -> None:
        self.columns = _distinct(columns)
        self._rows_max = rows_max
        self._bytes_max = output_bytes_max
        self._bytes = BYTES_BESIDES + len(msgspec.json.encode(self.columns))
        self._data: list[dict[str, Any]] = []
        self._is_truncated = False

    @property
    def wanted(self) -> int:
        return self._rows_max + 1 - len(self._data)

    @property
    def is_full(self) -> bool:
        return self._is_truncated

    def add(self, values: Sequence[Any]) -> None:
        if len(self._data) >= self._rows_max:
            self._is_truncated = True
            return
        # Before anything is made of them: as JSON they are never shorter.
        if sum(len(value) for value in values if isinstance(value, str | bytes)) > self._bytes_max:
            raise self._too_large()
        try:
            row = {name: storable(value) for name, value in zip(self.columns, values, strict=True)}
        except TooDeep as error:
            raise _unstorable(f"A value of row {len(self._data) + 1} is {error}.") from None
        self._bytes += len(msgspec.json.encode(row)) + 1
        if self._bytes > self._bytes_max:
            raise self._too_large()
        self._data.append(row)

    def _too_large(self) -> PermanentError:
        return _unstorable(
            f"The first {len(self._data) + 1:,} rows are more than {self._bytes_max:,} bytes of JSON."
        )

    def output(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "row_count": len(self._data),
            "data": self._data,
            "truncated": self._is_truncated,
        }


def changed(rows: int) -> dict[str, Any]:
    """The output of a statement that has no rows to show."""
    return {"columns": [], "row_count": rows, "data": [], "truncated": False}


def _distinct(columns: Iterable[str]) -> list[str]:
    """Two columns of one name would be one key: the second `id` is `id_2`."""
    names: list[str] = []
    taken: set[str] = set()
    for given in columns:
        name = base = storable_text(given)
        number = 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        names.append(name)
        taken.add(name)
    return names


def _unstorable(message: str) -> PermanentError:
    return PermanentError(
        message,
        error_type="result_too_large",
        user_message="A query's result is larger than a step may hand on",
        guidance="Select fewer columns or rows, lower rows_max, or write the result to a table.",
    )
