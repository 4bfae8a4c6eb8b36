"""The user's own rules: one entry of a playbook's `errors:` each, checked when it is registered.

A rule names an error by its exception, its HTTP status or words in its message, and may say whether it
heals and what to tell people. `classify` asks the rules in their order, before anything that is built in.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Self

from holdfast.core.catalogue import Category
from holdfast.core.errors import DefinitionInvalid
from holdfast.core.known_errors import is_status


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """One entry of `errors:`. All conditions given must hold: exception, status, message."""

    error_type: str
    category: Category | None = None
    exception: str | None = None
    status: int | None = None
    message: str | None = None
    user_message: str | None = None
    guidance: str | None = None

    def __post_init__(self) -> None:
        for name in ("error_type", "exception", "message", "user_message", "guidance"):
            text = getattr(self, name)
            if (text is not None or name == "error_type") and not (isinstance(text, str) and text.strip()):
                raise DefinitionInvalid(f"{name} of an errors rule cannot be {text!r}: allowed is a text")
        if self.category is not None:
            try:
                object.__setattr__(self, "category", Category(self.category))
            except ValueError:
                raise DefinitionInvalid(
                    f"category of an errors rule cannot be {self.category!r}: "
                    f"allowed are {', '.join(Category)}"
                ) from None
        if self.status is not None and not is_status(self.status):
            raise DefinitionInvalid(
                f"status of an errors rule cannot be {self.status!r}: allowed is a number from 100 to 599"
            )
        if self.exception is None and self.status is None and self.message is None:
            raise DefinitionInvalid(
                f"the errors rule for {self.error_type!r} has no condition, so it would match every error",
                guidance="Give it at least one of: exception, status, message.",
            )

    @classmethod
    def from_dict(cls, data: object) -> Self:
        allowed = [field.name for field in fields(cls)]
        if not isinstance(data, Mapping):
            raise DefinitionInvalid(
                f"an errors rule cannot be {data!r}: allowed is a mapping with {', '.join(allowed)}"
            )
        unknown = [repr(key) for key in data if key not in allowed]
        if unknown:
            raise DefinitionInvalid(
                f"an errors rule has no field {', '.join(unknown)}; allowed are {', '.join(allowed)}"
            )
        return cls(**{"error_type": None, **data})

    def to_dict(self) -> dict[str, object]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: str(value) if isinstance(value, Category) else value
            for name, value in values.items()
            if value is not None
        }

    def matches(self, *, names: Collection[str], status: int | None, message: str) -> bool:
        """`names` are all that the exception goes by: each class of it, short and qualified."""
        if self.exception is not None and self.exception not in names:
            return False
        if self.status is not None and self.status != status:
            return False
        return self.message is None or _whole_words(self.message).search(message) is not None

    def describe(self) -> str:
        conditions = []
        if self.exception is not None:
            conditions.append(f"exception {self.exception}")
        if self.status is not None:
            conditions.append(f"status {self.status}")
        if self.message is not None:
            conditions.append(f"message {self.message!r}")
        return ", ".join(conditions)


@lru_cache(maxsize=512)
def _whole_words(words: str) -> re.Pattern[str]:
    spaced = r"\s+".join(re.escape(word) for word in words.split())
    return re.compile(rf"(?<!\w){spaced}(?!\w)", re.IGNORECASE)
