"""The lines of a measurement and the table that a person reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench_machine import FOREIGN_BOUND, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench_machine import Round


WIDTH = 66


@dataclass(frozen=True)
class Line:
    """One figure with what was promised for it."""

    what: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    """None where nothing was promised."""
    detail: str = ""
    loaded: bool = False
    """It could only be taken beside more foreign work than allowed."""

    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return {**asdict(self), "value": round(self.value, 4)}


@dataclass(frozen=True)
class Measured:
    """What one measure found."""

    lines: list[Line]
    rounds: list[Round]
    notes: list[str]


def at_most(
    what: str, value: float, bound: float, unit: str, rounds: Sequence[Round], *, detail: str = ""
) -> Line:
    """A figure that should not be above ``bound``."""
    return Line(what, value, unit, f"<= {bound:g}", value <= bound, detail, loaded(rounds))


def at_least(
    what: str, value: float, bound: float, unit: str, rounds: Sequence[Round], *, detail: str = ""
) -> Line:
    """A figure that should not be below ``bound``."""
    return Line(what, value, unit, f">= {bound:g}", value >= bound, detail, loaded(rounds))


def told(what: str, value: float, unit: str, rounds: Sequence[Round], detail: str = "") -> Line:
    """A figure for which nothing was promised."""
    return Line(what, value, unit, detail=detail, loaded=loaded(rounds))


def loaded(rounds: Sequence[Round]) -> bool:
    """Whether the medians had to be taken over marked rounds too."""
    return any(one.marked for one in counted(rounds))


def rendered(report: dict[str, Any], lines: Sequence[Line]) -> str:
    """The table, under what it was measured on."""
    machine = report["machine"]
    clean = "" if machine["clean"] else ", with changes"
    rows = [
        "",
        f"{machine['processor']}, {machine['cores']} cores; Linux {machine['kernel']}",
        f"{machine['file_system']}",
        f"Python {machine['python']}, SQLite {machine['sqlite']}; commit {machine['commit'][:8]}{clean}",
        "",
        f"{'':{WIDTH}} {'measured':>10} {'':9} {'target':>9}",
    ]
    for line in lines:
        verdict = {None: "", True: "met", False: "MISSED"}[line.met]
        beside = ", ".join(filter(None, (verdict, "loaded" if line.loaded else "", line.detail)))
        rows.append(
            f"{line.what:{WIDTH}} {_number(line.value):>10} {line.unit:9} {line.target:>9}  {beside}".rstrip()
        )
    rows.append("")
    for name, measure in report["measures"].items():
        marked = sum(one["marked"] for one in measure["rounds"])
        rows.append(
            f"{name}: load {measure['before']['load']:.1f} before and {measure['load_after']:.1f} after,"
            f" foreign CPU before {100 * measure['before']['foreign']:.0f} % of a core,"
            f" {marked} of {len(measure['rounds'])} rounds over {100 * FOREIGN_BOUND:.0f} %"
        )
        rows += [f"  {note}" for note in measure["notes"]]
    return "\n".join(rows)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - three digits are enough
