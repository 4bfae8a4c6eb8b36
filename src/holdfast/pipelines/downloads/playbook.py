"""The playbook `downloads`, written from its settings.

It is an ordinary one: `holdfast catalog show downloads` prints it, and whoever needs another delay, another
limit or more steps copies it under a path of their own.
"""

from __future__ import annotations

from holdfast.pipelines.amounts import as_written
from holdfast.pipelines.downloads.settings import Credential, DownloadSettings

PATH = "downloads"

_TEXT = """\
apiVersion: holdfast/v1
kind: Playbook
metadata:
  name: downloads
  path: downloads
  description: Reports that are requested from a portal first and downloaded later
workflow:
  - step: request
    type: python
    call: holdfast.pipelines.downloads:request
{request_with}    operation: request
    limit: portal
    timeout: 5m
    retry: {retry}
    errors:
      - status: 404
        error_type: not_found
        user_message: The portal does not have what was asked for
        guidance: Check the request of the item, then submit it anew.
      - status: 410
        error_type: not_found
        user_message: The portal does not have what was asked for
        guidance: Check the request of the item, then submit it anew.
    next: download
  - step: download
    type: python
    call: holdfast.pipelines.downloads:download
    with:
      requested: "{{{{ request }}}}"
{auth}    operation: download
    limit: portal
    timeout: 6h
    barrier: {{after: request, delay: {delay}}}
    retry: {wave}
    errors:
      # The portal is not done with the report: the one 404 that heals.
      - status: 404
        error_type: not_ready
        category: transient
        user_message: The report is not ready yet
        guidance: Will retry automatically. It usually takes a little while.
      - status: 410
        error_type: not_found
        user_message: The portal does not have this report any more
        guidance: Retry it from the stage request, with force, and it is requested anew.
      - exception: TimeoutError
        error_type: timeout
        user_message: It took too long
        guidance: {kept}
errors:
  - exception: AnswerIncomplete
    error_type: answer_incomplete
  - status: 401
    error_type: auth_error
    user_message: The portal does not let us in
    guidance: {credentials}
  - status: 403
    error_type: auth_error
    user_message: The portal does not give us this report
    guidance: {credentials}
  - status: 408
    error_type: timeout
    user_message: The portal did not answer in time
    guidance: {slow}
  - status: 504
    error_type: timeout
    user_message: The portal did not answer in time
    guidance: {slow}
  - exception: TimeoutException
    error_type: timeout
    user_message: The portal did not answer in time
    guidance: {slow}
  - exception: TimeoutError
    error_type: timeout
    user_message: It took too long
    guidance: {slow}
  - exception: TooManyRedirects
    error_type: validation_error
    user_message: The portal leads from one address to the next, and to no answer
    guidance: Check the address that is asked for, then ask the portal's owner.
  - status: 429
    error_type: rate_limit
    user_message: The portal is asked too often
    guidance: {often}
  - exception: ResponseInvalid
    error_type: answer_invalid
    category: unknown
    user_message: The portal answered with something that cannot be used
    guidance: Ask the portal's owner.
"""
_KEPT = "The portal is slow, or the file is large. What was fetched is kept, and is not fetched again."
_SLOW = "The portal is slow, or too busy. If it stays so, ask the portal's owner."
_OFTEN = "`holdfast limits set portal N` bounds how many requests it sees at once."
_CREDENTIALS = "Check HOLDFAST_DOWNLOAD_AUTH and the secret that it names, then retry it with force."


def playbook_text(settings: DownloadSettings) -> str:
    attempts = settings.retries + 1
    delays = ", ".join(map(as_written, settings.retry_delays))
    auth = _auth(settings.credentials)
    policy = f"max_attempts: {attempts}, delays: [{delays}]"
    return _TEXT.format(
        request_with=f"    with:\n{auth}" if auth else "",
        auth=auth,
        retry=f"{{{policy}}}",
        wave=f"{{{policy}, wave: true}}",
        delay=as_written(settings.delay_seconds),
        credentials=_CREDENTIALS,
        often=f'"{_OFTEN}"',
        slow=_SLOW,
        kept=_KEPT,
    )


def _auth(credentials: tuple[Credential, ...]) -> str:
    """What the functions are given; the values are put in by the worker, and masked in all that leaves it."""
    if not credentials:
        return ""
    lines = ["      auth:"]
    for one in credentials:
        value = f"{{{{ secret('{one.secret}') }}}}"
        lines.append(f'        "{one.origin} {one.header}": "{"Bearer " if one.is_bearer else ""}{value}"')
    return "\n".join(lines) + "\n"
