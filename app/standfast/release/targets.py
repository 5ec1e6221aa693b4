"""The hosts that a release carries wheels for: a CPython X.Y on Linux with glibc 2.28 or newer."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from packaging import tags
from packaging.markers import InvalidMarker, Marker
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from standfast.errors import BadInput
from standfast.release.manifest import Manifest, Platform

GLIBC = (2, 28)
"""What Debian 10, Ubuntu 20.04 and everything later have."""

_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
"""The minor version that the first manylinux wheels of a platform were made for."""
_LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}


def environment(python_full_version: str, platform: str) -> dict[str, str]:
    """The marker variables of a CPython on Linux."""
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": python_full_version,
        "os_name": "posix",
        "platform_machine": platform,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": python_full_version,
        "python_version": ".".join(python_full_version.split(".")[:2]),
        "sys_platform": "linux",
    }


def applies(marker: str, environment: dict[str, str]) -> bool:
    """Whether a requirement with this marker (empty: always) is needed there; BadInput for no marker."""
    try:
        return not marker or Marker(marker).evaluate(environment)
    except InvalidMarker as error:
        raise BadInput(f"marker {marker!r} is not understood") from error


@dataclass(frozen=True)
class Target:
    """One Python on one platform."""

    python: str
    """X.Y"""
    platform: Platform

    def __str__(self) -> str:
        return f"Python {self.python} on {self.platform}"

    def needs(self, marker: str) -> bool:
        """Whether any patch release of this Python needs a requirement with that marker."""
        return any(applies(marker, environment(f"{self.python}.{patch}", self.platform)) for patch in (0, 99))

    def accepts(self, wheel: str) -> bool:
        """Whether a wheel of that file name can be installed here (PEP 425, 600)."""
        try:
            return not self._tags.isdisjoint(parse_wheel_filename(wheel)[3])
        except InvalidWheelFilename:
            return False

    @cached_property
    def _tags(self) -> frozenset[tags.Tag]:
        major, minor = (int(part) for part in self.python.split("."))
        platforms = [f"{name}_{self.platform}" for name in _manylinux(self.platform)]
        return frozenset(
            [
                *tags.cpython_tags((major, minor), [f"cp{major}{minor}"], platforms),
                *tags.compatible_tags((major, minor), f"cp{major}{minor}", platforms),
            ]
        )

    def pip_options(self) -> list[str]:
        """How pip is asked for wheels of this target."""
        names = [f"manylinux_{GLIBC[0]}_{GLIBC[1]}", "manylinux_2_17", "manylinux2014"]
        platforms = [option for name in names for option in ("--platform", f"{name}_{self.platform}")]
        return ["--implementation", "cp", "--python-version", self.python, *platforms]


def _manylinux(platform: Platform) -> list[str]:
    """Every manylinux name that GLIBC satisfies, the old names too."""
    minors = range(GLIBC[1], _OLDEST_GLIBC[platform] - 1, -1)
    return [name for n in minors for name in (f"manylinux_{GLIBC[0]}_{n}", _LEGACY.get(n)) if name]


def targets(pythons: Iterable[str], platforms: Iterable[Platform]) -> list[Target]:
    """Each named Python on each named platform."""
    named = list(platforms)
    return [Target(python, platform) for python in pythons for platform in named]


def declared(manifest: Manifest) -> list[Target]:
    """The targets that a release says it serves."""
    return targets(manifest.pythons, manifest.platforms)
