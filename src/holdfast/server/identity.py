"""Who sends a request, as far as the server knows."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.access import RIGHTS, Right, Role, roles_with
from holdfast.server.problems import Refused

BY_CHARS_MAX = 200


class Identity(NamedTuple):
    """`name` is that of its token, empty for whoever needs none here; `token_id` where the token is one of
    the database's, which may be revoked meanwhile."""

    name: str
    role: Role
    token_id: str | None = None

    def may(self, right: Right) -> bool:
        return right in RIGHTS[self.role]

    def admit(self, right: Right) -> None:
        """Refuse where it has not this right."""
        if not self.may(right):
            raise Refused(
                403,
                "forbidden",
                f"The token {self.name} has the role {self.role.value}, which may not do this.",
                f"It takes the role {' or '.join(role.value for role in roles_with(right))}:"
                " ask whoever manages the tokens.",
            )

    def acting_as(self, claimed: str) -> str:
        """What a request says of who sent it is believed where everybody may say anything; otherwise the
        token is named behind it."""
        if not self.name:
            return claimed
        own = f"token {self.name}"
        return own if not claimed else f"{claimed[: BY_CHARS_MAX - len(own) - 3]} ({own})"


# Whoever needs no token here, because the server listens on this machine only.
LOCAL = Identity("", Role.ADMIN)
NOBODY = Identity("", Role.VIEWER)
