"""Holdfast: a durable engine for multi-stage jobs whose first subject is failure."""

from holdfast.app import Execution, Holdfast
from holdfast.batch import Batch
from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import (
    BatchClosed,
    HoldfastError,
    IdempotencyConflict,
    InvalidInput,
    PermanentError,
    RetryRefused,
    StoreError,
    StoreUnavailable,
    TransactionLost,
    TransactionUnavailable,
    TransientError,
    UnknownName,
)
from holdfast.core.model import DeadReason, Event, ExecutionStatus, JobStatus, Lane
from holdfast.core.retry import RetryPolicy as Retry
from holdfast.worker.context import Context

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchClosed",
    "Context",
    "DeadReason",
    "ErrorRule",
    "Event",
    "Execution",
    "ExecutionStatus",
    "Holdfast",
    "HoldfastError",
    "IdempotencyConflict",
    "InvalidInput",
    "JobStatus",
    "Lane",
    "PermanentError",
    "Retry",
    "RetryRefused",
    "StoreError",
    "StoreUnavailable",
    "TransactionLost",
    "TransactionUnavailable",
    "TransientError",
    "UnknownName",
    "__version__",
]
