"""The releases that a host keeps: whether each was seen to work, and whether one may go back to it.

Going back replaces code and nothing else, so the older code must know the store exactly as it is now, keep
the same authority contract, and not lie under a floor that a security repair has set.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field

from standfast import authority
from standfast.errors import Refused
from standfast.layout import Layout, running_release
from standfast.operations.opening import refuse_other_user
from standfast.operations.verdicts import Floor, Judged, Record, Verdict, read_record
from standfast.release.installed import InstalledRelease, releases
from standfast.release.manifest import Manifest
from standfast.release.verify import verify
from standfast.store import look_at, schema_versions

_SHOWN = 3

type Rule = Literal["schema_unknown", "schema_older", "contract_differs", "below_floor", "condemned"]


@dataclass(frozen=True)
class Ground:
    """What an older release would take over."""

    schema: Mapping[str, int]
    """The version of each component in the store as it is now."""
    authority_contract: int
    """Of the code that worked on the store last."""
    floors: tuple[Floor, ...] = ()
    """Of every release that worked on it: root's record, and the release that is left."""


@dataclass(frozen=True)
class Objection:
    """One reason why a release may not be gone back to."""

    rule: Rule
    observed: str
    """One sentence without a full stop."""


def may_go_back(old: Manifest, ground: Ground, last: Judged | None = None) -> list[Objection]:
    """Every reason why `old` may not take the store over; none: it may.

    `last` is the last verdict on `old`. Pure: whether its files are still whole is asked elsewhere, and an
    automatic fallback also demands that the release that is left was reviewed for it.
    """
    return [*_schema(old, ground.schema), *_contract(old, ground), *_floors(old, ground), *_verdict(last)]


def understands(old: Manifest, schema: Mapping[str, int]) -> bool:
    """Whether `old` knows every component of a store, each at least as new."""
    return all(version <= old.schema_versions.get(name, 0) for name, version in schema.items())


def floors(record: Record | None, *left: Manifest) -> tuple[Floor, ...]:
    """The floors that hold: root's record has one, and so has each release that is being left."""
    told = [record.floor] if record is not None and record.floor is not None else []
    return (*told, *(Floor(version=one.rollback_floor, release=one.release_id) for one in left))


def below(version: str, found: Iterable[Floor]) -> list[Floor]:
    """The floors that a version lies under."""
    return [floor for floor in found if Version(version) < Version(floor.version)]


def _schema(old: Manifest, schema: Mapping[str, int]) -> list[Objection]:
    found = []
    for name in sorted(schema.keys() | old.schema_versions.keys()):
        store, known = schema.get(name, 0), old.schema_versions.get(name, 0)
        if store > known:
            told = f"the store's {name} is at {store}, and it understands {known or 'none'}"
            found.append(Objection("schema_unknown", told))
        elif store < known:
            told = f"it would bring the store's {name} from {store} to {known}: that is an upgrade"
            found.append(Objection("schema_older", told))
    return found


def _contract(old: Manifest, ground: Ground) -> list[Objection]:
    if old.authority_contract == ground.authority_contract:
        return []
    told = f"its authority contract is {old.authority_contract}, not {ground.authority_contract}"
    return [Objection("contract_differs", told)]


def _floors(old: Manifest, ground: Ground) -> list[Objection]:
    return [
        Objection(
            "below_floor",
            f"its version {old.version} is under the rollback floor {floor.version} of {floor.release}",
        )
        for floor in below(old.version, ground.floors)
    ]


def _verdict(last: Judged | None) -> list[Objection]:
    if last is None or last.verdict == "good":
        return []
    return [Objection("condemned", f"it was seen not to work at {last.at}: {last.why}")]


class KeptRelease(BaseModel):
    """One folder below an instance's `releases`."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    id: str
    """The folder's name, which is the release's id."""
    version: str | None
    commit: str | None
    sealed: bool
    """false: half-made; the next installation removes it."""
    installed_at: str | None
    """When it was sealed."""
    current: bool
    """Whether the link `current` leads here."""
    python: str | None
    """The Python it was installed with, X.Y.Z."""
    pythons: tuple[str, ...]
    """Those it carries wheels for."""
    verdict: Verdict
    """What root's record says of it last."""
    schema_versions: Annotated[dict[str, int] | None, Field(alias="schema")]
    """Store component -> the newest version that it understands; null when its manifest cannot be read."""
    understands_store: bool
    """Whether it could read the store as it is now; false when the store cannot be looked at."""
    may_roll_back: bool
    why_not: str | None
    """Every reason, with semicolons between them; null when it may."""


class KeptList(BaseModel):
    """What `standfast release list` prints, oldest seal first, half-made ones last."""

    releases: list[KeptRelease]
    floor: Floor | None
    """The highest rollback floor of any release that was ever shown to work here."""


@dataclass(frozen=True)
class _Look:
    """What all the releases of a root are compared with."""

    record: Record | None
    schema: Mapping[str, int] | None
    problem: str | None
    """Why the store cannot be looked at."""
    floors: tuple[Floor, ...]


def kept(layout: Layout, record_path: Path | None = None) -> KeptList:
    """The releases of an instance as the running one sees them. Every finished one is compared with its seal.

    Raises Refused `record_unreadable`, `instance_unreadable`.
    """
    record = read_record(layout, record_path)
    schema, problem = _store(layout)
    installed = releases(layout)
    running = [one.manifest for one in installed if one.manifest and one.folder.name == running_release()]
    look = _Look(record, schema, problem, floors(record, *running))
    return KeptList(
        releases=[_kept(found, look) for found in installed], floor=record.floor if record else None
    )


def _store(layout: Layout) -> tuple[Mapping[str, int] | None, str | None]:
    try:
        refuse_other_user(layout)
        return look_at(layout.database, schema_versions), None
    except Refused as refused:
        return None, str(refused)


def _kept(found: InstalledRelease, look: _Look) -> KeptRelease:
    manifest, seal = found.manifest, found.seal
    last = look.record.latest(found.folder.name) if look.record else None
    reasons = _reasons(found, look, last)
    return KeptRelease(
        id=found.folder.name,
        version=manifest.version if manifest else None,
        commit=manifest.source.commit if manifest else None,
        sealed=seal is not None,
        installed_at=seal.sealed_at if seal else None,
        current=found.current,
        python=seal.python if seal else None,
        pythons=manifest.pythons if manifest else (),
        verdict=last.verdict if last else "unknown",
        schema_versions=manifest.schema_versions if manifest else None,
        understands_store=bool(manifest and look.schema is not None and understands(manifest, look.schema)),
        may_roll_back=not reasons,
        why_not="; ".join(reasons) or None,
    )


def _reasons(found: InstalledRelease, look: _Look, last: Judged | None) -> list[str]:
    if found.current:
        return ["it is the current release"]
    if found.seal is None:
        return ["its installation was never finished"]
    told = altered(found.folder)
    if found.manifest is None:
        return told
    if look.schema is None:
        return [*told, f"the store cannot be looked at: {look.problem}"]
    ground = Ground(look.schema, authority.CONTRACT, look.floors)
    return told + [one.observed for one in may_go_back(found.manifest, ground, last)]


def altered(folder: Path) -> list[str]:
    """How an installed release differs from what was sealed, in one sentence; empty for a whole one."""
    found = verify(folder, must_be_installed=True).differences
    if not found:
        return []
    shown = ", ".join(f"{one.path} {one.problem}" for one in found[:_SHOWN])
    more = len(found) > _SHOWN
    return [f"it was altered since: {shown}" + (f" and {len(found) - _SHOWN} more" if more else "")]
