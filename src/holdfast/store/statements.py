"""What handlers' transactions have in common on all stores: what may not be in them, how they are lost.

The completion of the step is stored at the end of the same transaction, so a handler that commits or
rolls back by itself would break the promise that both happen or neither.
"""

from __future__ import annotations

import re

from holdfast.core.errors import PermanentError, TransactionLost

_ENDS_A_TRANSACTION = frozenset({"begin", "start", "commit", "end", "rollback", "abort", "prepare"})
_SPACE = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$))*")
_COMMENT_ENDS = re.compile(r"/\*|\*/")
_WORD = re.compile(r"\w+")
_TO_A_SAVEPOINT = {("rollback", "to"), ("rollback", "work", "to"), ("rollback", "transaction", "to")}


def refuse_transaction_control(sql: str) -> None:
    words = first_words(sql, 3)
    if words[:2] in _TO_A_SAVEPOINT or words in _TO_A_SAVEPOINT:
        return
    if words[:1] == ("prepare",) and words[1:2] != ("transaction",):
        return
    if words and words[0] in _ENDS_A_TRANSACTION:
        raise transaction_control(words[0].upper())


def first_words(sql: str, count: int) -> tuple[str, ...]:
    """The words a statement begins with, in small letters, whatever comments are between them. PostgreSQL's
    comments may hold comments."""
    words: list[str] = []
    place = 0
    while len(words) < count:
        space = _SPACE.match(sql, place)
        assert space is not None  # it matches nothing as well
        place = space.end()
        if sql.startswith("/*", place):
            place = _end_of_comment(sql, place)
        elif found := _WORD.match(sql, place):
            words.append(found[0].lower())
            place = found.end()
        else:
            break
    return tuple(words)


def _end_of_comment(sql: str, place: int) -> int:
    depth = 0
    for found in _COMMENT_ENDS.finditer(sql, place):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return found.end()
    return len(sql)


def transaction_control(word: str) -> PermanentError:
    return PermanentError(
        f"{word} cannot be used in ctx.transaction(): it commits with the completion of the step.",
        error_type="validation_error",
        guidance="Leave it out. To undo, raise an error; to undo a part, use SAVEPOINT and ROLLBACK TO.",
    )


def open_for_too_long(seconds: float) -> TransactionLost:
    return TransactionLost(
        f"ctx.transaction() was open for longer than {seconds:g} s and was rolled back.",
        error_type="timeout",
        user_message="A database transaction took too long",
        guidance="Open it later and keep it short: do slow work before its first statement.",
    )
