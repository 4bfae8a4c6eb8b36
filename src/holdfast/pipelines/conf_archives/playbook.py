"""The playbook `conf_archives`, written from its settings."""

from __future__ import annotations

from holdfast.pipelines.amounts import as_written
from holdfast.pipelines.conf_archives.settings import ConfSettings

PATH = "conf_archives"

_TEXT = """\
apiVersion: holdfast/v1
kind: Playbook
metadata:
  name: conf_archives
  path: conf_archives
  description: Configuration archives, stored, read and searchable
workflow:
  - step: store
    type: python
    call: holdfast.pipelines.conf_archives:store
    operation: store
    timeout: 1h
    retry: {{delays: [{delays}]}}
    next: parse
  - step: parse
    type: python
    call: holdfast.pipelines.conf_archives:parse
    operation: parse
    timeout: 6h
    retry: {{delays: [{delays}]}}
errors:
  - exception: TimeoutError
    error_type: timeout
    user_message: It took too long
    guidance: The archive is large, or the machine busy. Retry it when there is less load.
  - exception: MemoryError
    error_type: memory_limit
    user_message: There was not enough memory
    guidance: Give the worker more memory, then retry it.
"""


def playbook_text(settings: ConfSettings) -> str:
    return _TEXT.format(delays=", ".join(map(as_written, settings.retry_delays)))
