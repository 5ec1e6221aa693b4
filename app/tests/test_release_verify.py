"""Verifying: every way in which a release can be wrong is named, and nothing is ever extracted."""

import gzip
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_world import World, make_world

from standfast.errors import BadInput, Refused, StandfastError
from standfast.release import contents as release_contents
from standfast.release.contents import from_archive, pack
from standfast.release.manifest import FileEntry, Manifest, sha256
from standfast.release.signature import NAMESPACE, Policy
from standfast.release.verify import ReleaseVerification, verify

PURE = "wheels/pure-1.0-py2.py3-none-any.whl"
NATIVE = "wheels/native-2.0-cp313-cp313-manylinux_2_28_x86_64.whl"
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("world"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(made.links))
        made.build()
    return made


@pytest.fixture(scope="module")
def built(world: World) -> bytes:
    (path,) = world.dist.glob("*.tar")
    return path.read_bytes()


@pytest.fixture
def files(built: bytes) -> Files:
    found = from_archive(built, "built")
    assert not found.differences
    return found.files


@pytest.fixture
def checked(tmp_path: Path) -> Callable[[bytes], ReleaseVerification]:
    def check(data: bytes) -> ReleaseVerification:
        path = tmp_path / "release.tar"
        path.write_bytes(data)
        before = sorted(path.name for path in tmp_path.iterdir())
        found = verify(path)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        assert found.archive_sha256 == sha256(data)
        assert found.verified == (not found.differences)
        return found

    return check


Checked = Callable[[bytes], ReleaseVerification]


def problems(found: ReleaseVerification) -> set[tuple[str, str]]:
    return {(difference.path, difference.problem) for difference in found.differences}


def sealed_again(files: Files, **facts: object) -> bytes:
    """An archive whose manifest is consistent in itself, as a careful forger would make it."""
    manifest = Manifest.model_validate_json(files["manifest.json"])
    entries = {
        path: FileEntry(sha256=sha256(data), size=len(data))
        for path, data in files.items()
        if path != "manifest.json"
    }
    made = manifest.model_copy(update={"files": entries, **facts}).identified()
    return pack({**files, "manifest.json": made.render()})


def test_what_was_built_verifies(built: bytes, files: Files, checked: Checked) -> None:
    found = checked(built)
    assert found.verified
    assert found.manifest is not None
    assert found.release_id == found.manifest.release_id
    assert found.manifest.files.keys() == files.keys() - {"manifest.json"}
    assert checked(sealed_again(files)).verified


def test_every_single_changed_byte_is_found(built: bytes, checked: Checked) -> None:
    """One byte of each 512-byte block: headers, files, padding and the end of the archive."""
    for offset in range(0, len(built), 512):
        position = offset + (offset // 512 * 37) % 512
        changed = bytearray(built)
        changed[position] ^= 0x01
        assert not checked(bytes(changed)).verified, position


def test_every_truncation_is_found(built: bytes, checked: Checked) -> None:
    for length in (*range(0, len(built), 1777), len(built) - 1, len(built) - 512, len(built) - 1024):
        found = checked(built[:length])
        assert not found.verified
        assert "truncated" in {difference.problem for difference in found.differences}, length


def test_anything_appended_is_found(built: bytes, checked: Checked) -> None:
    for more in (b"\0", b"\0" * 10240, b"x", built):
        assert problems(checked(built + more)) == {("release.tar", "malformed")}


def test_a_changed_file_is_named(files: Files, checked: Checked) -> None:
    files[PURE] = files[PURE][:-1] + b"!"
    assert problems(checked(pack(files))) == {(PURE, "changed")}


def test_a_shortened_file_is_named(files: Files, checked: Checked) -> None:
    files[PURE] = files[PURE][:-9]
    assert problems(checked(pack(files))) == {(PURE, "truncated")}


def test_missing_and_extra_files_are_named(files: Files, checked: Checked) -> None:
    data = files.pop(PURE)
    files["wheels/other-1.0-py3-none-any.whl"] = data
    assert problems(checked(pack(files))) == {
        (PURE, "missing"),
        ("wheels/other-1.0-py3-none-any.whl", "extra"),
    }


@pytest.mark.parametrize("name", ["manifest.json", "requirements.lock", "app.lock"])
def test_each_part_is_needed(files: Files, checked: Checked, name: str) -> None:
    del files[name]
    assert problems(checked(pack(files))) == {(name, "missing")}


def test_another_lock_is_found_even_under_a_consistent_manifest(files: Files, checked: Checked) -> None:
    files["requirements.lock"] += b"# reviewed by nobody\n"
    assert problems(checked(sealed_again(files))) == {("requirements.lock", "lock_sha256")}


def test_another_app_wheel_needs_its_lock(files: Files, checked: Checked) -> None:
    app = "wheels/standfast-1.2.3-py3-none-any.whl"
    files[app] += b"!"
    found = problems(checked(sealed_again(files)))
    assert ("app.lock", "changed") in found
    assert (app, "wheel_unlocked") in found


def test_a_manifest_edited_by_hand_no_longer_has_its_id(files: Files, checked: Checked) -> None:
    for old, new in (
        (b'"1.1.0"', b'"1.0.0"'),
        (b'"clean": true', b'"clean": false'),
        (b'"work": 3', b'"work": 2'),
    ):
        edited = files["manifest.json"].replace(old, new)
        assert edited != files["manifest.json"]
        assert problems(checked(pack({**files, "manifest.json": edited}))) == {
            ("manifest.json", "release_id")
        }


def test_a_manifest_written_in_another_way_is_found(files: Files, checked: Checked) -> None:
    compact = json.dumps(json.loads(files["manifest.json"])).encode()
    twice = files["manifest.json"].replace(b'"format": 1,', b'"format": 1, "format": 1,')
    for written in (compact, twice):
        assert problems(checked(pack({**files, "manifest.json": written}))) == {("manifest.json", "changed")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format": 1', b'"format": 2'),
        (b'"format": 1', b'"format": 1, "more": 1'),
        (b'"wheels/pure', b'"../wheels/pure'),
        (b'"3.12"', b'"3.12; rm -rf"'),
        (b"{", b"["),
        (b'"release_id": "1', b'"release_id": "/../1'),
    ],
)
def test_a_malformed_manifest_is_named(files: Files, checked: Checked, old: bytes, new: bytes) -> None:
    files["manifest.json"] = files["manifest.json"].replace(old, new, 1)
    found = checked(pack(files))
    assert problems(found) == {("manifest.json", "malformed")}
    assert found.manifest is None


