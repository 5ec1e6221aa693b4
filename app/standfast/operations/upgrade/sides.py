"""The two releases of a switch, each spoken for by its own code.

The release that runs this process speaks for itself; any other is asked through its own interpreter, whose
code alone knows its unit and can finish a canary against its schema.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from standfast.errors import StandfastError
from standfast.layout import Layout, running_release
from standfast.operations import canary as canaries
from standfast.operations.canary import CanaryResult, Expectation, Flight
from standfast.operations.unit import describe
from standfast.operations.upgrade.manager import environment
from standfast.operations.upgrade.result import Proof

_STARTS = 20.0
"""Seconds that a command of another release may take beyond what it waits for."""


class ReleaseFailed(StandfastError):
    """A command of another release did not do what was asked; the message says what it said."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or "failed"


class Side(Protocol):
    """One release of a switch."""

    @property
    def id(self) -> str:
        """The release's id."""

    def unit_text(self) -> str:
        """What it writes for the service of this instance."""

    def ask(self) -> Flight | None:
        """Ask for the canary already before a process of this release starts: its first pass finds it.

        None: this release can only be asked once it runs.
        """

    def canary(self, pid: int, timeout: float, flight: Flight | None = None) -> Proof:
        """Let that process of this release finish a fresh unit of work, or the one that was asked for."""


@dataclass(frozen=True)
class Own:
    """The release that runs this process."""

    layout: Layout

    @property
    def id(self) -> str:
        """As in its manifest."""
        return running_release()

    def unit_text(self) -> str:
        """Raises Refused as `unit.describe`."""
        return describe(self.layout, None).text

    def ask(self) -> Flight:
        """Raises Refused as `canary.ask`."""
        return canaries.ask(self.layout)

    def canary(self, pid: int, timeout: float, flight: Flight | None = None) -> Proof:
        """Raises Refused and CanaryFailed as `canary.run`."""
        expect = Expectation(pid=pid, release=self.id)
        asked = flight or self.ask()
        return _proof(canaries.land(self.layout, asked, timeout=timeout, expect=expect))


@dataclass(frozen=True)
class Other:
    """Another release of the same root."""

    layout: Layout
    id: str

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return self.layout.releases / self.id

    def unit_text(self) -> str:
        """Raises ReleaseFailed."""
        return str(self._json("unit")["text"])

    def ask(self) -> None:
        """Its own command asks and waits in one."""

    def canary(self, pid: int, timeout: float, flight: Flight | None = None) -> Proof:
        """Raises ReleaseFailed."""
        assert flight is None
        told = self._json(
            "canary",
            f"--timeout={timeout:g}",
            f"--expect-pid={pid}",
            f"--expect-release={self.id}",
            within=timeout,
        )
        return _proof(CanaryResult.model_validate(told))

    def _json(self, *words: str, within: float = 0.0) -> dict[str, Any]:
        python = self.folder / "venv/bin/python"
        command = [str(python), "-I", "-m", "standfast", "--state", str(self.layout.state), "--json", *words]
        try:
            done = subprocess.run(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=within + _STARTS,
                start_new_session=True,
                check=False,
            )
            told = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            raise ReleaseFailed(f"`{words[0]}` of release {self.id} did not end") from None
        except (OSError, ValueError) as error:
            raise ReleaseFailed(f"`{words[0]}` of release {self.id} cannot be run: {error}") from None
        if done.returncode:
            refused = told.get("refused") or {}
            said = refused.get("reason") or f"exit {done.returncode}"
            raise ReleaseFailed(f"`{words[0]}` of release {self.id}: {said}", refused.get("code"))
        return dict(told)


def side(layout: Layout, release: str) -> Side:
    """Who speaks for a release."""
    return Own(layout) if release == running_release() else Other(layout, release)


def _proof(told: CanaryResult) -> Proof:
    assert told.work is not None
    assert told.generation is not None
    assert told.seconds is not None
    assert told.run is not None
    return Proof(work=told.work, generation=told.generation, seconds=told.seconds, run=told.run)
