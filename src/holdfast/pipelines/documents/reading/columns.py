"""The names of columns and of ranges of cells, as spreadsheets write them: A, Z, AA, XFD; A1:F20."""

from __future__ import annotations

from functools import lru_cache

COLUMNS_MAX = 16_384


@lru_cache(COLUMNS_MAX)
def column_number(letters: str) -> int:
    """From 0."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number - 1


@lru_cache(COLUMNS_MAX)
def column_letters(number: int) -> str:
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def cell_range(first_row: int, first_column: int, last_row: int, last_column: int) -> str:
    """Rows from 1, columns from 0."""
    first = f"{column_letters(first_column)}{first_row}"
    last = f"{column_letters(last_column)}{last_row}"
    return first if first == last else f"{first}:{last}"
