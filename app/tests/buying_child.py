"""A process that buys once, and dies by SIGKILL at the point that it was told."""

import os
import signal

from buying import COMPONENTS, POLICY
from supplying import TOKEN

from standfast import authority, orders, work
from standfast.clock import Clock
from standfast.layout import Layout
from standfast.orders import HttpSupplier, SupplierAccess
from standfast.store import open_store, triggers


def buy(layout: Layout, url: str, point: str) -> None:
    """Propose, approve, send, look up until settled, deliver: each step only if it was not done before."""
    clock = Clock()
    connection = open_store(layout.database, COMPONENTS)

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    triggers.arm(kill)
    work.admit(connection, origin="o", session="s", prompt="buy", now=clock.now())
    authority.claim_own(connection, owner="w", now=clock.now(), marker=layout.marker)
    claim = authority.claim_next(connection, owner="w", now=clock.now(), marker=layout.marker)
    if claim is None:
        row = connection.execute(
            "SELECT id, owner, generation, epoch, role, session, subject, prompt FROM work"
        ).fetchone()
        claim = authority.Claim(*row)
    account = HttpSupplier(SupplierAccess(url, TOKEN))
    supplier = orders.connect(connection, account, layout.marker)
    order = orders.propose(
        connection,
        claim,
        sku="vanilla",
        quantity=6,
        unit_cost_cents=300,
        policy=POLICY,
        clock=clock,
        marker=layout.marker,
    ).order
    if order.status == "DRAFT":
        now = clock.now()
        orders.approve(
            connection,
            order.digest,
            operator="lucy",
            until=now + 3600,
            policy=POLICY,
            now=now,
            marker=layout.marker,
        )
    if orders.show_order(connection, order.id).status == "APPROVED":
        orders.send(connection, order.id, supplier, claim=claim, clock=clock, marker=layout.marker)
    if orders.show_order(connection, order.id).status == "SENDING":
        # The dead sender's time is over: nothing else in this test can be sending.
        connection.execute("UPDATE orders SET last_sent_at = last_sent_at - 121 WHERE id = ?", (order.id,))
        orders.give_up_waiting(connection, clock=clock, marker=layout.marker)
    if orders.show_order(connection, order.id).status == "UNKNOWN":
        orders.reconcile(connection, order.id, supplier, clock=clock, marker=layout.marker)
    orders.deliver(
        connection,
        order.id,
        operator="lucy",
        policy=POLICY,
        into_stock=lambda *_: None,
        now=clock.now(),
    )
