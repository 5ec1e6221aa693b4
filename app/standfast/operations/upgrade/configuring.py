"""`upgrade configure`: agent.env and shop.toml change through the same gate as the code does.

Checked first; the bytes of before are kept beside the journal (0600, gone at the end); placed while the
service is stopped; started once; and a canary must be finished, or the files of before are put back and the
service is started on them. What agent.env holds is in no journal, no result and no message.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from standfast.durable import sync_folder, write_file
from standfast.errors import BadInput, ConfigurationInvalid, Refused
from standfast.layout import Layout, running_release
from standfast.operations import environment
from standfast.operations.initialise import initialise_instance
from standfast.operations.unit import seconds
from standfast.operations.upgrade.beginning import (
    Asked,
    begin,
    foreseen,
    opened,
    refuse_inactive,
    refuse_other_end,
    runs,
    schema_seen,
)
from standfast.operations.upgrade.falling_back import go_back
from standfast.operations.upgrade.journal import Journal
from standfast.operations.upgrade.manager import Manager
from standfast.operations.upgrade.result import Switch
from standfast.operations.upgrade.switching import StepFailed, Tell
from standfast.shop import config
from standfast.shop.config import ShopConfig

MODE = 0o600

type Agreed = Callable[[ShopConfig, Mapping[str, str], float | None], object]
"""`serve.settings.agreed`, which lies above this layer."""


@dataclass(frozen=True)
class Wanted:
    """The new configuration; what is None stays as it is."""

    pairs: Mapping[str, str] | None = None
    """Of agent.env, validated."""
    shop: str | None = None
    """The text of shop.toml, validated."""
    read: ShopConfig | None = None
    """What that text says."""
    adopt: bool = False
    """Also over an agent.env that was edited by hand."""

    @classmethod
    def of(cls, *, pairs: bytes | None, shop: Path | None, adopt: bool) -> "Wanted":
        """From what was given; BadInput names a key or a field, and never a value."""
        text, read = (None, None) if shop is None else _shop(shop)
        return cls(None if pairs is None else environment.read_pairs(pairs), text, read, adopt)

    def refuse_unusable(self, layout: Layout, agreed: Agreed) -> None:
        """Raise BadInput where the service would not start with this and with what stays as it is."""
        given = environment.given(layout) if self.pairs is None else self.pairs
        try:
            agreed(self.read or config.load(layout.shop), given, seconds("WatchdogSec"))
        except ConfigurationInvalid as error:
            raise BadInput(str(error)) from error


def _shop(path: Path) -> tuple[str, ShopConfig]:
    try:
        read = config.load(path)
        return path.read_text("utf-8"), read
    except (ConfigurationInvalid, OSError) as error:
        raise BadInput(str(error)) from error


class Files:
    """The two files, and their bytes of before."""

    def __init__(self, layout: Layout, wanted: Wanted) -> None:
        self._layout, self._wanted = layout, wanted

    @property
    def _pairs(self) -> list[tuple[Path, Path]]:
        """Each file, and where its bytes of before are kept."""
        found = (self._layout.environment, self._layout.shop)
        return [(path, path.with_name(f"upgrade.kept.{path.name}")) for path in found]

    def differs(self) -> bool:
        """Whether anything would change. Raises Refused as `environment.write`."""
        pairs, shop = self._wanted.pairs, self._wanted.shop
        env = pairs is not None and self._write(pairs, check=True)
        return env or (shop is not None and shop.encode() != self._layout.shop.read_bytes())

    def keep(self) -> None:
        """Put the bytes of before aside, on disk."""
        for path, kept in self._pairs:
            write_file(kept, path.read_bytes(), MODE)

    def place(self) -> None:
        """Put the new ones in place, and complete the store from them as `init` does."""
        if self._wanted.pairs is not None:
            self._write(self._wanted.pairs, check=False)
        if self._wanted.shop is not None:
            write_file(self._layout.shop, self._wanted.shop.encode(), MODE)
        initialise_instance(self._layout, now=time.time())

    def put_back(self) -> None:
        """Those of before are in place again; done already where nothing is kept."""
        for path, kept in self._pairs:
            if _differ(path, kept):  # else it needs no room
                write_file(path, kept.read_bytes(), MODE)
        initialise_instance(self._layout, now=time.time())

    def owed(self) -> bool:
        """Whether bytes of before are kept, and others are in place."""
        return any(_differ(*pair) for pair in self._pairs)

    def forget(self) -> None:
        """The bytes of before are gone."""
        for _, kept in self._pairs:
            kept.unlink(missing_ok=True)
        sync_folder(self._layout.state)

    def _write(self, pairs: Mapping[str, str], *, check: bool) -> bool:
        return environment.write(self._layout, pairs, adopt=self._wanted.adopt, check=check).changed


def _differ(path: Path, kept: Path) -> bool:
    return kept.exists() and kept.read_bytes() != path.read_bytes()


def configure(
    layout: Layout,
    wanted: Wanted,
    asked: Asked,
    agreed: Agreed,
    *,
    tell: Tell,
    manager: Manager | None = None,
    check: bool = False,
) -> Switch:
    """Change the configuration, and see the service work with it; or put the one of before back.

    One that was cut short is put back first. With nothing touched: BadInput when nothing is wanted, or
    when the service would not start with it; Refused `not_running`, `upgrade_at_work`, `upgrade_unfinished`,
    and what `refuse_inactive` and `environment.write` say.
    """
    files = Files(layout, wanted)
    with opened(layout, manager, check=check) as opening:
        own, text = opening.own, opening.own_unit
        if (found := opening.unfinished) is not None:
            refuse_other_end(found, "configure", own.id)
        else:
            if wanted.pairs is None and wanted.shop is None:
                raise BadInput("name what is to change: --env - with pairs on stdin, --shop FILE, or both")
            if not files.differs():
                return _unchanged(layout, asked, opening.last, text, check=check)
            wanted.refuse_unusable(layout, agreed)
            _refuse_not_running(layout, opening.manager, text)
            found = _begun(layout, asked, text)
        if check:
            return foreseen(found, text)
        work = opening.switching(found, asked, tell, old=own, new=own, new_unit=text, files=files)
        if opening.unfinished is None:
            files.forget()  # what a run left that died at its very end
            return begin(work)
        work.resumed_from = found.step
        work.resumed_because = "a change of the configuration was cut short: the one of before is put back"
        because = found.reason or "it was cut short"
        return go_back(work, StepFailed(found.failed or found.step, because, found.code))


def _refuse_not_running(layout: Layout, manager: Manager, text: str) -> None:
    refuse_inactive(layout)
    state = manager.look()
    if not runs(manager, state, running_release(), text):
        raise Refused(
            "not_running",
            "only a running service of this release can show that a configuration works",
            observed=f"{manager.unit} is {state.told()}",
            remedy="run the command of the release that the unit names; start the service first",
        )


def _unchanged(layout: Layout, asked: Asked, last: Journal | None, text: str, *, check: bool) -> Switch:
    """It is in place already; what an earlier change had to say is said again, for it may be untold."""
    said = last.result if last is not None and last.outcome == "configured" else None
    said = said or foreseen(_begun(layout, asked, text), text)
    return said.model_copy(update={"changed": False, "check": check, "main_pid": None})


def _begun(layout: Layout, asked: Asked, text: str) -> Journal:
    return Journal(
        operation="configure",
        run_id=asked.run_id,
        release_from=running_release(),
        release_to=running_release(),
        step="facts",
        was_active=True,
        unit_before=text,
        schema_before=schema_seen(layout),
    )
