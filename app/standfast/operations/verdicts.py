"""What root's own record says of the releases of this instance; only root writes it, hostcheck does."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from standfast.errors import Refused
from standfast.layout import Layout

RECORDS = Path("/var/lib/standfast/records")

type Verdict = Literal["good", "bad", "unknown"]


class Floor(BaseModel):
    """No version below this one may take the store over."""

    model_config = ConfigDict(frozen=True)

    version: str
    release: str
    """The release that set it."""


class Judged(BaseModel):
    """One verdict on one release."""

    release: str
    version: str | None = None
    floor: str | None = None
    """The rollback floor of that release."""
    at: str
    verdict: Literal["good", "bad"]
    why: str = ""


class Record(BaseModel):
    """The part of the record that a release is told. What else is in it is root's business."""

    model_config = ConfigDict(extra="ignore")

    units: list[str] = Field(default_factory=list)
    """sha256 of each text of the service's unit that an install or an upgrade placed."""
    history: list[Judged] = Field(default_factory=list)
    """Oldest first."""
    floor: Floor | None = None
    """The highest rollback floor of any release that was ever shown to work here."""

    def latest(self, release: str) -> Judged | None:
        """The last verdict on a release; None when there was none."""
        return next((one for one in reversed(self.history) if one.release == release), None)


def read_record(layout: Layout, path: Path | None = None) -> Record | None:
    """The record of the instance, by default where hostcheck keeps it; None when there is none.

    Raises Refused `record_unreadable`: without it nobody knows how far back a release may go.
    """
    path = path or RECORDS / f"{layout.instance().instance}.json"
    try:
        return Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise Refused(
            "record_unreadable",
            f"{path} does not say which releases worked here",
            observed=str(error).splitlines()[0],
            remedy="see who changed it: only an install, an upgrade or a rollback writes it, as root",
        ) from error
