"""Why a state directory must be left alone: its marker is not this epoch's, or not this host's."""

from standfast.authority import Operations
from standfast.authority import marker as markers
from standfast.layout import Layout


def not_ours(control: Operations, layout: Layout, host: str) -> str:
    """Why nothing may be done with it here; empty when it may, unless it is paused."""
    marker = markers.read(layout.marker)
    if marker is None:
        return "authority marker is unavailable; see `standfast adopt`"
    if marker.epoch != control.epoch:
        return "the marker and the store name different epochs; see `standfast adopt`"
    if marker.host != host:
        return "the state directory belongs to another host; `standfast adopt` takes it over"
    return ""
