"""The fence: one case per thing that can be wrong, the exact sentence, and not one row written."""

import importlib
import inspect
import math
import os
import pkgutil
import re
import shutil
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from buying import COMPONENTS, KEY_WINDOW, POLICY, LedgerAccount
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import HOST, START, World

import standfast
from standfast import authority, orders, work
from standfast.agent import Usage, usage
from standfast.authority import Claim, StaleClaim, admits, assert_current, fenced
from standfast.layout import Layout
from standfast.orders import Unclear
from standfast.store import immediate
from standfast.supplier.ledger import Ledger
from standfast.work.endings import Ending

if typing.TYPE_CHECKING:
    from standfast.supplier.wire import OrderRequest

MARKER = "authority marker is unavailable"
REPLACED = "runtime paused or replaced by restore"
SUPERSEDED = "worker claim expired or superseded"
DELEGATION = "delegation expired or parent canceled"

type Spoil = Callable[[World, Claim], Claim]


def sql(world: World, statement: str, *values: object) -> None:
    with immediate(world.connection):
        world.connection.execute(statement, values)


def other_marker(world: World, claim: Claim) -> Claim:
    world.mark("f" * 32)
    return claim


def missing_marker(world: World, claim: Claim) -> Claim:
    world.marker.unlink()
    return claim


def empty_marker(world: World, claim: Claim) -> Claim:
    world.marker.write_bytes(b"\n" + HOST.encode())
    return claim


def unreadable_marker(world: World, claim: Claim) -> Claim:
    world.marker.unlink()
    world.marker.mkdir()
    return claim


def binary_marker(world: World, claim: Claim) -> Claim:
    world.marker.write_bytes(b"\xff\xfe")
    return claim


def paused(world: World, claim: Claim) -> Claim:
    authority.pause(world.connection, "test", world.now())
    return claim


def other_database_epoch(world: World, claim: Claim) -> Claim:
    sql(world, "UPDATE operations SET epoch = 'e'")
    return claim


def replaced_and_resumed(world: World, claim: Claim) -> Claim:
    authority.replace(world.connection, world.layout, "test", world.now(), HOST)
    authority.resume(world.connection, world.marker, "test", world.now())
    return claim


def changed(**fields: object) -> Spoil:
    return lambda _world, claim: claim._replace(**fields)  # type: ignore[arg-type]


def later(seconds: float) -> Spoil:
    def spoil(world: World, claim: Claim) -> Claim:
        world.time.passes(seconds)
        return claim

    return spoil


def superseded(world: World, claim: Claim) -> Claim:
    world.time.passes(300)
    assert world.claim("other") is not None
    return claim


def canceled(world: World, claim: Claim) -> Claim:
    work.cancel(world.connection, claim.work, reason="test", now=world.now())
    return claim


def finished(world: World, claim: Claim) -> Claim:
    world.finish(claim)
    return claim


def delegated(deadline_after: float = 200.0, **parent: str) -> Spoil:
    """Make the claimed row a child of a parent that is still RUNNING, or what is said."""

    def spoil(world: World, claim: Claim) -> Claim:
        other = world.claimed("parent")
        deadline = world.now() + deadline_after
        sql(world, "UPDATE work SET parent = ?, deadline = ? WHERE id = ?", other.work, deadline, claim.work)
        if parent.get("status") in {"DONE", "DONE, CANCELED"}:
            world.finish(other)
        if parent.get("status") in {"CANCELED", "DONE, CANCELED"}:
            work.cancel(world.connection, other.work, reason="test", now=world.now())
        return claim

    return spoil


REFUSED: dict[str, tuple[Spoil, str]] = {
    "marker other": (other_marker, REPLACED),
    "marker missing": (missing_marker, MARKER),
    "marker empty": (empty_marker, MARKER),
    "marker unreadable": (unreadable_marker, MARKER),
    "marker not text": (binary_marker, MARKER),
    "paused": (paused, REPLACED),
    "epoch of the claim": (changed(epoch="f" * 32), REPLACED),
    "epoch of the database": (other_database_epoch, REPLACED),
    "replaced and resumed": (replaced_and_resumed, REPLACED),
    "generation before": (changed(generation=0), SUPERSEDED),
    "generation after": (changed(generation=2), SUPERSEDED),
    "work": (changed(work="0" * 24), SUPERSEDED),
    "owner": (changed(owner="other"), SUPERSEDED),
    "role": (changed(role="research"), SUPERSEDED),
    "session": (changed(session="other"), SUPERSEDED),
    "subject": (changed(subject="other"), SUPERSEDED),
    "prompt": (changed(prompt="other"), SUPERSEDED),
    "lease equal": (later(300.0), SUPERSEDED),
    "lease after": (later(300.001), SUPERSEDED),
    "superseded": (superseded, SUPERSEDED),
    "canceled": (canceled, SUPERSEDED),
    "finished": (finished, SUPERSEDED),
    "deadline equal": (delegated(0.0), DELEGATION),
    "deadline passed": (delegated(-1.0), DELEGATION),
    "parent canceled": (delegated(status="CANCELED"), DELEGATION),
    "parent canceled when done": (delegated(status="DONE, CANCELED"), DELEGATION),
}

