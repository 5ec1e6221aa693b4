"""The source of a release: the tree of one commit, taken out of git and nothing else."""

import io
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from standfast.errors import BadInput, Refused, StandfastError
from standfast.release.manifest import Source

_SHOWN = 20


@dataclass(frozen=True)
class Repository:
    """A git work tree. Nothing here changes it, its index or its objects."""

    folder: Path

    @classmethod
    def around(cls, folder: Path) -> "Repository":
        """The repository that `folder` lies in."""
        top = Repository(folder).git("rev-parse", "--show-toplevel").decode().rstrip("\n")
        return cls(Path(top))

    def committed(self, commit: str) -> Source:
        """The source that a revision names, whatever the work tree holds."""
        named = self._resolve(f"{commit}^{{commit}}")
        return Source(commit=named, tree=self._resolve(f"{named}^{{tree}}"), clean=True)

    def clean_head(self, output: Path) -> Source:
        """HEAD, or Refused `tree_dirty` naming the files when the work tree holds anything else."""
        if dirty := self.dirty_files(output):
            shown = dirty[:_SHOWN] + ([f"and {len(dirty) - _SHOWN} more"] if len(dirty) > _SHOWN else [])
            raise Refused(
                "tree_dirty",
                "the working tree differs from its commit: a release comes from a commit that was reviewed",
                observed=shown,
                remedy="commit or remove these files, or mark the release as dirty with --allow-dirty",
            )
        return self.committed("HEAD")

    def dirty_files(self, output: Path) -> list[str]:
        """Changed and untracked files, but for ignored ones and the folder that releases are written to."""
        listing = self.git("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
        paths = [entry[3:].decode(errors="replace") for entry in listing.split(b"\0") if entry]
        return [path for path in paths if output.resolve() not in (self.folder.resolve() / path).parents]

    def worktree(self, output: Path, scratch: Path) -> Source:
        """The work tree as it is, through an index and an object store of its own below `scratch`."""
        if not self.dirty_files(output):
            return self.committed("HEAD")
        environment = self._private_objects(scratch)
        self.git("read-tree", "HEAD", environment=environment)
        self.git("add", "--all", "--", ".", environment=environment)
        # Not by an exclude pathspec: git add refuses one that names an ignored folder, as dist/ is.
        drop = ("rm", "-r", "--quiet", "--cached", "--ignore-unmatch", "--")
        for earlier in self._inside(output):
            self.git(*drop, earlier, environment=environment)
        tree = self.git("write-tree", environment=environment).decode().strip()
        return Source(commit=self._resolve("HEAD^{commit}"), tree=tree, clean=False)

    def export(self, source: Source, folder: Path, scratch: Path) -> None:
        """Write the tree of a source into an empty folder."""
        archive = self.git(
            *(
                "-c",
                "core.attributesFile=/dev/null",
                "-c",
                "tar.umask=0022",
                "archive",
                "--format=tar",
                source.tree,
            ),
            environment={} if source.clean else self._private_objects(scratch),
        )
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(folder, filter="data")
        except tarfile.TarError as error:
            raise BadInput(f"the tree holds what no release can: {error}") from None

    def _inside(self, output: Path) -> list[str]:
        top = self.folder.resolve()
        return [f":(top){output.resolve().relative_to(top)}"] if top in output.resolve().parents else []

    def _private_objects(self, scratch: Path) -> dict[str, str]:
        objects = scratch / "objects"
        objects.mkdir(exist_ok=True)
        common = (
            self.git("rev-parse", "--path-format=absolute", "--git-path", "objects").decode().rstrip("\n")
        )
        return {
            "GIT_INDEX_FILE": str(scratch / "index"),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": common,
        }

    def _resolve(self, revision: str) -> str:
        return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", revision).decode().strip()

    def git(self, *arguments: str, environment: dict[str, str] | None = None) -> bytes:
        """What a git command prints; BadInput when it fails."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", "-c", "core.quotePath=false", "-C", str(self.folder), *arguments]
        variables = {**inherited, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **(environment or {})}
        try:
            done = subprocess.run(command, env=variables, capture_output=True, check=False)
        except FileNotFoundError:
            raise StandfastError("git is not installed here (apt install git): nothing was built") from None
        if done.returncode != 0:
            told = " ".join(done.stderr.decode(errors="replace").split())
            raise BadInput(f"git {' '.join(arguments)}: {told or 'no such revision'}")
        return done.stdout
