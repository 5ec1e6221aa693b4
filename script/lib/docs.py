"""Write the reference pages that are made from the code, or say which of them differ from it.

Called by `script/docs` with the development environment. Exit codes: 0 done or nothing differs, 4 a page
differs (--check only), 1 a source is wrong (a default that the argument spec does not repeat).
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

import yaml
from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from standfast.cli.main import LazyGroup, load_command, root

if TYPE_CHECKING:
    from typer._click.core import Command
    from typer._click.core import Context as ClickContext

ROOT = Path(__file__).resolve().parents[2]
CLI = "standfast"
EXAMPLES = re.compile(r"\n\x08?\nExamples:\n(?P<lines>(?:  .*\n)+)")


class SourceError(Exception):
    """A source of the reference contradicts itself; the page would be false."""


@dataclass(frozen=True)
class Option:
    """One input of a role, as its argument spec states it."""

    name: str
    kind: str
    required: bool
    default: str
    description: str


def text_of(value: str | list[str] | None) -> str:
    """An argument spec's description is a string or a list of paragraphs; the page wants one line."""
    paragraphs = [value] if isinstance(value, str) else value or []
    return " ".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def shown(value: object) -> str:
    """A default as YAML would write it on one line."""
    if value is None:
        return ""
    written = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return f"`{written.removesuffix('...\n').strip()}`"


def kind_of(spec: dict[str, Any]) -> str:
    kind = str(spec.get("type", "str"))
    if kind == "list" and "elements" in spec:
        kind = f"list of {spec['elements']}"
    if "choices" in spec:
        kind += ": " + ", ".join(f"`{choice}`" for choice in spec["choices"])
    return kind


def options_of(specs: dict[str, Any], prefix: str = "") -> list[Option]:
    """Inputs in the spec's own order; a dictionary's parts follow it as `name.part`."""
    options: list[Option] = []
    for name, spec in specs.items():
        options.append(
            Option(
                name=prefix + name,
                kind=kind_of(spec),
                required=bool(spec.get("required", False)),
                default=shown(spec.get("default")),
                description=text_of(spec.get("description")),
            )
        )
        options += options_of(spec.get("options", {}), f"{prefix}{name}.")
    return options


def table(options: list[Option]) -> list[str]:
    if not options:
        return ["No inputs."]
    rows = ["| input | type | required | default | description |", "| --- | --- | --- | --- | --- |"]
    for option in options:
        required = "yes" if option.required else "no"
        cells = (
            f"`{option.name}`",
            cell(option.kind),
            required,
            cell(option.default),
            cell(option.description),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def check_defaults(role: Path, specs: dict[str, Any]) -> None:
    """The page prints the spec's default; what runs is defaults/main.yml. They must say the same."""
    file = role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(file.read_text()) or {}) if file.exists() else {}
    main = specs.get("main", {}).get("options", {})
    wrong = [name for name, value in defaults.items() if main.get(name, {}).get("default") != value]
    wrong += [name for name, spec in main.items() if "default" in spec and name not in defaults]
    if wrong:
        names = ", ".join(sorted(wrong))
        raise SourceError(
            f"roles/{role.name}: defaults/main.yml and meta/argument_specs.yml differ for {names}"
        )


def role_page(role: Path) -> str:
    """The README of one role."""
    specs: dict[str, Any] = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())[
        "argument_specs"
    ]
    check_defaults(role, specs)
    lines = [
        f"# Role `{role.name}`",
        "",
        "<!-- Made by script/docs from meta/argument_specs.yml: do not edit. -->",
    ]
    for entry, spec in specs.items():
        if entry != "main":
            lines += ["", f"## Entry point `{entry}`"]
        for key in ("short_description", "description"):
            if spec.get(key):
                lines += ["", text_of(spec[key])]
        lines += ["", *table(options_of(spec.get("options", {})))]
    return "\n".join(lines) + "\n"


class EveryCommand(LazyGroup):
    """The root command with each command module loaded: a page shows them all."""

    @override
    def get_command(self, ctx: ClickContext, cmd_name: str) -> Command:
        """The real command, under the name by which the root calls it."""
        try:
            command = load_command(cmd_name)
        except ImportError as error:
            raise SourceError(f"docs/cli.md: the command {cmd_name!r} cannot be loaded: {error}") from error
        command.name = cmd_name
        return command


def fenced(examples: re.Match[str]) -> str:
    """The examples that end a command's help, as a block of commands."""
    lines = "".join(f"$ {line.strip()}\n" for line in examples["lines"].splitlines())
    return f"\n**Examples**:\n\n```console\n{lines}```\n"


def cli_page() -> str:
    """The CLI reference, as typer's own documentation command writes it."""
    root.info.cls = EveryCommand
    command = get_command(root)
    written = get_docs_for_click(obj=command, ctx=Context(command, info_name=CLI), name=CLI)
    heading, _, rest = EXAMPLES.sub(fenced, written).strip().partition("\n")
    return f"{heading}\n\n<!-- Made by script/docs from the help of the CLI: do not edit. -->\n{rest}\n"


def pages() -> dict[Path, str]:
    """Every made page and what it should hold."""
    made = {
        spec.parents[1] / "README.md": role_page(spec.parents[1])
        for spec in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
    }
    made[ROOT / "docs" / "cli.md"] = cli_page()
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name the pages that differ")
    arguments = parser.parse_args()
    try:
        made = pages()
    except SourceError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        name = path.relative_to(ROOT)
        if arguments.check:
            print(f"docs: {name} differs from the code; run script/docs and commit it", file=sys.stderr)
        else:
            path.write_text(made[path])
            print(f"docs: wrote {name}")
    return 4 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
