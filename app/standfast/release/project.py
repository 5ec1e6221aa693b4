"""What the packed source's own files say: pyproject.toml and the locks beside it."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from standfast.errors import BadInput, Refused
from standfast.release.lock import Pin, merged, parse, render
from standfast.release.manifest import LOCK, ReleaseId, Version
from standfast.release.targets import Target

_DEV_LOCK = "requirements-dev.lock"


class _Table(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class BuildSystem(_Table):
    """`[build-system]`."""

    requires: tuple[Annotated[str, Field(pattern=r"^hatchling==[0-9.]+$")]]
    """One back end, pinned: another version might write other bytes."""


class Metadata(_Table):
    """`[project]`."""

    name: Literal["standfast"]
    version: Version
    requires_python: Annotated[str, Field(alias="requires-python", pattern=r"^>=3\.[0-9]+$")]
    optional_dependencies: Annotated[dict[str, list[str]], Field(alias="optional-dependencies")] = {}


class ReviewedFacts(BaseModel):
    """`[tool.standfast.release]`: what no program can find out, so that a review has to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollback_floor: Annotated[Version, Field(alias="rollback-floor")]
    reviewed_fallbacks: Annotated[tuple[ReleaseId, ...], Field(alias="reviewed-fallbacks")] = ()


class _Standfast(BaseModel):
    release: ReviewedFacts


class _Tool(_Table):
    standfast: _Standfast


class Project(_Table):
    """pyproject.toml, as far as a release depends on it."""

    build_system: Annotated[BuildSystem, Field(alias="build-system")]
    project: Metadata
    tool: _Tool

    @property
    def version(self) -> str:
        """The package's version."""
        return self.project.version

    @property
    def reviewed(self) -> ReviewedFacts:
        """What a review decided."""
        return self.tool.standfast.release

    @property
    def backend(self) -> str:
        """The version of hatchling that builds the wheel."""
        return self.build_system.requires[0].partition("==")[2]

    def check_target(self, target: Target) -> None:
        """Refused `python_unsupported` when the package does not run there."""
        if not SpecifierSet(self.project.requires_python).contains(f"{target.python}.0"):
            raise Refused(
                "python_unsupported",
                f"standfast {self.version} does not run on Python {target.python}",
                observed=f"requires-python is {self.project.requires_python}",
                remedy="name a Python of that range",
            )

    def check_extras(self, extras: tuple[str, ...]) -> None:
        """Refused `extra_unknown` for a name that the project does not define."""
        defined = sorted(self.project.optional_dependencies)
        if unknown := sorted(set(extras) - set(defined)):
            raise Refused(
                "extra_unknown",
                f"standfast {self.version} has no extra {', '.join(unknown)}",
                observed=f"defined: {', '.join(defined) or 'none'}",
                remedy="leave it out, or name a defined one",
            )


def read_project(folder: Path) -> Project:
    """The pyproject.toml of a source tree; BadInput naming the fields that a release cannot do with."""
    try:
        found = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        return Project.model_validate(found)
    except FileNotFoundError:
        raise BadInput("the tree has no pyproject.toml: it is not a source of standfast") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"pyproject.toml: {error}") from None
    except ValidationError as error:
        told = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise BadInput(f"pyproject.toml: {'; '.join(told)}") from None


def read_lock(folder: Path, extras: tuple[str, ...]) -> tuple[bytes, tuple[Pin, ...]]:
    """The dependency lock of a release with these extras: its bytes and its pins.

    Without extras it is requirements.lock as reviewed. Each extra has a lock that is complete in itself,
    `requirements-<extra>.lock`; several are merged and must agree.
    """
    if not extras:
        data = _read(folder, LOCK)
        return data.encode(), parse(data, LOCK)
    names = [LOCK, *(f"requirements-{extra}.lock" for extra in sorted(set(extras)))]
    pins = merged(parse(_read(folder, name), name) for name in names)
    return render(pins).encode(), pins


def read_installer(folder: Path) -> Pin:
    """The pip that installs a release, as the development lock pins it."""
    for pin in parse(_read(folder, _DEV_LOCK), _DEV_LOCK):
        if pin.name == "pip":
            return pin
    raise BadInput(f"{_DEV_LOCK} does not pin pip, which installs a release on its host")


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text("utf-8")
    except FileNotFoundError:
        raise BadInput(f"the tree has no {name}; run script/lock and commit it") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: {error}") from None