def test_a_missing_wheel_of_one_python_is_found_under_a_consistent_manifest(
    files: Files, checked: Checked
) -> None:
    del files[NATIVE]
    (difference,) = checked(sealed_again(files)).differences
    assert (difference.problem, difference.detail) == (
        "wheel_missing",
        "native==2.0 for Python 3.13 on x86_64",
    )


def test_a_python_or_platform_that_was_only_declared_is_found(files: Files, checked: Checked) -> None:
    more_pythons = checked(sealed_again(files, pythons=("3.12", "3.13", "3.14"))).differences
    assert [difference.detail for difference in more_pythons] == ["native==2.0 for Python 3.14 on x86_64"]
    more_platforms = checked(sealed_again(files, platforms=("x86_64", "aarch64"))).differences
    assert [difference.detail for difference in more_platforms] == [
        "native==2.0 for Python 3.12 on aarch64",
        "native==2.0 for Python 3.13 on aarch64",
    ]


def test_a_wheel_that_no_lock_names_is_found(files: Files, checked: Checked) -> None:
    files["wheels/other-1.0-py3-none-any.whl"] = b"PK"
    assert problems(checked(sealed_again(files))) == {("wheels/other-1.0-py3-none-any.whl", "wheel_unlocked")}


def test_a_release_without_its_installer_is_found(files: Files, checked: Checked) -> None:
    del files["wheels/pip-9.9-py3-none-any.whl"]
    assert problems(checked(sealed_again(files))) == {("wheels/pip-9.9-py3-none-any.whl", "missing")}


