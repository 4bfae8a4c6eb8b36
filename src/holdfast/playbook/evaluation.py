"""The budget of one evaluation, which bounds its time and its memory together.

Spent to the last unit it is some 10 MB and 0.1 s. The prices are what makes that so: a new list item is 8
bytes, a new character up to 4 (up to 12 while its case is changed), comparing is far cheaper than making,
and what takes Python a step of its own (a list in a list, a value to be written out) is dear. Every
operation pays before it reads or makes.
"""

from collections.abc import Collection
from typing import Final

from jinja2.runtime import Context
from jinja2.utils import missing

from holdfast.playbook.plain_data import ATOMS, Sequence, plain

BUDGET: Final = 2 * 1024 * 1024
ITEM_PRICE: Final = 2
STEP_PRICE: Final = 16
WIDE_CHAR_PRICE: Final = 3
CHARS_READ_PER_UNIT: Final = 16


class Evaluation(Context):
    """One evaluation: its variables, and what is left of its budget."""

    budget_left = BUDGET

    def resolve_or_missing(self, key: str) -> object:
        value = super().resolve_or_missing(key)
        return value if value is missing else plain(value)

    def pay(self, units: int) -> None:
        self.budget_left -= units
        if self.budget_left < 0:
            raise OverflowError("it reads or makes too much data")

    def pay_for_new(self, value: str | Sequence) -> None:
        """Before a copy of the value is made."""
        if not isinstance(value, str):
            self.pay(ITEM_PRICE * len(value))
        else:
            self.pay(len(value) if value.isascii() else WIDE_CHAR_PRICE * len(value))

    def pay_to_read(self, value: object) -> None:
        """Before the whole of the value is compared; all of it must be plain data."""
        pending = [value]
        while pending:
            item = plain(pending.pop())
            if isinstance(item, str):
                self.pay(len(item) // CHARS_READ_PER_UNIT)
            elif isinstance(item, list | tuple):
                pending += self._pay_to_read_items(item)
            elif isinstance(item, dict):
                pending += self._pay_to_read_items(item.keys())
                pending += self._pay_to_read_items(item.values())

    def _pay_to_read_items(self, items: Collection[object]) -> list[object]:
        """The items that are still to be read: text and numbers, most of any long data, are done at once."""
        self.pay(STEP_PRICE + ITEM_PRICE * len(items))
        kinds = set(map(type, items))
        if str in kinds:
            self.pay(sum(len(item) for item in items if isinstance(item, str)) // CHARS_READ_PER_UNIT)
        return [] if kinds <= ATOMS else [item for item in items if type(item) not in ATOMS]

    def join(self, separator: str, parts: list[str]) -> str:
        for part in parts:
            self.pay_for_new(part)
        self.pay(len(separator) * len(parts))
        return separator.join(parts)

    def text(self, value: object) -> str:
        """As `str` would write it."""
        return str(value) if isinstance(value, str) else self._spelled(value)

    def _spelled(self, value: object) -> str:
        """As `repr` would write it, paid for piece by piece."""
        self.pay(STEP_PRICE)
        if isinstance(value, dict):
            pairs = [f"{self._spelled(key)}: {self._spelled(item)}" for key, item in value.items()]
            return self._enclosed("{", pairs, "}")
        if isinstance(value, list):
            return self._enclosed("[", [self._spelled(item) for item in value], "]")
        if isinstance(value, tuple):
            return self._enclosed(
                "(", [self._spelled(item) for item in value], ",)" if len(value) == 1 else ")"
            )
        if isinstance(value, str):
            self.pay_for_new(value)
            return repr(str(value))
        return str(plain(value))

    def _enclosed(self, opening: str, parts: list[str], closing: str) -> str:
        self.pay(STEP_PRICE)
        inside = self.join(", ", parts)
        self.pay_for_new(inside)
        return f"{opening}{inside}{closing}"
