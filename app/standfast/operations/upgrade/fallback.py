"""Whether the old release may take a store over that the target has migrated or worked on."""

from standfast.errors import BadInput
from standfast.layout import Layout
from standfast.release.installed import read_manifest


def why_not(layout: Layout, *, target: str, old: str, schema: dict[str, int]) -> list[str]:
    """Every reason against an automatic code rollback from `target` to `old`; none: it is lawful."""
    try:
        new, kept = read_manifest(layout.releases / target), read_manifest(layout.releases / old)
    except BadInput as error:
        return [str(error)]
    reasons = []
    if old not in new.reviewed_fallbacks:
        reasons.append("nobody has reviewed it as a fallback of the target")
    if kept.schema_versions != schema:
        reasons.append(f"it understands the schema {kept.schema_versions}, and the store is at {schema}")
    if kept.authority_contract != new.authority_contract:
        reasons.append(
            f"it honours authority contract {kept.authority_contract}, the target {new.authority_contract}"
        )
    return reasons
