"""The environment file says to systemd exactly what its pairs say, and never says a value to anybody else."""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from standfast.errors import BadInput, Refused
from standfast.layout import Layout
from standfast.operations import environment

SECRET = "hunter2-Zq9"
GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")

KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=40).filter(
    lambda text: environment.pairs_problem({"K": text}) is None
)
AWKWARD = st.text(st.sampled_from("\\\"'$%#; =`aé\u00a0{}~!*"), max_size=20)
PAIRS = st.dictionaries(KEYS, VALUES | AWKWARD, max_size=5)


def systemd_reads(text: str) -> dict[str, str]:  # noqa: C901, PLR0912 - one state machine, in systemd's own shape
    """A second reading of the rules, written as systemd's own state machine (`parse_env_file_internal`)."""
    state, key, value, blank_at, out = "pre_key", "", "", -1, {}
    for c in text + "\n":
        if state == "pre_key":
            if c in "#;":
                state = "comment"
            elif c not in " \t\n\r":
                state, key = "key", c
        elif state == "key":
            if c in "\n\r":
                state = "pre_key"
            elif c == "=":
                state, value, blank_at = "pre_value", "", -1
            else:
                key += c
        elif state == "pre_value":
            if c in "\n\r":
                out[key.rstrip()], state = value, "pre_key"
            elif c == "'":
                state = "single"
            elif c == '"':
                state = "double"
            elif c == "\\":
                state = "value_escape"
            elif c not in " \t":
                state, value = "value", value + c
        elif state == "value":
            if c in "\n\r":
                out[key.rstrip()], state = (value[:blank_at] if blank_at >= 0 else value), "pre_key"
            elif c == "\\":
                state, blank_at = "value_escape", -1
            else:
                blank_at = -1 if c not in " \t" else (blank_at if blank_at >= 0 else len(value))
                value += c
        elif state == "value_escape":
            state, value = "value", value + ("" if c in "\n\r" else c)
        elif state == "single":
            state, value = ("pre_value", value) if c == "'" else ("single", value + c)
        elif state == "double":
            if c == '"':
                state = "pre_value"
            elif c == "\\":
                state = "double_escape"
            else:
                value += c
        elif state == "double_escape":
            state, value = "double", value + (c if c in '"\\`$' else "" if c == "\n" else "\\" + c)
        elif state == "comment":
            state = "pre_key" if c in "\n\r" else "comment"
    return {k: v for k, v in out.items() if environment.KEY.match(k)}


@settings(max_examples=300, deadline=None)
@given(PAIRS)
def test_what_is_written_reads_back_as_the_same_pairs(pairs: dict[str, str]) -> None:
    text = environment.render(pairs)
    assert systemd_reads(text) == pairs
    assert environment.parse(text) == (pairs, [])


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from("AB_=\"'\\ \t#;$`x"), max_size=30).map(lambda line: line + "\n"))
@example('A="\\$ \\` \\a \\\\ \\\n"\n')
@example("A='x' 'y' z \\\nw  \n")
def test_our_reader_of_any_file_agrees_with_systemds_rules(line: str) -> None:
    found, problems = environment.parse(line)
    if not any("never closed" in problem.problem for problem in problems):
        assert found == systemd_reads(line)


