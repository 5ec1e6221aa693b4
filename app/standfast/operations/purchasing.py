"""What a command needs to talk to the supplier: the access that the service has, and the account."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from standfast import authority, orders
from standfast.errors import ConfigurationInvalid, Refused
from standfast.layout import Layout
from standfast.operations import environment
from standfast.orders import HttpSupplier, SupplierAccess
from standfast.store import Store


def supplier_access(layout: Layout, given: Mapping[str, str] = os.environ) -> SupplierAccess:
    """From this process's environment, else from agent.env, as the service is given it.

    Raises Refused ``no_supplier`` when neither names one, or what is there is unusable.
    """
    try:
        found = SupplierAccess.from_environment(given) or SupplierAccess.from_environment(_file(layout))
    except ConfigurationInvalid as error:
        raise Refused("no_supplier", str(error), remedy="correct it with `standfast env write`") from None
    if found is None:
        raise Refused(
            "no_supplier",
            "no supplier is configured",
            observed=f"STANDFAST_SUPPLIER_URL is neither in the environment nor in {layout.environment}",
            remedy="write both supplier variables with `standfast env write`",
        )
    return found


@contextmanager
def supplier_account(layout: Layout) -> Iterator[HttpSupplier]:
    """The account over HTTP, closed at the end; raises as ``supplier_access``."""
    account = HttpSupplier(supplier_access(layout))
    try:
        yield account
    finally:
        account.close()


def refuse_amnesia(
    connection: Store, layout: Layout, account: orders.SupplierAccount, *, now: float, check: bool = False
) -> None:
    """The amnesia check before an operator's own request: end the era over what the store never knew.

    As the service does it. ``check`` compares and refuses, and ends nothing. Raises Refused ``amnesia``, and
    SupplierUnavailable when the receipts cannot be compared: then nothing is asked or sent either.
    """
    found = orders.compare(connection, account)
    if not found.unknown:
        return
    if not check:
        authority.replace(connection, layout, found.reason, now)
    raise Refused(
        "amnesia",
        "the supplier holds receipts that this store never knew: the state is older than the world",
        observed=list(found.unknown),
        remedy=(
            "nothing was sent; "
            + ("the era would end" if check else "the era has ended")
            + " and operations pause: inspect and recover the account"
        ),
    )


def _file(layout: Layout) -> Mapping[str, str]:
    try:
        text = layout.environment.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return environment.parse(text)[0]
