"""The inside of the process that runs a step's inline code.

    compile ──▶ run the module's lines ──▶ main(...), or the variable `result` ──▶ a result or a failure

It is loaded without the rest of Holdfast, and what it needs only sometimes is loaded only then: code that
takes a millisecond should not wait for imports. What comes out is JSON text, or a failure as plain data; no
object crosses.
"""

from __future__ import annotations

import json
import linecache
import math
import os
import resource
import sys
import time
from types import ModuleType

from holdfast.steps.arguments import ArgumentsMissing, arguments_for

TYPE_CHECKING = False  # see the supervisor
if TYPE_CHECKING:
    from typing import Any

    from holdfast.core.failures import Failure

MODULE = "step_code"
LENGTH_BYTES = 8
RESULT, FAILURE = b"R", b"F"


def run(code: dict[str, Any], answer_fd: int) -> None:
    """`code` has the source, the step's name, its input, and the bounds of what it returns."""
    import faulthandler

    faulthandler.enable()
    _lend_names()
    pid = os.getpid()
    file = f"<code of step {code['step']}>"
    try:
        tag, body = RESULT, _encoded(_called(code, file), code["output_bytes_max"])
    except BaseException as error:
        _lift_limit()
        tag, body = FAILURE, _told(error, code, file)
    if os.getpid() != pid:
        os._exit(0)  # what the code has forked comes out here as well: it must not answer for this process
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - contextlib would have to be loaded
            stream.flush()
        except Exception:
            pass
    message = tag + body
    view = memoryview(len(message).to_bytes(LENGTH_BYTES, "big") + message)
    while view:
        view = view[os.write(answer_fd, view) :]


def _lend_names() -> None:
    """`from holdfast import TransientError` without loading all of Holdfast; any other name loads it."""
    package = sys.modules["holdfast"]

    def find(name: str) -> Any:
        from holdfast.core import errors

        if name in ("TransientError", "PermanentError", "HoldfastError", "InvalidInput"):
            return getattr(errors, name)
        if name.startswith("__"):
            raise AttributeError(name)
        from importlib.util import spec_from_file_location

        spec = spec_from_file_location("holdfast", os.path.join(package.__path__[0], "__init__.py"))
        assert spec is not None and spec.loader is not None
        del package.__dict__["__getattr__"]
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = find


def _called(code: dict[str, Any], file: str) -> Any:
    source = code["source"]
    # The lines, for traces: there is no such file.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    compiled = compile(source, file, "exec", dont_inherit=True)
    module = ModuleType(MODULE)
    module.__file__ = file
    sys.modules[MODULE] = module
    exec(compiled, module.__dict__)
    main = module.__dict__.get("main")
    if callable(main):
        positional, named = arguments_for(main, json.loads(code["input"]))
        result = main(*positional, **named)
        if hasattr(result, "__await__"):
            import asyncio

            return asyncio.run(_awaited(result))
        return result
    if "result" in module.__dict__:
        return module.__dict__["result"]
    raise NothingReturned


class NothingReturned(Exception):
    pass


async def _awaited(result: Any) -> Any:
    return await result


def _encoded(value: Any, bytes_max: int) -> bytes:
    if _is_plain(value):
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except (RecursionError, UnicodeError):
            pass  # told below in the words of all outputs
        else:
            if len(text) <= bytes_max:
                return text
    from holdfast.core.payload import encode_payload

    return encode_payload(value, what="output", bytes_max=bytes_max).encode()


def _is_plain(root: Any) -> bool:
    """Whether JSON says it as it is, so that nothing more needs to be loaded; the worker checks the text."""
    pending = [root]
    for value in pending:  # grows on the way
        kind = type(value)
        if kind is dict:
            if not all(type(key) is str for key in value):
                return False
            pending += value.values()
        elif kind is list or kind is tuple:
            pending += value
        elif kind is float:
            if not math.isfinite(value):
                return False
        elif kind not in (str, int, bool, type(None)):
            return False
        if len(pending) > 1_000_000:  # or it holds itself
            return False
    return True


# what went wrong


def _lift_limit() -> None:
    """Whatever is told of a lack of memory needs some."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _told(error: BaseException, code: dict[str, Any], file: str) -> bytes:
    import msgspec

    return msgspec.json.encode(_failure(error, code, file))


def _failure(error: BaseException, code: dict[str, Any], file: str) -> Failure:
    import msgspec

    from holdfast.core.errors import PayloadInvalid, PayloadTooLarge
    from holdfast.core.failures import Failure, failure_from_exception
    from holdfast.core.payload import unstorable_output

    step = code["step"]
    if isinstance(error, PayloadInvalid | PayloadTooLarge) and not _is_the_codes(error, file):
        return unstorable_output(error.with_traceback(None))
    if isinstance(error, NothingReturned):
        return Failure(
            message=f"The code of step {step} has neither a function main nor a variable result.",
            exception="NothingReturned",
            error_type="validation_error",
            user_message="The step's code returns nothing",
            guidance="Define main(input_data), or set result.",
        )
    if isinstance(error, ArgumentsMissing):
        return Failure(
            message=f"The code of step {step} cannot be called: {error}.",
            exception="ArgumentsMissing",
            error_type="validation_error",
            user_message="The step's input is not complete",
            guidance=error.guidance,
        )
    if isinstance(error, SyntaxError) and error.filename == file:
        line = "" if error.lineno is None else f", line {error.lineno}"
        shown = f": {error.text.strip()}" if error.text else ""
        return msgspec.structs.replace(
            failure_from_exception(error.with_traceback(None)),
            message=f"The code of step {step} is not valid Python{line}: {error.msg}{shown}",
            error_type="validation_error",
            user_message="The step's code is not valid Python",
            guidance="Correct the code in the playbook and register it again.",
        )
    failure = failure_from_exception(_from_the_code_on(error, file), now=time.time())
    if isinstance(error, MemoryError):
        limit = code["memory_shown"]
        message = f"The code of step {step} needed more memory than its limit of {limit}."
        return msgspec.structs.replace(failure, message=message, error_type="memory_limit")
    if isinstance(error, ImportError):
        # By its name it would be a document that was not found; but half a deployment looks like this.
        return msgspec.structs.replace(
            failure,
            error_type="unknown",
            user_message="The step's code could not be started",
            guidance="Install what the code imports on the machines of the workers.",
        )
    if isinstance(error, SystemExit):
        return msgspec.structs.replace(
            failure, message=f"The code of step {step} called exit({error.code!r})."
        )
    return failure


def _from_the_code_on(error: BaseException, file: str) -> BaseException:
    """Without the frames of ours that led to the code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def _is_the_codes(error: BaseException, file: str) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            return True
        trace = trace.tb_next
    return False
