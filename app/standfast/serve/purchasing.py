"""The service's share of orders: send what was approved, find out what is uncertain, wake what waited.

At the start, and before anything is sent or looked up, the supplier's receipts are compared with the local
records: one that was never known here means that this state is older than the world, and the era ends.

Nothing of this happens while paused. The journal gets amounts and outcomes, never the token.
"""

import logging

from standfast import orders
from standfast.agent import Status
from standfast.authority import Claim, StaleClaim, operations, renew, replace
from standfast.errors import Refused, StandfastError
from standfast.orders import Order, Supplier, SupplierUnavailable
from standfast.serve.journal import facts
from standfast.serve.turn import Worker
from standfast.shop import prompts

log = logging.getLogger(__name__)

LOOKS_PER_PASS = 3
"""Uncertain orders looked up in one pass; each can take the supplier's whole patience."""
FIRST_RETRY = 30.0
LONGEST_RETRY = 600.0
"""Seconds before an account that gave no usable answer is asked again: doubled up to the longest."""
_OF_THIS_SIDE = {"paused", "marker_disagrees"}
"""Refusals that say nothing of the account; health tells of them anyway."""


class Purchasing:
    """Orders, for one start of the service under the writer lock."""

    def __init__(self, worker: Worker, supplier: orders.SupplierAccount | None = None) -> None:
        self._worker = worker
        self._connection = worker.connection
        self._clock = worker.clock
        self._marker = worker.layout.marker
        self._account = supplier
        self._supplier: Supplier | None = None
        self._failures = 0
        self._wrong = False
        self._next_try = 0.0
        self._compared: int | None = None
        self._said_none = False

    def remembers(self) -> bool:
        """False when the supplier remembers more than this store does: authority was replaced over it.

        Asked once for each start, as soon as the supplier answers; the shop goes on while it does not.
        """
        if self._compared is None:
            self._look()
        return not operations(self._connection).paused

    def one_pass(self) -> bool:
        """Look after every order once, and wake the work that has something to do; True when it did."""
        now = self._clock.now()
        expired = orders.expire(self._connection, now=now)
        lost = orders.give_up_waiting(self._connection, clock=self._clock, marker=self._marker)
        for order in [*expired, *lost]:
            _say("order changed", order)
        looked = self._reconcile()
        if self._wrong and now >= self._next_try:
            self._look()
        woken = orders.wake(self._connection, now=self._clock.now(), marker=self._marker)
        for work in woken:
            log.info("work goes on with its orders: %s", facts(work=work))
        return bool(expired or lost or looked or woken)

    def follow(self, claim: Claim) -> Status:
        """Do what a woken work item waited for: send its approved orders; end it once all are settled."""
        try:
            could_not = self._send_approved(claim)
            if orders.has_open_orders(self._connection, claim.work):
                lapsed = orders.to_tell(self._connection, claim.work)
                self.put_back(claim, back_off=could_not, told=True, report=_approvals_ended(claim, lapsed))
            else:
                self._finish(claim)
        except StaleClaim as stale:
            log.warning("ending refused: %s", facts(work=claim.work, reason=str(stale)))
            return Status.AUTHORITY_LOST
        return Status.COMPLETED

    def put_back(
        self, claim: Claim, *, back_off: bool = False, told: bool = False, report: str | None = None
    ) -> None:
        """End the claim as BLOCKED: its orders are not settled, or a stop came between. Raises StaleClaim."""
        orders.wait(
            self._connection,
            claim,
            clock=self._clock,
            marker=self._marker,
            back_off=back_off,
            told=told,
            report=report,
            run=self._worker.run,
            reason=prompts.WAITS_FOR_ORDERS,
        )

    def _send_approved(self, claim: Claim) -> bool:
        """Send them one by one; True when one could not be sent, so that a later try must wait."""
        could_not = False
        for order in orders.orders_of(self._connection, claim.work):
            if order.status != "APPROVED" or self._worker.stop():
                continue
            supplier = self._reach()
            if supplier is None:
                return True
            lease = self._worker.settings.lease
            renew(self._connection, claim, clock=self._clock, marker=self._marker, lease=lease)
            try:
                sent = orders.send(
                    self._connection,
                    order.id,
                    supplier,
                    claim=claim,
                    clock=self._clock,
                    marker=self._marker,
                )
                _say("order sent", sent)
                self._wrong = sent.status != "CONFIRMED"  # the next pass looks how the account stands
            except StaleClaim:
                raise
            except Refused as refused:
                log.warning("order not sent: %s", facts(order=order.id, reason=str(refused)))
                could_not = True
            self._worker.on_step()
        return could_not

    def _finish(self, claim: Claim) -> None:
        lines = [orders.told(one) for one in orders.orders_of(self._connection, claim.work)]
        orders.finish_waiting(
            self._connection,
            claim,
            clock=self._clock,
            marker=self._marker,
            report=prompts.orders_settled(claim.prompt, lines),
            run=self._worker.run,
        )

    def _reconcile(self) -> bool:
        due = orders.due(self._connection, self._clock.now())[:LOOKS_PER_PASS]
        looked = False
        for order in due:
            supplier = None if self._worker.stop() else self._reach()
            if supplier is None:
                break
            try:
                found = orders.reconcile(
                    self._connection, order, supplier, clock=self._clock, marker=self._marker
                )
            except Refused as refused:
                log.warning("order not looked up: %s", facts(order=order, reason=str(refused)))
                break
            _say("order looked up", found.order)
            looked = True
            self._worker.on_step()
        return looked

    def _look(self) -> None:
        """Whether the account answers and is this copy's, for health; registers and sends nothing."""
        account = self._answering()
        if account is None:
            return
        try:
            orders.refuse_taken(account.account(), operations(self._connection).epoch)
        except StandfastError as error:
            self._try_later(error)
        else:
            self._well()

    def _reach(self) -> Supplier | None:
        """The account, registered for the present era; None while there is none or it does not answer."""
        account = self._answering()
        if account is None:
            return None
        try:  # asked anew each time: the account may have been taken over by another copy
            supplier = orders.connect(self._connection, account, self._marker)
        except StandfastError as error:
            self._try_later(error)
            return None
        self._well()
        if supplier != self._supplier:
            log.info("supplier reached: %s", facts(account=supplier.identity, epoch=supplier.epoch))
        self._supplier = supplier
        return supplier

    def _answering(self) -> orders.SupplierAccount | None:
        """The account, if it answers now and has accepted nothing that this store never knew."""
        account = self._open_account()
        if account is None or self._clock.now() < self._next_try:
            return None
        try:
            found = orders.compare(self._connection, account, after=self._compared or 0)
        except SupplierUnavailable as error:
            self._try_later(error)
            return None
        finally:
            self._worker.on_step()
        if found.unknown:
            self._end_era(found)
            return None
        if self._compared is None:
            log.info("nothing forgotten: %s", facts(receipts=found.upto))
        self._compared = found.upto
        return account

    def _open_account(self) -> orders.SupplierAccount | None:
        access = self._worker.settings.supplier
        if self._account is None and access is not None:
            self._account = orders.HttpSupplier(access)
        if self._account is None and not self._said_none:
            self._said_none = True
            log.info("receipts not compared: %s", facts(reason="no supplier is configured"))
            self._well()
        return self._account

    def _end_era(self, found: orders.Remembered) -> None:
        self._compared, self._supplier = None, None
        epoch = replace(self._connection, self._worker.layout, found.reason, self._clock.now())
        log.error("authority replaced: %s", facts(reason=found.reason, epoch=epoch))

    def _well(self) -> None:
        self._failures, self._wrong = 0, False
        orders.say_account(self._connection, None, self._clock.now())

    def _try_later(self, error: StandfastError) -> None:
        pause = min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(self._failures, 16))
        self._failures += 1
        self._wrong = True
        self._next_try = self._clock.now() + pause
        if not isinstance(error, Refused) or error.code not in _OF_THIS_SIDE:
            orders.say_account(self._connection, error, self._clock.now())
        observed = getattr(error, "observed", None) or None
        log.warning(
            "supplier not reached: %s", facts(reason=str(error), observed=observed, next_try_seconds=pause)
        )


def _approvals_ended(claim: Claim, lapsed: list[Order]) -> str | None:
    if not lapsed:
        return None
    days = orders.LONGEST_DRAFT // 86_400
    lines = [f"{orders.told(one)}\n  approve it again by its digest: {one.digest}" for one in lapsed]
    return prompts.approvals_ended(claim.prompt, lines, days)


def _say(event: str, order: Order) -> None:
    log.log(
        logging.WARNING if order.status in {"UNKNOWN", "REJECTED"} else logging.INFO,
        "%s: %s",
        event,
        facts(
            order=order.id,
            status=order.status,
            sku=order.sku,
            quantity=order.quantity,
            cents=order.total_cents,
            currency=order.currency,
            target=order.target,
            attempts=order.attempts,
            note=order.note,
        ),
    )
