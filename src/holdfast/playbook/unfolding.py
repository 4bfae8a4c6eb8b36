"""What a value is once it is written out, where the same list or mapping stands in it several times.

An expression makes `[rows] * 1000` at the price of a thousand references, and two texts of a value may hand
on the same rows. As JSON each of these is a copy of its own: whatever leaves an evaluation is met here, and
pays for every time but the first.
"""

from typing import Any, Final

from holdfast.playbook.evaluation import STEP_PRICE, Evaluation

CHARS_UNFOLDED_PER_UNIT: Final = 4
WIDE_CHAR_BYTES_MAX: Final = 4
# Shorter texts need no bound but that of the places for them.
LONG_CHARS_MIN: Final = 256
_SCALAR_CHARS: Final = 8


class Given:
    """What the texts of a value have given so far: how long each list, mapping and long text is as JSON.

    What an expression made pays for being looked through. What it hands on from the data as it is does not,
    and is not looked through while it is alone: then it is no more than it was.
    """

    __slots__ = ("_alone", "_sizes")

    def __init__(self) -> None:
        self._alone: object = None
        self._sizes: dict[int, int | None] = {}  # by identity; None while its own items are looked at

    def add_made(self, evaluation: Evaluation, value: object) -> None:
        if isinstance(value, list | tuple | dict):
            self._size(evaluation, value, is_made=True)

    def add_handed_on(self, evaluation: Evaluation, value: object) -> None:
        if not isinstance(value, list | tuple | dict) and not _is_long_text(value):
            return
        if self._alone is None and not self._sizes:
            self._alone = value
            return
        first, self._alone = self._alone, None
        if first is not None:
            self._size(evaluation, first, is_made=False)
        self._size(evaluation, value, is_made=False)

    def _size(self, evaluation: Evaluation, value: Any, *, is_made: bool) -> int:
        key = id(value)
        if key not in self._sizes:
            self._sizes[key] = None
            is_text = isinstance(value, str)
            size = _text_size(value) if is_text else self._items_size(evaluation, value, is_made)
            self._sizes[key] = size
            return size
        again = self._sizes[key]
        if again is None:
            raise ValueError("it holds itself")
        units = again // CHARS_UNFOLDED_PER_UNIT
        if units > evaluation.budget_left:
            raise OverflowError("the same stands in it so often that, written out, it is too much data")
        evaluation.pay(units)
        return again

    def _items_size(self, evaluation: Evaluation, value: Any, is_made: bool) -> int:
        if is_made:
            evaluation.pay(STEP_PRICE + len(value))
        texts = inner = 0
        if isinstance(value, dict):
            texts = sum(len(key) for key in value if isinstance(key, str))
        for item in value.values() if isinstance(value, dict) else value:
            kind = type(item)
            if kind is str:
                texts += _text_size(item)
            elif kind is int:
                texts += item.bit_length() // 3 + 1
            elif kind is list or kind is dict or kind is tuple:
                inner += self._size(evaluation, item, is_made=is_made)
            else:
                inner += _SCALAR_CHARS
        if is_made:
            evaluation.pay(texts // CHARS_UNFOLDED_PER_UNIT)
        return texts + inner + 2 * len(value)


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else WIDE_CHAR_BYTES_MAX * len(text)


def _is_long_text(value: object) -> bool:
    return isinstance(value, str) and len(value) >= LONG_CHARS_MIN
