"""A playbook from its YAML text: read, checked, compiled; or refused with all that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.playbook.compile import compile_playbook
from holdfast.playbook.definition import Definition
from holdfast.playbook.document import read
from holdfast.playbook.faults import PlaybookInvalid, Unreadable, value_shown
from holdfast.playbook.shape import Report, check_head, check_steps


@dataclass(frozen=True, slots=True)
class Playbook:
    """What a file says: the definition that the engine runs, and the text that it was made from."""

    definition: Definition
    source: str
    description: str = ""

    @property
    def path(self) -> str:
        return self.definition.path


def load_playbook(source: bytes | str, *, name: str = "playbook") -> Playbook:
    """The playbook that a file holds, or PlaybookInvalid with its faults, which show `name`, the file's."""
    try:
        document = read(source)
    except Unreadable as unreadable:
        raise PlaybookInvalid(name, unreadable.faults) from None
    report = Report(document)
    definition, description = _compiled(report)
    if definition is None or report.faults.found:
        raise PlaybookInvalid(name, report.faults.found, more=report.faults.more)
    return Playbook(definition, document.text, description)


def _compiled(report: Report) -> tuple[Definition | None, str]:
    if not isinstance(report.document.value, dict):
        message = f"A playbook cannot be {value_shown(report.document.value)}."
        report.add((), message, "a mapping with apiVersion, metadata and workflow.")
        return None, ""
    head = check_head(report)
    steps = check_steps(report)
    definition = compile_playbook(report, head, steps)
    told = head and ((head.metadata and head.metadata.description) or head.description)
    return definition, told or ""
