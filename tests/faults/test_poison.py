"""A job that kills its worker every time is stopped, and its neighbours come to no harm."""

from __future__ import annotations

from pathlib import Path

from faults.gate_worker import app
from faults.ledger import Start, read_all
from faults.processes import Fleet
from faults.tables import select
from running import eventually, run

SCRIPT = Path(__file__).with_name("gate_worker.py")
WORKERS = 2
INNOCENTS = 500
# Long enough that only a death loses a lease: each loss of the killer's is counted.
LEASE_SECONDS = 4.5
MAX_CRASHES = 3
TEST_SECONDS_MAX = 400
KILLED = -9


def test_a_killer_is_poisoned_after_three_losses_alone_and_500_innocents_complete(
    store_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with app(store_url, tmp_path) as hf:
            with Fleet(tmp_path, store_url) as fleet:
                await hf.submit_many("innocent", [None] * (INNOCENTS // 2))
                killer = await hf.submit("killer")
                await hf.submit_many("innocent", [None] * (INNOCENTS // 2))
                workers = [fleet.start(SCRIPT, str(LEASE_SECONDS)) for _ in range(WORKERS)]
                deaths = 0

                async def all_have_ended() -> bool:
                    nonlocal deaths
                    # Asked before the dead are counted: whoever has ended the last of them died before.
                    running = "SELECT count(*) FROM {schema}executions WHERE status = 'running'"
                    has_ended = (await select(store_url, running))[0][0] == 0
                    for place, worker in enumerate(workers):
                        if (code := worker.ended_with()) is not None:
                            assert code == KILLED, worker.told()
                            deaths += 1
                            workers[place] = fleet.start(SCRIPT, str(LEASE_SECONDS))
                    return has_ended

                await eventually(all_have_ended, TEST_SECONDS_MAX - 60, every=0.05)

            ends = "SELECT path, status, count(*) FROM {schema}executions GROUP BY 1, 2 ORDER BY 1, 2"
            assert [tuple(row) for row in await select(store_url, ends)] == [
                ("innocent", "completed", INNOCENTS),
                ("killer", "failed", 1),
            ]
            fate = f"""SELECT status, dead_reason, losses, crashes, attempts FROM {{schema}}jobs
                WHERE execution_id = {killer.id}"""
            # Lost once beside others, which condemns nobody, and then alone.
            beside_and_alone = 1 + MAX_CRASHES
            [job] = await select(store_url, fate)
            assert tuple(job) == ("dead", "poisoned", beside_and_alone, MAX_CRASHES, beside_and_alone)
            starts = [
                line for line in read_all(tmp_path) if isinstance(line, Start) and line.step == "killer"
            ]
            assert len(starts) == deaths == beside_and_alone

    run(scenario(), TEST_SECONDS_MAX)