def test_a_lock_with_an_address_is_found(files: Files, checked: Checked) -> None:
    files["requirements.lock"] = b"--index-url https://example.invalid/\n" + files["requirements.lock"]
    found = sealed_again(files, lock_sha256=sha256(files["requirements.lock"]))
    assert problems(checked(found)) == {("requirements.lock", "malformed")}


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o644
    return made


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (member("/etc/passwd"), "unsafe"),
        (member("../outside"), "unsafe"),
        (member("wheels/../../outside"), "unsafe"),
        (member("./wheels/a.whl"), "unsafe"),
        (member("wheels//a.whl"), "unsafe"),
        (member("wheels\\..\\a.whl"), "unsafe"),
        (member("wheels/a.whl", tarfile.SYMTYPE, "/etc/passwd"), "unsafe"),
        (member("wheels/a.whl", tarfile.LNKTYPE, "manifest.json"), "unsafe"),
        (member("wheels/a.whl", tarfile.CHRTYPE), "unsafe"),
        (member("wheels/a.whl", tarfile.BLKTYPE), "unsafe"),
        (member("wheels/a.whl", tarfile.FIFOTYPE), "unsafe"),
        (member("wheels/a.whl", tarfile.GNUTYPE_SPARSE), "unsafe"),
        (member("wheels", tarfile.DIRTYPE), "unsafe"),
        (member("manifest.json"), "unsafe"),
        (member("venv/bin/python"), "extra"),
        (member("installed.json"), "extra"),
        (member("wheels/sub/a.whl"), "extra"),
        (member("wheels/a\nb.whl"), "extra"),
        (member("wheels/\udcff.whl"), "extra"),
    ],
    ids=lambda value: ascii(value.name) + str(value.type) if isinstance(value, tarfile.TarInfo) else value,
)
def test_a_hostile_member_is_refused(
    built: bytes, checked: Checked, made: tarfile.TarInfo, problem: str
) -> None:
    stream = io.BytesIO(built)
    with tarfile.open(
        fileobj=stream, mode="a", format=tarfile.USTAR_FORMAT, errors="surrogateescape"
    ) as archive:
        archive.addfile(made)
    found = checked(stream.getvalue())
    assert [difference.problem for difference in found.differences] == [problem]
    assert found.differences[0].path.isascii()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_another_archive_format_is_refused(files: Files, checked: Checked, form: int) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form, pax_headers={"comment": "x"}) as archive:
        for name in sorted(files):
            made = member(name)
            made.size = len(files[name])
            archive.addfile(made, io.BytesIO(files[name]))
    assert not checked(stream.getvalue()).verified