@pytest.mark.skipif(not GENERATOR.exists(), reason="systemd's environment generator is not installed")
def test_systemds_own_parser_reads_back_the_same_pairs(tmp_path: Path) -> None:
    """The generator shares the parser with EnvironmentFile; it alone expands `$`, so that stays out here."""
    pairs = {
        "A": 'quotes "inside" \' and \\back\\slashes\\',
        "B": "  edges # ; % é ~ ",
        "C": "",
        "D": "=x\\n",
    }
    (tmp_path / "environment.d").mkdir()
    (tmp_path / "environment.d" / "x.conf").write_text(environment.render(pairs))
    told = subprocess.run(
        [GENERATOR], env={"XDG_CONFIG_HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    script = f"{told.stdout}\nfor k in A B C D; do printf '%s\\0' \"${{!k}}\"; done"
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={})
    assert dict(zip("ABCD", shown.stdout.split("\0"), strict=False)) == pairs


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1, "int"),
        (None, "NoneType"),
        (["x"], "list"),
        (SECRET + "\0", "NUL"),
        (SECRET + "\n", "newline"),
        (SECRET + "\r", "newline"),
        (SECRET + "\u2028", "newline"),
        (SECRET + "\t", "control character"),
        (SECRET + "\x1b[2J", "control character"),
        (SECRET + "\ufeff", "byte order mark"),
        (SECRET + "\ufffe", "U+FFFE"),
        (SECRET + "\ufdd0", "U+FDD0"),
        (SECRET + "\U0001ffff", "U+1FFFF"),
        (SECRET + "\ud800", "UTF-8"),
        (SECRET + "x" * environment.MAX_VALUE, "131000 bytes"),
        ("é" * 65_501, "131000 bytes"),
    ],
)
def test_a_value_that_systemd_would_not_keep_is_refused_by_its_key(value: object, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        environment.read_pairs(json.dumps({"GOOD": "fine", "API_KEY": value}).encode())
    assert "API_KEY" in str(caught.value)
    assert told in str(caught.value)
    assert_silent(caught.value)


@pytest.mark.parametrize("key", ["", "A-B", "1A", "export A", "É", "A=B", "A\n", "K" * 65])
def test_a_key_outside_the_allowed_set_is_refused(key: str) -> None:
    with pytest.raises(BadInput) as caught:
        environment.read_pairs(json.dumps({key: SECRET}).encode())
    assert_silent(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        f'{{"A": "{SECRET}"',
        f'{{"A": "{SECRET}", "A": "other"}}',
        f'["{SECRET}"]',
        f'"{SECRET}"',
        f'{{"A": "{SECRET}\xff"}}'.encode("latin-1"),
        f'{{"A": "{SECRET}\\x"}}',
        f'{{"A": NaN, "B": "{SECRET}"}}',
        "[" * 100_000 + SECRET,
        '{"A": ' + "9" * 5000 + "}",
        SECRET + " " * environment.MAX_PAIRS,
    ],
)
def test_malformed_input_is_refused_without_repeating_it(data: str | bytes) -> None:
    with pytest.raises(BadInput) as caught:
        environment.read_pairs(data.encode() if isinstance(data, str) else data)
    assert_silent(caught.value)


def assert_silent(error: BaseException) -> None:
    """No part of the error or of anything it drags along holds the secret."""
    assert error.__context__ is None
    assert error.__cause__ is None
    assert SECRET not in "".join(traceback.format_exception(error))
    assert SECRET not in repr(vars(error))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return Layout(state)


def test_writing_is_private_repeatable_and_predicted_by_check(layout: Layout) -> None:
    os.umask(0o077 ^ 0o055)
    pairs = {"B": SECRET, "A": "x"}
    assert environment.write(layout, pairs, check=True).changed
    assert not layout.environment.exists()
    assert environment.write(layout, pairs).changed
    assert layout.environment.stat().st_mode & 0o7777 == 0o600
    before = layout.environment.stat()
    again = environment.write(layout, pairs)
    assert not again.changed
    assert layout.environment.stat().st_mtime_ns == before.st_mtime_ns
    assert again.names == ["A", "B"]
    assert environment.write(layout, {"A": "y"}).changed, "its own file may be written again"
    assert environment.check(layout).ok


def test_an_empty_file_is_nobodys_edit(layout: Layout) -> None:
    layout.environment.touch(0o600)
    assert environment.check(layout).ok
    assert environment.write(layout, {"A": "x"}).changed


def test_a_file_edited_by_hand_is_refused_until_adopted(layout: Layout) -> None:
    environment.write(layout, {"A": "x", "KEEP": "k"})
    edited = layout.environment.read_text().replace('A="x"', f'A="{SECRET}"') + "EXTRA=1\n"
    layout.environment.write_text(edited)
    with pytest.raises(Refused) as caught:
        environment.write(layout, {"A": "x", "KEEP": "k"})
    assert caught.value.code == "env_edited"
    assert caught.value.observed == "names that differ: A, EXTRA"
    assert SECRET not in str(vars(caught.value))
    assert layout.environment.read_text() == edited
    assert environment.check(layout).edited
    assert environment.write(layout, {"A": "x"}, adopt=True).changed
    assert environment.parse(layout.environment.read_text())[0] == {"A": "x"}


def test_a_hand_written_file_that_already_says_it_is_left_alone(layout: Layout) -> None:
    layout.environment.write_text("A='x y'\n# mine\nB=2\n")
    layout.environment.chmod(0o600)
    assert not environment.write(layout, {"A": "x y", "B": "2"}).changed
    assert "# mine" in layout.environment.read_text()


