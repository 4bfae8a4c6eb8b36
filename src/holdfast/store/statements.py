"""What handlers' transactions have in common on all stores: what may not be in them, how they are lost.

The completion of the step is stored at the end of the same transaction, so a handler that commits or
rolls back by itself would break the promise that both happen or neither.
"""

from __future__ import annotations

import re

from holdfast.core.errors import PermanentError, TransactionLost

_ENDS_A_TRANSACTION = frozenset({"begin", "start", "commit", "end", "rollback", "abort", "prepare"})
_FIRST_WORDS = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w+)(?:\s+(\w+))?", re.DOTALL)


def refuse_transaction_control(sql: str) -> None:
    found = _FIRST_WORDS.match(sql)
    if found is None:
        return
    first, second = (found[1] or "").lower(), (found[2] or "").lower()
    if first == "rollback" and second == "to":  # a savepoint of the handler's own
        return
    if first == "prepare" and second != "transaction":
        return
    if first in _ENDS_A_TRANSACTION:
        raise transaction_control(first.upper())


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