def test_a_sparse_file_of_absurd_size_is_not_read(built: bytes, checked: Checked) -> None:
    made = member("wheels/a.whl")
    made.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**45), "GNU.sparse.numblocks": "1"}
    stream = io.BytesIO(built)
    with tarfile.open(fileobj=stream, mode="a", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(made)
    (difference,) = checked(stream.getvalue()).differences
    assert (difference.problem, difference.detail[:13]) == ("unsafe", "a sparse file")


def test_a_header_that_leads_back_to_itself_ends(checked: Checked) -> None:
    first = member("wheels/a.whl").tobuf(tarfile.USTAR_FORMAT)
    header = bytearray(first)
    header[124:136] = (-512).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert not checked(first + bytes(header) + bytes(10240 - 1024)).verified


def test_a_compressed_archive_is_refused(built: bytes, checked: Checked) -> None:
    assert not checked(gzip.compress(built)).verified


def test_what_is_no_release_at_all(tmp_path: Path, checked: Checked) -> None:
    for data in (b"", b"x", b"\0" * 10240, os.urandom(4096)):
        assert not checked(data).verified
    with pytest.raises(BadInput, match="No such file"):
        verify(tmp_path / "nowhere.tar")
    with pytest.raises(BadInput, match="not an archive or a folder"):
        verify(Path(os.devnull))


def test_an_archive_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.tar"
    with path.open("wb") as file:
        file.truncate(release_contents.MAX_BYTES + 1)
    with pytest.raises(BadInput, match="larger than any release"):
        verify(path)


def unpacked(files: Files, folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_an_unpacked_folder_is_checked_in_the_same_way(files: Files, tmp_path: Path) -> None:
    folder = unpacked(files, tmp_path / "unpacked")
    found = verify(folder)
    assert (found.verified, found.kind, found.archive_sha256) == (True, "unpacked", None)
    (folder / PURE).write_bytes(b"x")
    (folder / NATIVE).unlink()
    (folder / "notes.txt").touch()
    (folder / "wheels" / "deep").mkdir()
    (folder / "app.lock").unlink()
    (folder / "app.lock").symlink_to("requirements.lock")
    assert problems(verify(folder)) == {
        (PURE, "truncated"),
        (NATIVE, "missing"),
        ("notes.txt", "extra"),
        ("wheels/deep", "extra"),
        ("app.lock", "unsafe"),
        ("app.lock", "missing"),
    }


def test_an_unpacked_folder_is_not_an_installation(files: Files, tmp_path: Path) -> None:
    folder = unpacked(files, tmp_path / "unpacked")
    assert ("installed.json", "half-made") in problems(verify(folder, must_be_installed=True))
    (folder / "venv").mkdir()
    assert ("installed.json", "half-made") in problems(verify(folder))


class Signer:
    """A real key and an allowed-signers file that names it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.key = folder / name
        self.allowed = folder / f"{name}.allowed"
        self.name = f"{name}@example.invalid"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.key], check=True
        )
        public = self.key.with_suffix(".pub").read_text()
        self.allowed.write_text(f'{self.name} namespaces="{NAMESPACE}" {public}')

    def policy(self, **options: Any) -> Policy:
        return replace(Policy(self.allowed, self.name, required=True), **options)


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("alice"), "alice")


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("mallory"), "mallory")


@pytest.fixture
def signed(world: World, alice: Signer, tmp_path: Path) -> Path:
    return Path(world.build(output=tmp_path / "signed", key=alice.key).archive)


def test_a_signed_release_verifies(signed: Path, alice: Signer) -> None:
    found = verify(signed, policy=alice.policy())
    assert (found.verified, found.signed_by) == (True, alice.name)
    assert verify(signed).signed_by is None


def test_signing_again_changes_nothing_and_another_key_is_refused(
    world: World, signed: Path, alice: Signer, mallory: Signer
) -> None:
    before = signed.with_name(f"{signed.name}.sig").read_bytes()
    assert not world.build(output=signed.parent, key=alice.key).changed
    with pytest.raises(Refused) as refused:
        world.build(output=signed.parent, key=mallory.key)
    assert refused.value.code == "signature_exists"
    assert signed.with_name(f"{signed.name}.sig").read_bytes() == before


def test_a_signature_can_be_added_later(world: World, alice: Signer, tmp_path: Path) -> None:
    unsigned = world.build(output=tmp_path / "later")
    assert unsigned.signature is None
    signed = world.build(output=tmp_path / "later", key=alice.key)
    assert (signed.changed, signed.archive_sha256) == (True, unsigned.archive_sha256)
    assert verify(Path(signed.archive), policy=alice.policy()).verified


def test_an_unsigned_release_is_a_difference_only_where_a_signature_is_required(
    built: bytes, tmp_path: Path, alice: Signer
) -> None:
    path = tmp_path / "unsigned.tar"
    path.write_bytes(built)
    assert problems(verify(path, policy=alice.policy())) == {("unsigned.tar.sig", "signature_missing")}
    assert verify(path, policy=alice.policy(required=False)).verified


def test_a_wrong_signature_is_a_difference(signed: Path, alice: Signer, mallory: Signer) -> None:
    signature = signed.with_name(f"{signed.name}.sig")
    wrong = {(signature.name, "signature_wrong")}
    for policy in (
        mallory.policy(),
        mallory.policy(required=False),
        alice.policy(signer="bob@example.invalid"),
    ):
        assert problems(verify(signed, policy=policy)) == wrong
    good = signature.read_bytes()
    signature.write_bytes(good.replace(b"-----BEGIN", b"-----begin"))
    assert problems(verify(signed, policy=alice.policy())) == wrong
    signature.write_bytes(good)
    with signed.open("ab") as archive:
        archive.write(b"\0")
    assert problems(verify(signed, policy=alice.policy())) == wrong | {(signed.name, "malformed")}


def test_a_signature_for_another_purpose_does_not_count(built: bytes, tmp_path: Path, alice: Signer) -> None:
    path = tmp_path / "release.tar"
    path.write_bytes(built)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", alice.key, "-n", "file", path], check=True)
    public = alice.key.with_suffix(".pub").read_text()
    anything = tmp_path / "allowed"
    anything.write_text(f"{alice.name} {public}")
    assert problems(verify(path, policy=alice.policy(allowed_signers=anything))) == {
        ("release.tar.sig", "signature_wrong")
    }


def test_signature_questions_that_make_no_sense(
    signed: Path, files: Files, alice: Signer, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="a folder has none"):
        verify(unpacked(files, tmp_path / "unpacked"), policy=alice.policy())
    with pytest.raises(BadInput, match="--allowed-signers"):
        verify(signed, policy=alice.policy(allowed_signers=tmp_path / "nowhere"))


def test_a_key_that_cannot_sign_publishes_nothing(world: World, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no key file"):
        world.build(output=tmp_path / "none", key=tmp_path / "nowhere")
    (tmp_path / "bad").write_text("no key")
    (tmp_path / "bad").chmod(0o600)
    with pytest.raises(StandfastError, match="cannot sign"):
        world.build(output=tmp_path / "none", key=tmp_path / "bad")
    assert not (tmp_path / "none").exists()


def test_the_command_line_tells_differences_by_exit_4(
    world: World, signed: Path, alice: Signer, built: bytes
) -> None:
    good = world.cli("--json", "release", "verify", str(signed))
    assert good.returncode == 0
    assert json.loads(good.stdout)["manifest"]["schema"] == {"authority": 2, "work": 3}
    signed.write_bytes(built[:-512])
    bad = world.cli("--json", "release", "verify", str(signed))
    assert bad.returncode == 4
    assert json.loads(bad.stdout)["differences"][0]["problem"] == "truncated"
    assert "NO" in world.cli("release", "verify", str(signed)).stdout
    assert world.cli("release", "verify", str(signed), "--require-signature").returncode == 2
    assert world.cli("release", "verify", str(signed), "--signer", alice.name).returncode == 2
    assert world.cli("release", "verify", "nowhere").returncode == 2