def test_a_file_open_to_others_is_refused_and_named_by_check(layout: Layout) -> None:
    environment.write(layout, {"A": SECRET})
    layout.environment.chmod(0o644)
    with pytest.raises(Refused) as caught:
        environment.write(layout, {"A": "other"})
    assert caught.value.code == "env_mode"
    assert "0644" in environment.check(layout).problems[0].problem


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(layout: Layout) -> None:
    environment.write(layout, {"A": SECRET})
    os.chown(layout.environment, 65534, -1)
    with pytest.raises(Refused) as caught:
        environment.write(layout, {"A": "other"})
    assert caught.value.code == "env_owner"
    os.chown(layout.state, 65534, -1)
    with pytest.raises(Refused) as caught:
        environment.write(layout, {"A": "other"})
    assert caught.value.code == "not_owner"


def test_a_link_or_a_folder_in_its_place_is_refused(layout: Layout, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    layout.environment.symlink_to(victim)
    with pytest.raises(Refused):
        environment.write(layout, {"A": "x"})
    assert victim.read_text() == "mine"
    layout.environment.unlink()
    layout.environment.mkdir(0o600)
    with pytest.raises(Refused):
        environment.write(layout, {"A": "x"})
    assert not environment.check(layout).ok


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("export A=1\n", 1, "'export A'"),
        ("A-B=1\n", 1, "'A-B'"),
        ("# fine\nnonsense\n", 2, "no `=`"),
        (f'A=1\nB="{SECRET}\nC=3\n', 2, "never closed"),
        ("A=1\nA=2\n", 2, "twice"),
        ("# ends \\\nA=1\n", 1, "backslash"),
        (f'A="{SECRET}\ttab"\n', 1, "control character"),
        ("\ufeffA=1\n", 1, "byte order mark"),
    ],
)
def test_check_names_the_line_that_systemd_would_misread(
    layout: Layout, text: str, line: int, told: str
) -> None:
    layout.environment.write_text(text)
    layout.environment.chmod(0o600)
    found = environment.check(layout)
    assert not found.ok
    assert any(problem.line == line and told in problem.problem for problem in found.problems)
    assert SECRET not in found.model_dump_json()


def test_check_says_nothing_about_who_wrote_what_cannot_be_read(layout: Layout) -> None:
    (layout.environment).mkdir()
    found = environment.check(layout)
    assert (found.ok, found.generated, found.edited) == (False, None, None)
    layout.environment.rmdir()
    found = environment.check(layout)
    assert (found.ok, found.generated, found.edited) == (False, None, None)


def test_check_names_what_is_not_text(layout: Layout) -> None:
    assert "no such file" in environment.check(layout).problems[0].problem
    layout.environment.write_bytes(b"A=\xff\n")
    layout.environment.chmod(0o600)
    assert environment.check(layout).problems[0].problem == "it is not UTF-8"


def test_comparison_names_what_a_process_was_not_given() -> None:
    given_environment = {b"A": b"x", b"B": "é".encode(), b"C": b"\xff"}
    assert environment.compare({"A": "x", "B": "é"}, given_environment).same
    with pytest.raises(Refused) as caught:
        environment.compare({"A": "y", "C": "x", "D": ""}, given_environment)
    assert (caught.value.code, caught.value.observed) == ("env_differs", ["A", "C", "D"])


@pytest.mark.parametrize(
    ("command", "code"),
    [("write", 2), ("compare", 2)],
)
def test_the_command_never_repeats_a_value(layout: Layout, command: str, code: int) -> None:
    """Also with STANDFAST_DEBUG=1, where a traceback is shown."""
    ran = subprocess.run(
        [sys.executable, "-I", "-m", "standfast", "--state", str(layout.state), "--json", "env", command],
        input=json.dumps({"API_KEY": SECRET + "\n"}),
        capture_output=True,
        text=True,
        check=False,
        env={"STANDFAST_DEBUG": "1"},
    )
    assert ran.returncode == code, ran.stderr
    assert SECRET not in ran.stdout + ran.stderr
    assert "API_KEY" in ran.stderr
    assert "Traceback" in ran.stderr


def test_compare_through_a_real_process(layout: Layout) -> None:
    command = [sys.executable, "-I", "-m", "standfast", "--json", "env", "compare"]
    pairs = {"A": 'x"\\ $y', "B": "é"}
    ran = subprocess.run(
        command, input=json.dumps(pairs), text=True, env=pairs, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    ran = subprocess.run(
        command,
        input=json.dumps(pairs),
        text=True,
        env={"A": SECRET, "B": "é"},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 3
    assert json.loads(ran.stdout)["refused"]["observed"] == ["A"]
    assert SECRET not in ran.stdout + ran.stderr
