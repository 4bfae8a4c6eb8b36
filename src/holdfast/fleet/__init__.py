"""Attempts that run on a Celery fleet: the store keeps the truth, the broker only carries hints.

    Dispatcher ──leases──▶ message: queue_id + fence ──broker──▶ a Celery task: Runner
        │ heartbeats what nobody has taken yet                      │ takes the lease over: a new fence
        └ its heartbeat is refused: taken, and no longer its own ◀──┘ runs, heartbeats, reports: a Worker

A message that is lost is sent again, one that comes twice finds a stale fence: neither costs an attempt.
"""
