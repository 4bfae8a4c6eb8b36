"""What tests of limits and pauses share: jobs under a limit, and rows that set one or pause something."""

from typing import Any

from holdfast.core.model import ClaimGroup, Lane
from holdfast.store.interface import Claimed
from holdfast.store.new_executions import NewExecution
from store_scenario import new, raw

BULK, MANUAL = Lane.BULK, Lane.MANUAL


def under(
    limit: str = "portal", lane: str = "bulk", *, handler: str = "send", rank: int = 5, **more: Any
) -> ClaimGroup:
    """A claim group of the step mail/first."""
    return ClaimGroup(handler, lane, rank, limit=limit, **{"path": "mail", "step": "first", **more})


def jobs(count: int, group: ClaimGroup, **changes: Any) -> list[NewExecution]:
    return [new(lane=Lane(group.lane), group=group, **changes) for _ in range(count)]


async def set_limit(url: str, size: int, name: str = "portal", *, reserve: int | None = None) -> None:
    kept = "NULL" if reserve is None else reserve
    await raw(
        url,
        f"INSERT INTO limits VALUES ('{name}', {size}, {kept}, 'ann', 0)"
        " ON CONFLICT (name) DO UPDATE SET max_concurrency = excluded.max_concurrency,"
        " manual_reserve = excluded.manual_reserve",
    )


async def pause(url: str, kind: str, name: str) -> None:
    await raw(url, f"INSERT INTO pauses VALUES ('{kind}', '{name}', 'ann', 'why', 0)")


def steps(claimed: list[Claimed]) -> list[str]:
    return [row.step for row in claimed]
