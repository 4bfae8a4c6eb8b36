"""A test mode for your pipelines: the real engine runs them, the time and the failures are yours.

    with Rehearsal(hf) as rehearsal:
        rehearsal.fail("charge", TimeoutError("gateway"), times=2)
        run = rehearsal.run("order", {"id": 7})
        assert run.delays == {"charge": [1.0, 2.0]}

Nothing is imitated: submitting, leasing, classification, retry policies, sweeps, manual retries and the
history are what a worker uses, on a database that is thrown away. What is replaced is the clock, which
jumps to the next thing to do, and the worker, which runs one attempt after the other where the test is.
"""

from holdfast.testing.clock import FakeClock
from holdfast.testing.rehearsal import AsyncRehearsal, Rehearsal
from holdfast.testing.run import RehearsalFailed, Run

__all__ = ["AsyncRehearsal", "FakeClock", "Rehearsal", "RehearsalFailed", "Run"]