ADMITTED: dict[str, Spoil] = {
    "as claimed": lambda _world, claim: claim,
    "lease just before": later(299.999),
    "delegated": delegated(),
    "deadline just before": delegated(0.001),
    "parent done": delegated(status="DONE"),
}


def modules() -> Iterator[ModuleType]:
    """Every module of the package but the commands, which have no claim."""
    for info in pkgutil.walk_packages(standfast.__path__, "standfast."):
        if not info.name.startswith("standfast.cli") and not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def fenced_functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every public function of the package that takes a connection and a Claim, and so may write."""
    for module in modules():
        for label, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not label.startswith("_") and takes_claim(function):
                yield f"{module.__name__}.{label}", function


def takes_claim(function: Callable[..., object]) -> bool:
    """``Claim | None`` is a claim too. Whoever takes a FencedNow is inside the fence: mypy sees to it."""
    hints = inspect.get_annotations(function)
    hints.pop("return", None)
    may_be = {part for hint in hints.values() for part in parts(hint)}
    return "connection" in hints and "Claim" in may_be and "FencedNow" not in may_be


def parts(hint: object) -> set[str]:
    """The names in an annotation; one of a type that is imported for checking only is text and stays so."""
    if isinstance(hint, str):
        return set(re.findall(r"\w+", hint))
    return {getattr(part, "__name__", "") for part in (hint, *typing.get_args(hint))}


GATES = {
    "standfast.authority.fence.assert_current",
    "standfast.authority.fence.fenced",
    "standfast.orders.era.acting",
}
FENCED = {name: function for name, function in fenced_functions() if name not in GATES}

VALUES: dict[str, object] = {
    "message": "text",
    "body": "text",
    "sku": "vanilla",
    "quantity": 1,
    "unit_cost_cents": 300,
    "policy": POLICY,
    "subject": "vanilla",
    "prompt": "look",
    "seconds": 60.0,
    "outcome": Unclear("no answer"),
    "source": "scripted",
    "most": Usage(),
    "ceilings": usage.Ceilings(),
    "report": "text",
}
NEEDED = {"report"}
"""May be left out in general, but not with these values: work that is DONE says what was done."""
OF_AN_ORDER = {"order", "supplier", "attempt"}


def required(function: Callable[..., object]) -> set[str]:
    """The names of what it must be given beside the claim."""
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty or name in NEEDED
    } - {"claim"}


def writers() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Every way to write for a claim: its name, the function's, and what it is given of its own."""
    for name, function in FENCED.items():
        if "status" not in required(function):
            yield name, name, {}
            continue
        for ending in typing.get_args(Ending.__value__):
            yield f"{name} {ending}", name, {"status": ending}


WRITERS = {label: (function, given) for label, function, given in writers()}


@dataclass(frozen=True)
class Prepared:
    """An instance with a current claim and what one writer needs; every case gets a copy of it."""

    folder: Path
    writer: str
    claim: Claim
    values: dict[str, object]
    supplier: orders.Supplier | None

    @classmethod
    def make(cls, folder: Path, writer: str) -> "Prepared":
        name, given = WRITERS[writer]
        needed = required(FENCED[name])
        world = opened(folder)
        try:
            claim = world.claimed()
            order = an_order(world, claim, begun="attempt" in needed) if needed & OF_AN_ORDER else {}
        finally:
            world.close()
        supplier = order.pop("supplier", None)
        assert supplier is None or isinstance(supplier, orders.Supplier)
        values = {key: value for key, value in (VALUES | order | given).items() if key in needed}
        return cls(folder, writer, claim, values, supplier if "supplier" in needed else None)

    def copy(self, folder: Path) -> "Case":
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        world = opened(folder)
        world.connection.execute("PRAGMA synchronous = OFF")  # no case is about a loss of power
        return Case(world, self)


