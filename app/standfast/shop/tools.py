"""The shop's tools, bound to one claim."""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, JsonValue

from standfast import orders
from standfast.agent import Arguments, Dispatcher, NoArguments, Tool, ToolCall, tool
from standfast.authority import Claim, agrees, assert_current, operations
from standfast.clock import Clock, rfc3339
from standfast.errors import BadInput
from standfast.orders.intent import LARGEST_QUANTITY, SMALLEST_QUANTITY
from standfast.shop.config import ShopConfig
from standfast.shop.stock import positions
from standfast.work import DELEGATION, RESEARCH, delegate, observe, show_work, transcript

FINDING = "finding"
"""The role of a finding's transcript row; it is no part of the conversation with the model."""
PROPOSE = "propose_order"
DELEGATE = "delegate"
_RECORDS = {FINDING, orders.RECORD, DELEGATION}
"""Roles of transcript rows that are no part of the conversation."""
OPEN_SHOWN = 100
"""Open orders shown to a model, the oldest first."""
RESULT_BYTES = 128 * 1024
"""A whole catalogue fits."""


class Finding(Arguments):
    """What `record_finding` takes."""

    text: Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
    """One finding, for Lucy to act on."""


class Purchase(Arguments):
    """What `propose_order` takes: never a price, that is the catalogue's."""

    sku: Annotated[str, Field(min_length=1, max_length=40)]
    """A sku of the catalogue."""
    quantity: Annotated[int, Field(ge=SMALLEST_QUANTITY, le=LARGEST_QUANTITY)]
    """Units."""


class Research(Arguments):
    """What `delegate` takes."""

    subject: Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
    """What it is about; a sku narrows the answer."""
    prompt: Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
    """What is to be found out."""
    seconds: Annotated[int, Field(ge=60, le=900)] = 600
    """How long from now it is worth knowing."""


@dataclass(frozen=True, slots=True)
class ShopTools:
    """What a turn for ``claim`` may read and write."""

    connection: sqlite3.Connection
    claim: Claim
    config: ShopConfig
    clock: Clock
    marker: Path
    purchasing: bool = False
    """Whether orders can be proposed: a supplier is configured, and the work has purchasing authority."""

    def dispatcher(self) -> Dispatcher:
        """The tools behind the gate: the fence is asked before every consequential call."""
        everything = self._tools()
        withheld = set() if self.purchasing else {PROPOSE}
        if self.claim.role == RESEARCH:
            withheld = {PROPOSE, DELEGATE}
        return Dispatcher(
            everything,
            allowed=[one.name for one in everything if one.name not in withheld],
            before_write=self._gate,
            result_bytes=RESULT_BYTES,
        )

    def _tools(self) -> list[Tool]:
        return [
            tool("list_stock", "The stock of every product.", NoArguments, self._list_stock),
            tool("work_status", "Whether this work may still act.", NoArguments, self._work_status),
            tool(
                "record_finding",
                "Keep one finding for Lucy, in one short sentence.",
                Finding,
                self._record_finding,
                consequential=True,
            ),
            tool(
                PROPOSE,
                "Propose to buy units of one product; an operator has to approve it.",
                Purchase,
                self._propose_order,
                consequential=True,
            ),
            tool(
                DELEGATE,
                "Let a helper look something up for Lucy; it reports to her by itself and can buy nothing.",
                Research,
                self._delegate,
                consequential=True,
            ),
        ]

    def _gate(self, _tool: Tool, _arguments: BaseModel) -> None:
        assert_current(self.connection, self.claim, self.clock.now(), self.marker)

    def _list_stock(self, _arguments: NoArguments, _call: ToolCall) -> JsonValue:
        return {
            "products": [p.model_dump() for p in positions(self.connection, self.config)],
            "open_orders": [_shown(order) for order in orders.open_orders(self.connection)[:OPEN_SHOWN]],
        }

    def _work_status(self, _arguments: NoArguments, _call: ToolCall) -> JsonValue:
        control = operations(self.connection)
        work = show_work(self.connection, self.claim.work)
        return {
            "paused": control.paused,
            "claim_epoch_current": control.epoch == self.claim.epoch and agrees(self.connection, self.marker),
            "claim_generation": self.claim.generation,
            "work": {"generation": work.generation, "owner": work.owner, "status": work.status},
            "transcript_rows": len(transcript(self.connection, self.claim.work)),
        }

    def _record_finding(self, finding: Finding, call: ToolCall) -> JsonValue:
        row = {"role": FINDING, "text": finding.text, "tool_call_id": call.id, "gate": "allowed"}
        # A turn cut off between this write and its answer comes here again with the same call.
        if row not in findings(self.connection, self.claim.work):
            message = json.dumps(row, ensure_ascii=False)
            observe(self.connection, self.claim, message, clock=self.clock, marker=self.marker)
        return "recorded"

    def _propose_order(self, purchase: Purchase, call: ToolCall) -> JsonValue:
        product = self.config.find(purchase.sku)
        if product is None:
            raise BadInput(f"sku: the catalogue has no product {purchase.sku!r}")
        proposed = orders.propose(
            self.connection,
            self.claim,
            sku=product.sku,
            quantity=purchase.quantity,
            unit_cost_cents=product.unit_cost_cents,
            policy=self.config.policy,
            clock=self.clock,
            marker=self.marker,
            call=call.id,
        )
        return _shown(proposed.order)

    def _delegate(self, research: Research, call: ToolCall) -> JsonValue:
        child = delegate(
            self.connection,
            self.claim,
            subject=research.subject,
            prompt=research.prompt,
            seconds=research.seconds,
            clock=self.clock,
            marker=self.marker,
            call=call.id,
        )
        return {"work": child.work, "deadline": rfc3339(child.deadline)}


def _shown(order: orders.Order) -> dict[str, JsonValue]:
    """An order as a model sees it."""
    return {
        "order": order.id,
        "digest": order.digest,
        "sku": order.sku,
        "quantity": order.quantity,
        "total": orders.money(order.total_cents, order.currency),
        "target": order.target,
        "status": order.status,
    }


def findings(connection: sqlite3.Connection, work: str) -> list[dict[str, JsonValue]]:
    """The findings that were kept for one work item, oldest first."""
    return [message for message in _messages(connection, work) if message.get("role") == FINDING]


def conversation(connection: sqlite3.Connection, work: str) -> list[dict[str, JsonValue]]:
    """The recorded messages of one work item's conversation, over all generations, oldest first."""
    return [one for one in _messages(connection, work) if one.get("role") not in _RECORDS]


def sources_of(connection: sqlite3.Connection, work: str) -> list[str]:
    """Which models answered in the turns of one work item, each once, in order."""
    said = (m.get("source") for m in _messages(connection, work) if m.get("role") == "assistant")
    return list(dict.fromkeys(str(source) for source in said if source))


def _messages(connection: sqlite3.Connection, work: str) -> list[dict[str, JsonValue]]:
    return [json.loads(row.message) for row in transcript(connection, work)]
