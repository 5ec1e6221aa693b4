"""Whether the old release may take a store over by itself that the target has migrated or worked on."""

from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations.kept import Ground, altered, floors, may_go_back
from standfast.operations.verdicts import read_record
from standfast.release.installed import read_manifest


def why_not(layout: Layout, *, target: str, old: str, schema: dict[str, int]) -> list[str]:
    """Every reason against an automatic code rollback from `target` to `old`; none: it is lawful."""
    try:
        left, kept = read_manifest(layout.releases / target), read_manifest(layout.releases / old)
        record = read_record(layout)
    except (BadInput, Refused) as error:
        return [str(error)]
    unreviewed = (
        [] if old in left.reviewed_fallbacks else ["nobody has reviewed it as a fallback of the target"]
    )
    ground = Ground(schema, left.authority_contract, floors(record, left))
    objections = may_go_back(kept, ground, record.latest(old) if record else None)
    return [*unreviewed, *altered(layout.releases / old), *(one.observed for one in objections)]