class Case:
    """One copy, and the call that writes in it for a claim."""

    def __init__(self, world: World, prepared: Prepared) -> None:
        self.world = world
        self.claim = prepared.claim
        self._function = FENCED[WRITERS[prepared.writer][0]]
        known = {"connection": world.connection, "clock": world.clock, "marker": world.marker}
        self._given = prepared.values | {k: v for k, v in known.items() if k in required(self._function)}
        self.sent: list[OrderRequest] = []
        if prepared.supplier is not None:
            account = LedgerAccount(a_ledger(world), world.now, sent=self.sent)
            self._given["supplier"] = replace(prepared.supplier, account=account)

    def write(self, claim: Claim) -> None:
        self._function(claim=claim, **self._given)


def opened(folder: Path) -> World:
    """The instance in a folder, made if it is not there; it knows orders and usage too."""
    return World(Layout(folder / "state"), components=(*COMPONENTS, usage.COMPONENT))


def a_ledger(world: World) -> Ledger:
    ledger = Ledger.open(world.layout.root / "ledger", START, KEY_WINDOW)
    world.opened.callback(ledger.close)
    return ledger


def an_order(world: World, claim: Claim, *, begun: bool) -> dict[str, object]:
    """An approved order of the claim's work and the supplier to send it to; ``begun``: on its way."""
    common: dict[str, typing.Any] = {"clock": world.clock, "marker": world.marker}
    draft = orders.propose(
        world.connection, claim, sku="vanilla", quantity=1, unit_cost_cents=300, policy=POLICY, **common
    ).order
    approved = orders.approve(
        world.connection,
        draft.digest,
        operator="lucy",
        until=world.now() + 3600,
        policy=POLICY,
        now=world.now(),
        marker=world.marker,
        order=draft.id,
    ).order
    supplier = orders.connect(world.connection, LedgerAccount(a_ledger(world), world.now), world.marker)
    values: dict[str, object] = {"order": approved.id, "supplier": supplier}
    if begun:
        values["attempt"] = orders.begin(world.connection, approved.id, supplier, claim=claim, **common)
    return values


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    """What each writer needs, made once."""
    return cache(lambda writer: Prepared.make(tmp_path_factory.mktemp("prepared"), writer))


