"""The budget of one evaluation, which bounds its time and its memory together.

Spent to the last unit it is some 10 MB and 0.1 s. The prices are what makes that so: a new list item is 8
bytes, a new character up to 4 (up to 12 while its case is changed), comparing is far cheaper than making,
and what takes Python a step of its own (a list in a list, a value to be written out) is dear. Every
operation pays before it reads or makes.
"""

from collections.abc import Callable, Collection
from json.encoder import encode_basestring
from math import isfinite
from typing import Final

from jinja2.runtime import Context
from jinja2.utils import missing

from holdfast.playbook.plain_data import ATOMS, Sequence, StepOutput, plain

BUDGET: Final = 2 * 1024 * 1024
ITEM_PRICE: Final = 2
STEP_PRICE: Final = 40
WORD_PRICE: Final = 28
# What a filter or test by name costs in time, beside what it reads and makes.
CALL_PRICE: Final = 2 * STEP_PRICE
WIDE_CHAR_PRICE: Final = 3
CHARS_READ_PER_UNIT: Final = 16
CHARS_SEARCHED_PER_UNIT: Final = 4
CHARS_PARSED_PER_UNIT: Final = 8
BITS_READ_PER_UNIT: Final = 128
# To find the shortest digits of one that is not a whole number.
FLOAT_PRICE: Final = 28


class Evaluation(Context):
    """One evaluation: its variables, its secrets, and what is left of its budget."""

    budget_left = BUDGET
    secrets: Callable[[str], str] | None = None
    secrets_read: tuple[str, ...] = ()

    def resolve_or_missing(self, key: str) -> object:
        value = super().resolve_or_missing(key)
        if value is missing:
            return value
        known_plain = plain(value)
        # Its mark stays on an output until something is done with it: `.data` asks for it.
        return value if isinstance(value, StepOutput) else known_plain

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
        if int in kinds:
            bits = sum(item.bit_length() for item in items if type(item) is int)
            self.pay(bits // BITS_READ_PER_UNIT)
        return [] if kinds <= ATOMS else [item for item in items if type(item) not in ATOMS]

    def pay_to_search(self, text: str) -> None:
        """Before another text is looked for in it, which may be written to make that slow."""
        self.pay(len(text) // CHARS_SEARCHED_PER_UNIT)

    def join(self, separator: str, parts: list[str]) -> str:
        for part in parts:
            self.pay_for_new(part)
        self.pay(len(separator) * len(parts))
        return separator.join(parts)

    def text(self, value: object) -> str:
        """As it is written among text: text as it is, all the rest as JSON writes it."""
        return str(value) if isinstance(value, str) else self.json(value)

    def json(self, value: object) -> str:
        """Paid for piece by piece."""
        value = plain(value)
        if isinstance(value, str):
            return self._quoted(value)
        if isinstance(value, dict):
            self.pay(STEP_PRICE)
            pairs = [f"{self._key(key)}: {self.json(item)}" for key, item in value.items()]
            return self._enclosed("{", pairs, "}")
        if isinstance(value, list | tuple):
            self.pay(STEP_PRICE)
            return self._enclosed("[", [self.json(item) for item in value], "]")
        return self._word(value)

    def _word(self, value: object) -> str:
        self.pay(WORD_PRICE)
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            # The time to write a number grows with the square of its length.
            self.pay((value.bit_length() // 256) ** 2)
        elif isinstance(value, float):
            self.pay(FLOAT_PRICE)
            if not isfinite(value):
                raise ValueError("a number that is infinite, or none at all, cannot be written")
        return str(value)

    def _key(self, key: object) -> str:
        return self._quoted(key if isinstance(key, str) else self._word(plain(key)))

    def _quoted(self, text: str) -> str:
        self.pay(WORD_PRICE)
        self.pay_for_new(text)
        quoted = encode_basestring(text)
        # Control characters take six characters each.
        self.pay(len(quoted) - len(text))
        return quoted

    def _enclosed(self, opening: str, parts: list[str], closing: str) -> str:
        self.pay(STEP_PRICE)
        inside = self.join(", ", parts)
        self.pay_for_new(inside)
        return f"{opening}{inside}{closing}"
