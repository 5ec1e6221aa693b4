"""`standfast skill`: the text that shapes the morning brief."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from standfast.cli.common import current, emit, examples, facts, group, printable, table, write
from standfast.clock import rfc3339
from standfast.errors import BadInput, Refused
from standfast.operations.opening import reading, writing
from standfast.shop import skills
from standfast.shop.skills import Skill

app = group("The text that shapes the morning brief.")


class SkillText(BaseModel):
    """One version of the skill."""

    name: str
    version: int
    set_at: str
    text: str

    @classmethod
    def of(cls, skill: Skill) -> "SkillText":
        """The published form."""
        return cls(name=skill.name, version=skill.version, set_at=rfc3339(skill.set_at), text=skill.text)


class SkillHistory(BaseModel):
    """Every version, newest first."""

    versions: list[SkillText]


class SkillSet(BaseModel):
    """What `skill set` did, or with `--check` would do."""

    changed: bool
    check: bool
    name: str
    version: int
    """The version in force afterwards."""


@app.command(epilog=examples("standfast skill show", "standfast --json skill show"))
def show(ctx: typer.Context) -> None:
    """The version in force."""
    with reading(current(ctx).layout) as connection:
        skill = _current(skills.current(connection))
    shown = SkillText.of(skill)

    def render() -> None:
        facts([("skill", shown.name), ("version", shown.version), ("set at", shown.set_at)])
        write()
        for line in shown.text.splitlines():
            write(printable(line))

    emit(ctx, shown, render)


@app.command(
    "set", epilog=examples("standfast skill set opening.txt", "standfast --check skill set - < opening.txt")
)
def set_(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(help="A text file, or - for stdin.")],
) -> None:
    """Put a new version in force; the old ones stay in the history."""
    context = current(ctx)
    text = _read(file)
    with (reading if context.check else writing)(context.layout) as connection:
        before = skills.current(connection)
        changed = skills.replace(connection, text, now=time.time(), check=context.check)
    version = (before.version if before else 0) + (1 if changed else 0)
    result = SkillSet(changed=changed, check=context.check, name=skills.OPENING, version=version)
    told = ("would be in force" if context.check else "in force") if changed else "already in force"
    emit(ctx, result, lambda: write(f"skill {result.name}: version {version} {told}"))


@app.command(epilog=examples("standfast skill history"))
def history(ctx: typer.Context) -> None:
    """Every version, newest first."""
    with reading(current(ctx).layout) as connection:
        found = SkillHistory(versions=[SkillText.of(skill) for skill in skills.history(connection)])
    rows = [[one.version, one.set_at, one.text.partition("\n")[0][:60]] for one in found.versions]
    emit(ctx, found, lambda: table(["VERSION", "SET AT", "FIRST LINE"], rows))


def _current(skill: Skill | None) -> Skill:
    if skill is None:
        raise Refused("skill_unset", "there is no skill yet", remedy="run `standfast init`")
    return skill


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read(skills.MAX_BYTES + 1) if file == "-" else _bytes(Path(file))
        return data.decode("utf-8")
    except OSError as error:
        raise BadInput(f"skill: {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"skill: {file} is not UTF-8 at byte {error.start}") from error


def _bytes(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(skills.MAX_BYTES + 1)