@pytest.fixture
def case(prepared: Callable[[str], Prepared], writer: str, tmp_path: Path) -> Iterator[Case]:
    made = prepared(writer).copy(tmp_path)
    yield made
    made.world.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh initialised instance that knows orders and usage too."""
    made = opened(tmp_path)
    yield made
    made.close()


def test_inspection_finds_the_functions_that_write_for_a_claim() -> None:
    found = {name.rsplit(".", 1)[1] for name in FENCED}
    assert {"observe", "finish", "finish_and_claim", "create_report", "delegate", "renew"} <= found
    assert {"propose", "wait", "send", "begin", "settle", "book"} <= found


def test_no_class_keeps_a_claim_but_those_that_write_through_these_functions() -> None:
    """They hand their claim on. One that is new here needs a look: it may write past the inspection."""
    keeping = {
        label
        for module in modules()
        for label, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
        and any("Claim" in parts(hint) for hint in inspect.get_annotations(kind).values())
    }
    assert keeping == {"ShopTools", "Account", "_Wanted"}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("spoil", ["as claimed", "lease just before"])
def test_every_function_that_writes_for_a_claim_writes_for_a_current_one(case: Case, spoil: str) -> None:
    claim = ADMITTED[spoil](case.world, case.claim)
    before = case.world.dump()
    case.world.time.passes(0.0005)
    case.write(claim)
    assert case.world.dump() != before


@pytest.mark.parametrize("cause", REFUSED)
@pytest.mark.parametrize("writer", WRITERS)
def test_no_function_writes_for_a_stale_claim(case: Case, cause: str) -> None:
    """Every way to write, every cause: the exact sentence, not one row, and a fresh claim works."""
    spoil, sentence = REFUSED[cause]
    world = case.world
    claim = spoil(world, case.claim)
    before = world.dump()
    with pytest.raises(StaleClaim) as refused:
        case.write(claim)
    assert str(refused.value) == sentence
    assert refused.value.exit_code == 3
    assert world.dump() == before
    assert case.sent == []
    a_fresh_claim_works(world, claim)


def a_fresh_claim_works(world: World, stale: Claim) -> None:
    """Once the marker is in its place and operations resume; it writes, and the stale one still does not."""
    if world.marker.is_dir():
        world.marker.rmdir()
    world.mark(world.epoch())
    authority.resume(world.connection, world.marker, "test", world.now())
    fresh = world.claimed("fresh")
    while fresh.work == stale.work:
        world.finish(fresh)
        fresh = world.claimed("fresh")
    world.observe(fresh)
    assert len(work.transcript(world.connection, fresh.work)) == 1


@pytest.mark.parametrize("spoil", ADMITTED)
def test_a_current_claim_writes(world: World, spoil: str) -> None:
    claim = ADMITTED[spoil](world, world.claimed())
    world.observe(claim)
    assert len(work.transcript(world.connection, claim.work)) == 1


def test_the_order_of_the_checks(world: World) -> None:
    """With everything wrong at once, the first rule speaks."""
    claim = world.claimed()
    spoiled = delegated(status="CANCELED")(world, claim._replace(owner="other"))
    sentences = []
    for repair in ("nothing", "marker", "pause", "owner", "parent"):
        if repair == "nothing":
            missing_marker(world, spoiled)
            paused(world, spoiled)
        if repair == "marker":
            world.mark(world.epoch())
        if repair == "pause":
            authority.resume(world.connection, world.marker, "test", world.now())
        if repair == "owner":
            spoiled = claim
        if repair == "parent":
            sql(world, "UPDATE work SET parent = NULL, deadline = NULL WHERE id = ?", claim.work)
            world.observe(spoiled)
            break
        with pytest.raises(StaleClaim) as refused:
            world.observe(spoiled)
        sentences.append(str(refused.value))
    assert sentences == [MARKER, REPLACED, SUPERSEDED, DELEGATION]


def test_an_exception_inside_the_fence_rolls_back(world: World) -> None:
    claim = world.claimed()
    before = world.dump()

    def fail() -> None:
        with fenced(world.connection, claim, world.clock, world.marker):
            world.connection.execute("UPDATE work SET lease_until = lease_until + 1")
            raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        fail()
    assert world.dump() == before


class TestPureRule:
    current: typing.ClassVar = {"paused": False, "epoch": "e", "generation": 1, "work": "w", "worker": "o"}
    claim: typing.ClassVar = {"epoch": "e", "generation": 1, "work": "w", "worker": "o", "lease_until": 10.0}

    def test_it_admits_what_agrees(self) -> None:
        assert admits(self.current, self.claim, 9.999) is True

    @pytest.mark.parametrize("name", ["epoch", "generation", "work", "worker"])
    def test_every_identity_counts(self, name: str) -> None:
        assert admits(self.current, self.claim | {name: "other"}, 9) is False

    def test_pause_and_lease(self) -> None:
        assert admits(self.current | {"paused": True}, self.claim, 9) is False
        assert admits(self.current | {"paused": 1}, self.claim, 9) is False
        assert admits(self.current, self.claim, 10.0) is False
        assert admits(self.current, self.claim, math.nan) is False


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Claim]]:
    world = World(Layout(tmp_path_factory.mktemp("shared") / "state"))
    yield world, world.claimed()
    world.connection.close()


LEASE_END = 1_700_000_300.0


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    paused=st.booleans(),
    same=st.tuples(*[st.sampled_from([True, True, True, False])] * 4),
    now=st.one_of(
        st.sampled_from([LEASE_END, math.nextafter(LEASE_END, 0), math.nextafter(LEASE_END, math.inf)]),
        st.floats(LEASE_END - 1000, LEASE_END + 1000),
    ),
)
def test_the_pure_rule_and_the_sql_agree(
    shared: tuple[World, Claim], paused: bool, same: tuple[bool, ...], now: float
) -> None:
    world, claim = shared
    sql(world, "UPDATE operations SET paused = ?", int(paused))
    sql(world, "UPDATE work SET lease_until = ?", LEASE_END)
    epoch, generation, identity, owner = same
    offered = claim._replace(
        epoch=claim.epoch if epoch else "f" * 32,
        generation=claim.generation + (not generation),
        work=claim.work if identity else "0" * 24,
        owner=claim.owner if owner else "other",
    )
    row = {
        "epoch": claim.epoch,
        "generation": claim.generation,
        "work": claim.work,
        "worker": claim.owner,
        "paused": paused,
    }
    asked = {
        "epoch": offered.epoch,
        "generation": offered.generation,
        "work": offered.work,
        "worker": offered.owner,
        "lease_until": LEASE_END,
    }
    try:
        assert_current(world.connection, offered, now, world.marker)
        allowed = True
    except StaleClaim:
        allowed = False
    assert allowed == admits(row, asked, now)


def test_the_marker_is_read_through_no_surprise(world: World, tmp_path: Path) -> None:
    """A FIFO in the marker's place does not block the worker."""
    claim = world.claimed()
    world.marker.unlink()
    os.mkfifo(world.marker)
    with pytest.raises(StaleClaim, match=MARKER):
        world.observe(claim)
