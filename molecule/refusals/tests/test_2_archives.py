"""An archive that is not what it should be is refused, naming the file, and nothing of it is copied.

So is one for another Python than the host's.
"""

import re
import shutil

import pytest
from archives import consistent, new_key, sign

WHEEL = "wheels/pydantic_core-"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("archives")


def test_a_truncated_one(bare, refused, controller, folder):
    archive = folder / controller.archive.name
    archive.write_bytes(controller.archive.read_bytes()[: 4_000_000 - 17])
    refused(
        bare,
        [f"the archive {archive} is not a good release", ": truncated", "nothing was copied"],
        {"release_archive": str(archive)},
    )


def test_one_changed_byte(bare, refused, controller, folder):
    archive = folder / controller.archive.name
    data = bytearray(controller.archive.read_bytes())
    header = re.search(rb"wheels/pydantic_core-[^\0\"]+cp313[^\0\"]+whl\0", data)
    data[header.start() + 512 + 100_000] ^= 1
    archive.write_bytes(data)
    name = header.group().decode().rstrip("\0")
    said = [f"the archive {archive} is not a good release: {name}: changed (sha256 "]
    refused(bare, said, {"release_archive": str(archive)})


def test_without_the_wheel_that_the_hosts_python_needs(bare, refused, controller, folder):
    """Its manifest is consistent, so only a look at the lock can tell."""
    archive = consistent(
        controller.archive,
        folder / "no-core.tar",
        lambda name: not (name.startswith(WHEEL) and "cp313" in name),
    )
    refused(
        bare,
        ["wheels/: wheel_missing (pydantic-core==", "for Python 3.13 on x86_64"],
        {"release_archive": str(archive)},
    )


def test_built_for_another_python_than_the_hosts(bare, refused, controller, folder):
    archive = consistent(
        controller.archive, folder / "only-312.tar", lambda name: "-cp313-" not in name, pythons=("3.12",)
    )
    refused(
        bare,
        ["python: found /usr/bin/python3 3.13", "this release needs CPython 3.12 with venv"],
        {"release_archive": str(archive)},
    )


@pytest.fixture(scope="module")
def demanded(controller, folder):
    """A copy of the archive, and an inventory that demands a signature of it by the key `ours`."""
    shutil.copy(controller.archive, folder / "signed.tar")
    new_key(folder / "other")
    ours = new_key(folder / "ours").with_suffix(".pub").read_text()
    (folder / "signers").write_text(f"releases@lucy {ours}")
    return {
        "release_archive": str(folder / "signed.tar"),
        "release_require_signature": True,
        "release_allowed_signers": str(folder / "signers"),
        "release_signer": "releases@lucy",
    }


def test_a_signature_that_is_missing_or_anothers(bare, refused, folder, demanded):
    refused(bare, ["signed.tar.sig: signature_missing (a signature is required)"], demanded)
    sign(folder / "signed.tar", folder / "other")
    refused(bare, ["signed.tar.sig: signature_wrong ("], demanded)


def test_debian_12_has_too_old_a_python(hosts, refused, folder, demanded):
    """The row of the matrix for Debian 12: Python 3.11. The archive with our signature got so far."""
    sign(folder / "signed.tar", folder / "ours")
    found, needed = "found /usr/bin/python3 3.11.", "CPython 3.12 or 3.13 with venv, sqlite3 and ssl"
    refused(hosts["old"], [f"python: {found}", f"this release needs {needed}"], demanded)
