"""What the offline planner does for the shop: read the stock, keep findings, propose orders, report.

The skill shapes the brief through two of its lines, ``Opening: <sentence>`` and ``Show: all`` or
``Show: low``; the rest of it is advice that only a language model can follow.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from standfast.agent import Conversation, Reply
from standfast.orders.intent import LARGEST_QUANTITY
from standfast.shop.prompts import MORNING_BRIEF, skill_in, subject_in

MAX_FINDINGS = 10
MAX_PROPOSALS = 5
NOT_READ = "The stock could not be read, so there is nothing that this brief can vouch for."
VOUCHED = "Written by the offline planner; every number was read from the stock."
DEFAULT_OPENING = "Here is the shop's stock."


@dataclass(frozen=True, slots=True)
class _Shape:
    opening: str
    low_only: bool


def plan(conversation: Conversation) -> Reply:
    """The next step of a brief; the same conversation always gives the same step."""
    if not conversation.asked("list_stock"):
        return conversation.call("list_stock")
    subject = subject_in(conversation.prompt)
    products = _products(conversation.results("list_stock"), subject)
    if products is None:
        return Reply(text=NOT_READ)
    low = [product for product in products if product["needed"] > 0]
    if low and "record_finding" in conversation.tools and not conversation.asked("record_finding"):
        return conversation.call_all("record_finding", [{"text": _finding(p)} for p in low[:MAX_FINDINGS]])
    wanted = _wanted(conversation, low, subject)
    if wanted and not conversation.asked("propose_order"):
        return conversation.call_all("propose_order", wanted)
    kept = len(conversation.results("record_finding")) == conversation.asked("record_finding")
    brief = _brief(products, low, shape=_shape(conversation.system), kept=kept, subject=subject)
    return Reply(text="\n\n".join([*brief, *_orders(conversation), VOUCHED]))


def _wanted(
    conversation: Conversation, low: list[dict[str, Any]], subject: str | None
) -> list[dict[str, JsonValue]]:
    """What to propose: for low stock or in the morning brief only, and never what is open already."""
    if "propose_order" not in conversation.tools or not (subject or conversation.prompt == MORNING_BRIEF):
        return []
    covered = {order["sku"] for order in _open_orders(conversation)}
    return [
        {"sku": product["sku"], "quantity": min(product["needed"], LARGEST_QUANTITY)}
        for product in low
        if product["sku"] not in covered
    ][:MAX_PROPOSALS]


def _open_orders(conversation: Conversation) -> list[dict[str, Any]]:
    newest = conversation.results("list_stock")[-1]
    found = newest.get("open_orders", []) if isinstance(newest, dict) else []
    return [order for order in found if isinstance(order, dict)] if isinstance(found, list) else []


def _orders(conversation: Conversation) -> list[str]:
    """What is proposed, approved or uncertain, with the digest that an approval takes."""
    proposed = [order for order in conversation.results("propose_order") if isinstance(order, dict)]
    known = [*_open_orders(conversation), *proposed]
    waiting = [order for order in known if order["status"] == "DRAFT"]
    others = [order for order in known if order["status"] != "DRAFT"]
    parts = []
    if waiting:
        lines = [f"{_bought(order)}\n  approve it with its digest: {order['digest']}" for order in waiting]
        parts.append("\n".join(["Waiting for your approval:", *lines]))
    if others:
        lines = [f"{_bought(order)}, {order['status']}" for order in others]
        parts.append("\n".join(["Ordered, not settled yet:", *lines]))
    if len(proposed) < conversation.asked("propose_order"):
        parts.append("Not every order could be proposed.")
    return parts


def _bought(order: dict[str, Any]) -> str:
    return f"- {order['quantity']} of {order['sku']} for {order['total']} from {order['target']}"


def _products(results: list[JsonValue], subject: str | None) -> list[dict[str, Any]] | None:
    newest = results[-1] if results else None
    if not isinstance(newest, dict) or not isinstance(products := newest.get("products"), list):
        return None
    known = [product for product in products if isinstance(product, dict)]
    return [product for product in known if product["sku"] == subject] or known


def _finding(product: dict[str, Any]) -> str:
    return (
        f"{product['sku']}: {product['on_hand']} on hand, {product['on_order']} on order,"
        f" reorder point {product['reorder_point']}, {product['needed']} needed"
    )


def _shape(system: str) -> _Shape:
    lines: dict[str, str] = {}
    for line in skill_in(system).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            lines.setdefault(key.strip().lower(), value.strip())
    opening = lines.get("opening", "")
    if not opening or any(character.isdigit() for character in opening):
        opening = DEFAULT_OPENING  # the planner vouches for every number, and none in a skill is a reading
    return _Shape(opening=opening, low_only=lines.get("show", "all").lower() == "low")


def _brief(
    products: list[dict[str, Any]],
    low: list[dict[str, Any]],
    *,
    shape: _Shape,
    kept: bool,
    subject: str | None,
) -> list[str]:
    rest = [product for product in products if product["needed"] <= 0]
    parts = [f"Low stock: {subject}." if subject else shape.opening]
    if low:
        parts.append("\n".join(["Below the reorder point:", *map(_line, low)]))
    else:
        parts.append("Nothing is below its reorder point.")
    if rest and not shape.low_only:
        parts.append("\n".join(["Enough for now:", *map(_line, rest)]))
    if not kept:
        parts.append("Not every finding could be kept.")
    return parts


def _line(product: dict[str, Any]) -> str:
    needed = f"; {product['needed']} needed" if product["needed"] > 0 else ""
    return (
        f"- {product['name']}: {product['on_hand']} on hand, {product['on_order']} on order,"
        f" reorder point {product['reorder_point']}{needed}"
    )
