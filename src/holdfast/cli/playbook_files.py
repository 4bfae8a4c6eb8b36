"""Playbooks as files on the command line: read, compiled, refused with all that is wrong in all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.playbook.load import Playbook

STDIN = "-"
HASH_CHARS = 12


class Checked(NamedTuple):
    """A file with the playbook in it, or with what is wrong: lines that begin with its name."""

    file: str
    playbook: Playbook | None
    error: InvalidInput | None

    @property
    def faults(self) -> list[dict[str, Any]]:
        if self.error is None:
            return []
        found = getattr(self.error, "faults", None)
        if found is None:
            return [{"line": None, "field": "", "message": str(self.error), "allowed": self.error.guidance}]
        return [fault._asdict() for fault in found]


def load(file: str) -> Playbook:
    """The playbook of a file, or of stdin where it is `-`; raises what is wrong with it."""
    from holdfast.playbook.load import load_playbook

    return load_playbook(_read(file), name=shown_name(file))


def check(files: Sequence[str]) -> list[Checked]:
    checked = []
    for file in files:
        try:
            checked.append(Checked(file, load(file), None))
        except InvalidInput as error:
            checked.append(Checked(file, None, error))
    return checked


def shown_name(file: str) -> str:
    return "<stdin>" if file == STDIN else file


def _read(file: str) -> bytes:
    """Its bytes, but no more than a playbook may have and one: enough to refuse it."""
    from holdfast.playbook.document import BYTES_MAX

    if file == STDIN:
        return sys.stdin.buffer.read(BYTES_MAX + 1)
    try:
        with open(file, "rb") as opened:
            return opened.read(BYTES_MAX + 1)
    except FileNotFoundError:
        raise InvalidInput(
            f"{file}: There is no such file.", guidance="A relative name starts in this folder."
        ) from None
    except IsADirectoryError:
        raise InvalidInput(f"{file}: This is a folder.", guidance="Name the files in it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"{file}: It cannot be read: {reason}.", guidance="Check the name and the permissions."
        ) from None


def refuse(checked: Sequence[Checked]) -> list[Playbook]:
    """The playbooks of these files; or one error with what is wrong in all of them."""
    wrong = [item.error for item in checked if item.error is not None]
    if not wrong:
        return [item.playbook for item in checked if item.playbook is not None]
    if len(wrong) == 1:
        raise wrong[0]
    raise InvalidInput("\n".join(map(str, wrong)), guidance=wrong[0].guidance)
