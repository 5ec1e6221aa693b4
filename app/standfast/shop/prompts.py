"""The texts that a turn starts with, and how the offline planner finds its way in them."""

from standfast.agent import messages as chat
from standfast.agent.messages import Message
from standfast.shop.config import ShopConfig

MORNING_BRIEF = "Write the morning brief."
DEFAULT_SKILL = """\
Opening: Good morning, Lucy. Here is the shop before it opens.
Show: all
Say first what is below its reorder point and how much of it is needed, then the rest.
Name every product as the catalogue does. Keep it short.
"""
CANARY_SKILL = """\
Opening: This is a canary: a request that shows the service at work. It asks nothing of you.
Show: all
Say only what you read of the stock.
"""
INTERRUPTED = """\
The service was stopped while it worked on this request, so it was not finished:

{prompt}

Nothing that it had recorded is lost. If you still need the answer, please ask again.
"""
INTERRUPTED_BY_RESTORE = """\
The state was restored from a backup while this request was being worked on, so it was not finished:

{prompt}
{orders}
Whatever was done for it after the backup is not in these records any more. If you still need the answer,
please send it again.
"""
FAILED = """\
This request could not be finished:

{prompt}

The reason: {reason}. Nothing was made up in its place.
"""
ORDERS_SETTLED = """\
The orders of this request are settled:

{prompt}

{lines}
"""
APPROVALS_ENDED = """\
An approval ended before its order was sent, so nothing was bought:

{prompt}

{lines}

What is not approved again within {days} days ends by itself.
"""
WAITS_FOR_ORDERS = "waits for its orders"

_INSTRUCTIONS = """\
You are the agent of {shop}, a shop that Lucy runs. You answer her requests about it.
Every number you give must come from the result of a tool that you called in this conversation.
Record what Lucy should act on with record_finding.
If you have propose_order, propose what low stock needs and no open order covers; Lucy decides on each.
A tool that fails tells you a code and no more: say so plainly.
"""
_SKILL = "# Skill: opening\n"
_SUBJECT = "Subject: "


def opening_messages(config: ShopConfig, *, skill: str, prompt: str, subject: str | None) -> list[Message]:
    """The system and user message of one piece of work."""
    asked = f"{prompt}\n{_SUBJECT}{subject}" if subject else prompt
    return [
        chat.system(f"{_INSTRUCTIONS.format(shop=config.shop.name)}\n{_SKILL}{skill}"),
        chat.user(asked),
    ]


def skill_in(system: str) -> str:
    """The skill's text in a system message."""
    return system.partition(_SKILL)[2]


def subject_in(prompt: str) -> str | None:
    """The subject that a user message ends with, or None."""
    last = prompt.rpartition("\n")[2]
    return last.removeprefix(_SUBJECT) if last.startswith(_SUBJECT) else None


def low_stock(name: str) -> str:
    """What the agent is asked when a product falls below its reorder point."""
    return f"{name} fell below its reorder point. Say how things stand and what is needed."


def interrupted(prompt: str) -> str:
    """The report for a request that a stop cut off."""
    return INTERRUPTED.format(prompt=_first_line(prompt))


def interrupted_by_restore(prompt: str, lines: list[str]) -> str:
    """The report for a request that the end of an era interrupted; ``lines`` say what its orders came to."""
    told = "\nIts orders are settled, so do not ask for these again:\n\n" + "\n".join(lines) + "\n"
    return INTERRUPTED_BY_RESTORE.format(prompt=_first_line(prompt), orders=told if lines else "")


def failed(prompt: str, reason: str) -> str:
    """The report for a request that ended at a limit or a failure."""
    return FAILED.format(prompt=_first_line(prompt), reason=reason)


def orders_settled(prompt: str, lines: list[str]) -> str:
    """The report for work whose orders have all come to an end."""
    return ORDERS_SETTLED.format(prompt=_first_line(prompt), lines="\n".join(lines))


def approvals_ended(prompt: str, lines: list[str], days: int) -> str:
    """The report for work whose orders were approved and not sent in time; the drafts end after ``days``."""
    return APPROVALS_ENDED.format(prompt=_first_line(prompt), lines="\n".join(lines), days=days)


def _first_line(prompt: str) -> str:
    return f"  {prompt.strip().partition('\n')[0][:200]}"
