"""What can happen in a step, with its weight.

An operation draws its arguments, calls the engine, and keeps or checks the answer; where the store did
not answer it ends with StoreUnavailable, and nobody knows what was written. Where nothing else ran
beside it, the answer is also compared with what the rows said before: the function it returns does that
once the rows were read again.
"""

from __future__ import annotations

from simulation.batching import (
    add_items,
    attend,
    cancel_batch,
    close_batch,
    look_at_batch,
    submit_batch,
)
from simulation.people import cancel, deploy, look, prune, redrive, retry, submit
from simulation.steering import pause, remove_limit, resume, set_limit
from simulation.workers import (
    crash_process,
    crash_worker,
    heartbeat,
    lease,
    lose_workers,
    pass_time,
    release,
    report,
    report_again,
    report_late,
    report_otherwise,
    sweep,
    take_over,
)
from simulation.world import Operation

OPERATIONS: dict[Operation, float] = {
    submit: 5,
    lease: 22,
    report: 22,
    report_again: 4,
    report_otherwise: 3,
    report_late: 5,
    heartbeat: 4,
    release: 3,
    crash_worker: 2,
    crash_process: 1,
    deploy: 1,
    sweep: 5,
    lose_workers: 4,
    cancel: 2,
    retry: 7,
    redrive: 2,
    submit_batch: 3,
    add_items: 2,
    close_batch: 2,
    cancel_batch: 0.5,
    attend: 8,
    look_at_batch: 1,
    set_limit: 1.5,
    remove_limit: 0.7,
    pause: 1,
    resume: 1,
    prune: 1,
    look: 2,
    pass_time: 12,
    take_over: 4,
}

# Where playbooks are looked at: less of what is about chains only, more of what moves many jobs at once, and
# nothing of what is about leases alone.
OF_FLOW: dict[Operation, float] = {
    submit: 0.4,
    lease: 1.5,
    report: 2.0,
    submit_batch: 0.5,
    add_items: 0.1,
    close_batch: 0.1,
    cancel_batch: 0.5,
    attend: 0.1,
    look_at_batch: 1.0,
    deploy: 0.1,
    take_over: 0,
}
