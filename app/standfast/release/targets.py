"""The hosts that a release carries wheels for: a CPython X.Y on Linux with glibc 2.28 or newer."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from standfast.release.manifest import Manifest, Platform
from standfast.release.markers import applies

GLIBC = (2, 28)
"""What Debian 10, Ubuntu 20.04 and everything later have."""

_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PYTHON = re.compile(r"(cp|py)3([0-9]*)")
_PLATFORM = re.compile(r"(?:manylinux_([0-9]+)_([0-9]+)|(manylinux(?:1|2010|2014)))_(.+)")


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


@dataclass(frozen=True)
class Target:
    """One Python on one platform."""

    python: str
    """X.Y"""
    platform: Platform

    def __str__(self) -> str:
        return f"Python {self.python} on {self.platform}"

    @property
    def minor(self) -> int:
        """Y of X.Y."""
        return int(self.python.partition(".")[2])

    def needs(self, marker: str) -> bool:
        """Whether any patch release of this Python needs a requirement with that marker."""
        return any(applies(marker, environment(f"{self.python}.{patch}", self.platform)) for patch in (0, 99))

    def accepts(self, wheel: str) -> bool:
        """Whether a wheel of that file name can be installed here (PEP 425, 600)."""
        parts = wheel.removesuffix(".whl").split("-")
        if len(parts) not in {5, 6}:
            return False
        pythons, abis, platforms = (part.split(".") for part in parts[-3:])
        return any(
            self._accepts_python(python, abi) and self._accepts_platform(tag, abi)
            for python, abi, tag in product(pythons, abis, platforms)
        )

    def _accepts_python(self, python: str, abi: str) -> bool:
        match = _PYTHON.fullmatch(python)
        if match is None:
            return False
        minor = int(match[2]) if match[2] else None
        if match[1] == "py":
            return abi == "none" and (minor is None or minor <= self.minor)
        if minor == self.minor:
            return abi in {f"cp3{minor}", "abi3", "none"}
        return abi == "abi3" and minor is not None and minor < self.minor

    def _accepts_platform(self, tag: str, abi: str) -> bool:
        if tag == "any":
            return abi == "none"
        match = _PLATFORM.fullmatch(tag)
        if match is None or match[4] != self.platform:
            return False
        return (_LEGACY[match[3]] if match[3] else (int(match[1]), int(match[2]))) <= GLIBC

    def pip_options(self) -> list[str]:
        """How pip is asked for wheels of this target."""
        names = [f"manylinux_{GLIBC[0]}_{GLIBC[1]}", "manylinux_2_17", "manylinux2014"]
        platforms = [option for name in names for option in ("--platform", f"{name}_{self.platform}")]
        return ["--implementation", "cp", "--python-version", self.python, *platforms]


def targets(pythons: Iterable[str], platforms: Iterable[Platform]) -> list[Target]:
    """Each named Python on each named platform."""
    named = list(platforms)
    return [Target(python, platform) for python in pythons for platform in named]


def declared(manifest: Manifest) -> list[Target]:
    """The targets that a release says it serves."""
    return targets(manifest.pythons, manifest.platforms)
