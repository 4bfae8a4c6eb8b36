"""What a handler is given: its input, where it stands, and a way to tell how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from holdfast.core.model import Lane, Leased
from holdfast.core.payload import decode_payload
from holdfast.worker.secrets import AttemptSecrets
from holdfast.worker.transaction import AttemptTransaction, Transaction, Transactions, unavailable


class Outputs(Mapping[str, Any]):
    """The results of the stages before this one, by name; each is decoded when it is first read."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, step: str) -> Any:
        if step not in self._decoded:
            if step not in self._texts:
                known = ", ".join(self._texts) or "none"
                raise KeyError(f"there is no output of {step!r}; stages completed before this one: {known}")
            self._decoded[step] = decode_payload(self._texts[step])
        return self._decoded[step]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class Context:
    """One attempt, seen from inside its handler."""

    traceparent: str = ""
    """The span of this attempt, as the W3C writes it; "" where nobody traces."""

    def __init__(
        self,
        job: Leased,
        tell_progress: Callable[[float], None],
        transactions: Transactions | None = None,
        worker_id: str = "",
    ) -> None:
        self._job = job
        self._worker_id = worker_id
        self._tell_progress = tell_progress
        self._transactions = transactions
        self.attempt_transaction: AttemptTransaction | None = None
        self.secrets: AttemptSecrets | None = None
        self.stopping = False
        """Set when the worker was asked to stop: what is not finished within its grace period is cut off."""
        self.lease_lost = False
        """Set when the attempt was cancelled or given to another worker: what it does is in vain."""

    @property
    def job(self) -> Leased:
        return self._job

    @property
    def worker_id(self) -> str:
        return self._worker_id

    @cached_property
    def workload(self) -> Any:
        return decode_payload(self._job.workload)

    @cached_property
    def outputs(self) -> Outputs:
        return Outputs(self._job.outputs)

    @property
    def execution_id(self) -> int:
        return self._job.execution_id

    @property
    def pipeline(self) -> str:
        return self._job.path

    @property
    def step(self) -> str:
        return self._job.step

    @property
    def attempt(self) -> int:
        """1 for the first run of this round."""
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        return self._job.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        return self._job.attempt >= self._job.max_attempts

    @property
    def round(self) -> int:
        """1, and one more for each retry by hand."""
        return self._job.round

    @property
    def lane(self) -> Lane:
        return self._job.lane

    def progress(self, fraction: float) -> None:
        """Tell how far the work is, from 0 to 1; shown with the job. Costs nothing to call often."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress is a fraction from 0 to 1, not {fraction!r}")
        self._tell_progress(float(fraction))

    @property
    def database(self) -> str:
        """The address of Holdfast's database, for a handler that writes more into tables of its own than a
        transaction can hold; as `transaction`, it is there where the worker is connected to it."""
        if self._transactions is None or self._transactions.database is None:
            raise unavailable(self.step)
        return self._transactions.database

    def transaction(self) -> Transaction:
        """A block of SQL in Holdfast's database that commits together with the completion of this step, or
        not at all. Open it late and keep it short: it ends with the handler, at the latest after 5 s on
        SQLite and 30 s on PostgreSQL."""
        if self._transactions is None:
            raise unavailable(self.step)
        if self.attempt_transaction is None:
            self.attempt_transaction = self._transactions.for_attempt()
        return Transaction(self.attempt_transaction)
