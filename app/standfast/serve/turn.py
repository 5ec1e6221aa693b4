"""One turn: from a claim to its ending, every step of it durable under the fence."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from standfast import orders
from standfast.agent import Limits, LoopResult, Model, OfflinePlanner, Status, run_loop
from standfast.agent.messages import Message, encoded
from standfast.agent.usage import FREE, Account
from standfast.authority import Claim, StaleClaim, renew
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.operations import canary
from standfast.serve.journal import facts
from standfast.serve.settings import Settings
from standfast.shop import prompts, skills
from standfast.shop.plan import plan
from standfast.shop.tools import ShopTools, conversation
from standfast.store import Store
from standfast.work import RESEARCH, Ending, delegated, finish, observe
from standfast.work.reports import BODY_BYTES

log = logging.getLogger(__name__)

_CUT = "\n\n[cut: the report was longer than a report can be]"


@dataclass(frozen=True, slots=True)
class Worker:
    """Does turns for the service, one at a time."""

    connection: Store
    layout: Layout
    clock: Clock
    settings: Settings
    model: Model
    run: str
    """The id of this start of the service."""
    on_step: Callable[[], None]
    """Runs after each model call and tool step."""
    stop: Callable[[], bool]
    wait: Callable[[float], None] = time.sleep
    """Sleeps so many seconds, or less when a stop is asked for."""

    def turn(self, claim: Claim) -> Status:
        """Do the claimed work, or go on with it where its records end.

        STOP_REQUESTED and AUTHORITY_LOST leave the row as it is. Raises StoreBusy when the store stayed
        locked: what was recorded stays, and the same claim can be taken up again.
        """
        began = self.clock.now()
        log.info(
            "work begun: %s",
            facts(work=claim.work, generation=claim.generation, session=claim.session, subject=claim.subject),
        )
        tools = ShopTools(
            self.connection,
            claim,
            self.settings.shop,
            self.clock,
            self.layout.marker,
            purchasing=self._may_purchase(claim),
        )
        lease = _Lease(self, claim)
        result = run_loop(
            self._model_for(claim),
            tools.dispatcher(),
            self._opening(claim),
            records=conversation(self.connection, claim.work),
            limits=self._limits(claim),
            meter=self._meter(claim),
            observe=lambda message: self._observe(claim, message),
            on_step=lease.step,
            stop=self.stop,
            wait=self.wait,
        )
        for told in result.decisions:
            log.log(
                logging.INFO if told.allowed else logging.WARNING,
                "gate allowed: %s" if told.allowed else "gate refused: %s",
                facts(work=claim.work, call=told.call, tool=told.tool, reason=told.sentence or None),
            )
        status = self._end(claim, result)
        log.info(
            "work ended: %s",
            facts(
                work=claim.work,
                generation=claim.generation,
                status=status,
                reason=result.reason or None,
                source=result.source,
                model_calls=result.model_calls,
                tool_calls=result.tool_calls,
                input_tokens=result.usage.input_tokens or None,
                output_tokens=result.usage.output_tokens or None,
                seconds=self.clock.now() - began,
            ),
        )
        return status

    def close_interrupted(self, claim: Claim) -> None:
        """End a turn that an earlier process left in the middle: its report asks Lucy to ask again.

        CANCELED, because nothing was done: DONE is what a canary, health and people count as finished work.
        """
        report = prompts.interrupted(claim.prompt)
        try:
            self._finish(claim, "CANCELED", report=report, reason="interrupted by a stop of the service")
        except StaleClaim as stale:
            log.warning("ending refused: %s", facts(work=claim.work, reason=str(stale)))
            return
        log.info("work closed after a stop: %s", facts(work=claim.work, generation=claim.generation))

    def _asks_live(self, claim: Claim) -> bool:
        """Whether a live model answers: never a canary, which shows that the service works.

        It must cost nothing, and not fail because an endpoint does. Its record says who answered.
        """
        return self.settings.live is not None and not canary.is_canary(claim.session)

    def _model_for(self, claim: Claim) -> Model:
        if self.settings.live is None or self._asks_live(claim):
            return self.model
        return OfflinePlanner(plan)

    def _meter(self, claim: Claim) -> Account | None:
        """The account of a live model's calls; the other models cost nothing."""
        if not self._asks_live(claim):
            return None
        table = self.settings.shop.model
        return Account(
            connection=self.connection,
            claim=claim,
            source=self.model.source,
            prices=table.prices or FREE,
            ceilings=table.ceilings,
            clock=self.clock,
            marker=self.layout.marker,
        )

    def _limits(self, claim: Claim) -> Limits:
        """The shop's limits; for delegated work also its own, and the time until its deadline."""
        limits = self.settings.shop.limits.for_loop()
        child = delegated(self.connection, claim.work)
        if child is None:
            return limits
        return replace(
            limits,
            model_calls=min(limits.model_calls, child.limits.model_calls),
            tool_calls=min(limits.tool_calls, child.limits.tool_calls),
            seconds=max(0.0, min(limits.seconds, child.limits.seconds, child.deadline - self.clock.now())),
        )

    def _may_purchase(self, claim: Claim) -> bool:
        configured = self.settings.supplier is not None and self.settings.shop.spending is not None
        # A canary shows that work gets finished; one that asked for money would wait for an operator.
        return configured and claim.role != RESEARCH and not canary.is_canary(claim.session)

    def _opening(self, claim: Claim) -> list[Message]:
        skill = skills.current(self.connection)
        text = skill.text if skill else prompts.DEFAULT_SKILL
        return prompts.opening_messages(
            self.settings.shop,
            skill=prompts.CANARY_SKILL if canary.is_canary(claim.session) else text,
            prompt=claim.prompt,
            subject=claim.subject or None,
        )

    def _observe(self, claim: Claim, message: Message) -> None:
        observe(self.connection, claim, encoded(message), clock=self.clock, marker=self.layout.marker)

    def _end(self, claim: Claim, result: LoopResult) -> Status:
        if result.status in {Status.STOP_REQUESTED, Status.AUTHORITY_LOST}:
            return result.status
        try:
            if result.status == Status.COMPLETED:
                self._finish(claim, "DONE", report=fitted(result.text))
            else:
                report = prompts.failed(claim.prompt, result.reason)
                self._finish(claim, "BLOCKED", report=report, reason=f"{result.status}: {result.reason}")
        except StaleClaim as stale:
            log.warning("ending refused: %s", facts(work=claim.work, reason=str(stale)))
            return Status.AUTHORITY_LOST
        return result.status

    def _finish(self, claim: Claim, status: Ending, *, report: str, reason: str = "") -> None:
        if orders.has_open_orders(self.connection, claim.work):
            orders.wait(
                self.connection,
                claim,
                clock=self.clock,
                marker=self.layout.marker,
                report=report,
                run=self.run,
                reason=reason or prompts.WAITS_FOR_ORDERS,
            )
            return
        finish(
            self.connection,
            claim,
            status,
            clock=self.clock,
            marker=self.layout.marker,
            report=report,
            run=self.run,
            reason=reason,
        )


class _Lease:
    """Renews a claim's lease at each step, once a third of it has gone."""

    def __init__(self, worker: Worker, claim: Claim) -> None:
        self._worker = worker
        self._claim = claim
        self._renewed = worker.clock.now()

    def step(self) -> None:
        worker = self._worker
        worker.on_step()
        now = worker.clock.now()
        if now - self._renewed > worker.settings.lease / 3:
            renew(
                worker.connection,
                self._claim,
                clock=worker.clock,
                marker=worker.layout.marker,
                lease=worker.settings.lease,
            )
            self._renewed = now


def fitted(text: str) -> str:
    """The text, cut to what a report can hold."""
    encoded = text.encode("utf-8")
    if len(encoded) <= BODY_BYTES:
        return text
    return encoded[: BODY_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT
