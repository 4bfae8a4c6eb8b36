"""What is logged while an attempt runs has its ids, whoever logs it and wherever the handler runs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from holdfast import Context, Holdfast, PermanentError, Retry, TransientError
from holdfast.logs import CURRENT, JsonFormatter
from running import eventually, run

ENDS_SOON = 60.0
shop = logging.getLogger("attempt_logs.shop")

PLAYBOOK = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: pay, path: shop/pay}
workflow:
  - step: pay
    type: python
    call: shop:pays
    with: {amount: 7}
"""


class Heard:
    """The lines of some loggers as JSON, while the block lasts."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self.handler = logging.StreamHandler(self._text)
        self.handler.setFormatter(JsonFormatter())

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._text.getvalue().splitlines()]

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if message in line["message"]]


@contextmanager
def hearing(*names: str) -> Iterator[Heard]:
    heard = Heard()
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).addHandler(heard.handler)
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield heard
    finally:
        for name, level in before.items():
            logging.getLogger(name).removeHandler(heard.handler)
            logging.getLogger(name).setLevel(level)


def ids_of(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("execution_id", "path", "step", "attempt", "worker_id"))


def test_lines_of_handlers_have_the_ids_of_their_attempt(store_url: str) -> None:
    hf = Holdfast(store_url)

    @hf.step
    async def at_once(ctx: Context) -> None:
        shop.info("at once %s", ctx.workload)

    @hf.step
    async def waits(ctx: Context) -> None:
        shop.info("before the wait %s", ctx.workload)
        await asyncio.sleep(0)
        shop.info("after the wait %s", ctx.workload)
        await asyncio.to_thread(shop.info, "in a thread of its own %s", ctx.workload)

    @hf.step(retry=Retry(delays=[0.01]))
    def in_a_thread(ctx: Context) -> None:
        shop.info("plain %s attempt %s", ctx.workload, ctx.attempt)
        if ctx.attempt == 1:
            raise TransientError("the portal is closed")

    hf.pipeline("p", [at_once, waits, in_a_thread])

    async def scenario(heard: Heard) -> None:
        async with hf, hf.working(worker_id="w1", concurrency=4):
            executions = [await hf.submit("p", f"<{number}>") for number in range(6)]
            for execution in executions:
                await execution.wait(ENDS_SOON)
            shop.info("outside")
        for number, execution in enumerate(executions):
            mine = heard.said(f"<{number}>")
            assert {ids_of(line)[:2] for line in mine} == {(execution.id, "p")}
            steps = [(line["message"].split(" <")[0], line["step"], line["attempt"]) for line in mine]
            assert steps == [
                ("at once", "at_once", 1),
                ("before the wait", "waits", 1),
                ("after the wait", "waits", 1),
                ("in a thread of its own", "waits", 1),
                ("plain", "in_a_thread", 1),
                ("plain", "in_a_thread", 2),
            ]
            assert {line["worker_id"] for line in mine} == {"w1"}
        [outside] = heard.said("outside")
        assert ids_of(outside) == (None,) * 5
        failures = heard.said("the portal is closed")
        assert sorted(ids_of(line)[:4] for line in failures) == [
            (execution.id, "p", "in_a_thread", 1) for execution in executions
        ]
        assert all(line["queue_id"] for line in failures)

    with hearing("attempt_logs.shop", "holdfast.engine") as heard:
        run(scenario(heard))
    assert CURRENT.get() is None


def test_an_attempt_that_fails_or_is_cut_off_leaves_no_ids_to_the_next(
    sqlite_url: str, quick_heartbeats: None
) -> None:
    hf = Holdfast(sqlite_url)
    entered: list[int] = []

    @hf.step(retry=False)
    async def fails(ctx: Context) -> None:
        raise PermanentError("no such page")

    @hf.step(retry=False)
    async def hangs(ctx: Context) -> None:
        entered.append(ctx.execution_id)
        await asyncio.Event().wait()

    @hf.step(retry=False)
    async def cancels_itself(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @hf.step
    async def looks(ctx: Context) -> int:
        current = CURRENT.get()
        return 0 if current is None else current.job.execution_id

    for step in (fails, hangs, cancels_itself, looks):
        hf.pipeline(step.name, [step])

    async def scenario(heard: Heard) -> None:
        async with hf, hf.working(concurrency=1):
            for _ in range(2):
                await (await hf.submit("fails")).wait(ENDS_SOON)
                await (await hf.submit("cancels_itself")).wait(ENDS_SOON)
                hanging = await hf.submit("hangs")
                await eventually(partial(entered.count, hanging.id))
                await hf.cancel(hanging.id)
                looked = await hf.submit("looks")
                view = await looked.wait(ENDS_SOON)
                assert view.outputs == {"looks": looked.id}
        abandoned = heard.said("is no longer leased to this worker")
        assert [(line["execution_id"], line["step"]) for line in abandoned] == [
            (execution_id, "hangs") for execution_id in entered
        ]

    with hearing("holdfast.worker") as heard:
        run(scenario(heard))


def test_a_line_of_a_step_of_a_playbook_has_them_too(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    def pays(amount: int) -> int:
        shop.info("paid %d", amount)
        return amount

    hf.add_functions({"shop:pays": pays})

    async def scenario(heard: Heard) -> None:
        async with hf, hf.working():
            await hf.add_playbook(PLAYBOOK)
            execution = await hf.submit("shop/pay")
            view = await execution.wait(ENDS_SOON)
            assert view.summary == "Complete", view
        [line] = heard.said("paid 7")
        assert ids_of(line)[:4] == (execution.id, "shop/pay", "pay", 1)

    with hearing("attempt_logs.shop") as heard:
        run(scenario(heard))
