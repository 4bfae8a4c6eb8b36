"""The playbook `documents`, written from its settings. Its steps are named as its stages are shown."""

from __future__ import annotations

from enum import StrEnum

from holdfast.pipelines.amounts import as_written
from holdfast.pipelines.documents.settings import DocumentSettings

PATH = "documents"


class Stage(StrEnum):
    PARSING = "parsing"
    EMBEDDING = "embedding"
    ANALYZING = "analyzing"


# Unknown errors are retried once. The steps' own timeouts end an attempt that nothing else has ended.
_TEXT = """\
apiVersion: holdfast/v1
kind: Playbook
metadata:
  name: documents
  path: documents
  description: Documents, parsed, embedded and analyzed
  about: documents
defaults:
  retry: {{delays: [{delays}], unknown_attempts: 2}}
workflow:
  - step: parsing
    type: python
    call: holdfast.pipelines.documents:parse
    operation: parse
    timeout: 6h
    next: embedding
  - step: embedding
    type: python
    call: holdfast.pipelines.documents:embed
    operation: embed
    timeout: 6h
    next: analyzing
  - step: analyzing
    type: python
    call: holdfast.pipelines.documents:analyze
    operation: analyze
    timeout: 6h
"""


def playbook_text(settings: DocumentSettings) -> str:
    return _TEXT.format(delays=", ".join(map(as_written, settings.retry_delays)))
