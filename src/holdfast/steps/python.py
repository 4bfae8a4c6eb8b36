"""The step type `python`: a registered function (`call`), or inline `code`.

    call: module:function    in the worker, or in one of its threads: it is the worker owner's own code
    code: def main(…): …     in a process of its own, under a supervisor, on workers with leave for code only

Each run of inline code has a fresh process. One that is used again would keep what the code before has
changed, imported or left running; the start costs some tens of milliseconds.

What the code prints is logged by the worker, and stands before the trace where it fails. What it returns is
JSON; what it raises is told with the author's own lines.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
from holdfast.core.failures import Failure
from holdfast.core.model import Failed
from holdfast.core.payload import check_payload, decode_payload, encode_payload, unstorable_output
from holdfast.core.sizes import shown_bytes
from holdfast.steps.code_child import FAILURE
from holdfast.steps.failing import FailedElsewhere
from holdfast.steps.interface import StepCall
from holdfast.steps.supervised import (
    LENGTH_BYTES,
    Ended,
    Program,
    run_supervised,
    signal_name,
    supervisor_lost,
)

log = logging.getLogger("holdfast.steps")

PRINTED_BYTES_MAX = 64 * 1024
PRINTED_CHARS_SHOWN = 2_000
# An answer is a result within the bound of outputs, or a failure, whose texts are bounded as well.
ANSWER_BYTES_MORE = 256 * 1024

_FAILURE = msgspec.json.Decoder(Failure)


async def run(call: StepCall) -> Any:
    memory_bytes, bytes_max = call.settings.code_memory_bytes, call.settings.payload_bytes_max
    ended = await run_supervised(
        Program(
            step=call.step,
            code={
                "source": _source(call),
                "step": call.step,
                "input": encode_payload(call.input, what="input", bytes_max=1 << 30),
                "output_bytes_max": bytes_max,
                "memory_shown": shown_bytes(memory_bytes),
            },
            memory_bytes=memory_bytes,
            output_bytes_max=PRINTED_BYTES_MAX,
            answer_bytes_max=bytes_max + ANSWER_BYTES_MORE,
            ends_at=call.ends_at,
        )
    )
    printed = _printed(ended)
    if printed:
        log.info("The code of step %s of execution %d printed:\n%s", call.step, call.execution_id, printed)
    tag, body = _answer(ended)
    if not tag:
        raise _died(call, ended, printed)
    if tag == FAILURE:
        failure = _FAILURE.decode(body)
        raise FailedElsewhere(Failed(_with_printed(failure, printed)))
    text = body.decode(errors="replace")
    try:
        check_payload(text, what="output", bytes_max=bytes_max)
    except (PayloadInvalid, PayloadTooLarge) as error:
        raise FailedElsewhere(Failed(unstorable_output(error.with_traceback(None)))) from None
    return decode_payload(text)


def _source(call: StepCall) -> str:
    source = call.config.get("code")
    if not isinstance(source, str):
        raise FailedElsewhere.of(
            f"The code of step {call.step} is no text.", exception="TypeError", error_type="validation_error"
        )
    return source


def _answer(ended: Ended) -> tuple[bytes, bytes]:
    """Empty where there is none, or not all of it: the process was ended while it wrote."""
    told = ended.answer.kept
    length = int.from_bytes(told[:LENGTH_BYTES], "big")
    message = told[LENGTH_BYTES : LENGTH_BYTES + length]
    if not message or len(message) < length:
        return b"", b""
    return message[:1], message[1:]


def _printed(ended: Ended) -> str:
    """Where both streams were written to, the order between them is not known."""
    cut = "… (cut)\n" if ended.stdout.is_cut or ended.stderr.is_cut else ""
    return cut + "".join(stream.text for stream in (ended.stdout, ended.stderr) if stream.bytes_seen)


def _with_printed(failure: Failure, printed: str) -> Failure:
    if not printed.strip():
        return failure
    return msgspec.structs.replace(failure, stack_trace=f"{_shown(printed)}\n{failure.stack_trace}")


def _shown(printed: str) -> str:
    return f"Printed by the code:\n{printed.rstrip()[-PRINTED_CHARS_SHOWN:]}\n"


def _died(call: StepCall, ended: Ended, printed: str) -> FailedElsewhere:
    code = ended.exit_code
    if code is None:
        return supervisor_lost(call.step, ended)
    if code >= 0:
        message = f"The code of step {call.step} ended with exit code {code} before it had returned."
    else:
        message = f"The process of the code of step {call.step} was ended by {signal_name(-code)}."
        if code == -9:
            message += " The worker did not do that; the system does when memory runs out."
    return FailedElsewhere.of(
        message,
        exception="SystemExit" if code >= 0 else "ProcessCrashed",
        error_type="process_exited" if code >= 0 else "process_crashed",
        stack_trace=_shown(printed) if printed.strip() else "",
    )
