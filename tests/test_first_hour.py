"""What a newcomer meets first: the command alone, completion of commands and options."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from written_runs import rows_of, write_run

from phasegrad.cli.completion import script
from phasegrad.cli.guide import MORE, STEPS, guide
from phasegrad.cli.main import main
from phasegrad.cli.parsing import parse
from phasegrad.cli.verbs import EXAMPLES, build_parser


def test_the_command_alone_says_what_can_be_done_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "phasegrad train ppo --env CartPole-v1" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "latest run" not in out
    write_run(tmp_path / "runs" / "mine", rows_of(2))
    assert "phasegrad report runs/mine" in guide()


def test_every_command_of_the_guide_exists() -> None:
    for _, command in STEPS:
        parse(shlex.split(command)[1:])
    verbs = set(EXAMPLES)
    for command, _ in MORE:
        assert command.split()[1] in verbs | {"--help"}


def test_every_verb_has_two_examples_that_its_parser_takes() -> None:
    for verb, examples in EXAMPLES.items():
        assert len(examples) == 2, verb
        for example in examples:
            command = example.partition("$(")[2].partition(")")[0] or example
            parse(shlex.split(command.partition(" >")[0])[1:])


def complete_in_bash(line: str, folder: Path) -> list[str]:
    """What pressing Tab after `line` offers."""
    words = line.split(" ")
    program = f"""source {folder}/completion.bash
COMP_WORDS=({" ".join(shlex.quote(word) for word in words)}); COMP_CWORD={len(words) - 1}
_phasegrad; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_verbs_options_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "completion.bash").write_text(script("bash"))
    (tmp_path / "runs").mkdir()
    verbs = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert set(complete_in_bash("phasegrad ", tmp_path)) == {*verbs, "--help", "--version"}  # type: ignore[misc]
    assert complete_in_bash("phasegrad tra", tmp_path) == ["train"]
    assert complete_in_bash("phasegrad train pp", tmp_path) == ["ppo", "ppg"]
    assert complete_in_bash("phasegrad train ppg --n-p", tmp_path) == ["--n-pi"]
    assert complete_in_bash("phasegrad train ppo --n-p", tmp_path) == []
    assert complete_in_bash("phasegrad train ppo --objective c", tmp_path) == ["cpi", "clip"]
    assert "--total-steps" in complete_in_bash("phasegrad resume runs --", tmp_path)
    assert complete_in_bash("phasegrad tune pp", tmp_path) == ["ppo", "ppg"]
    assert complete_in_bash("phasegrad tune ppg --total", tmp_path) == ["--total-steps"]
    assert complete_in_bash("phasegrad train ppg --help", tmp_path) == ["--help", "--help-all"]
    assert complete_in_bash("phasegrad bench cart", tmp_path) == ["cartpole-4", "cartpole-8", "cartpole-lstm"]
    assert complete_in_bash("phasegrad eval ru", tmp_path) == ["runs"]
    assert "cartpole" in complete_in_bash("phasegrad train ppo --preset ", tmp_path)


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes_too(tmp_path: Path) -> None:
    (tmp_path / "completion.fish").write_text(script("fish"))
    for line, wanted in (
        ("phasegrad tra", "train"),
        ("phasegrad train ppg --n-p", "--n-pi"),
        ("phasegrad train p", "ppo"),
    ):
        program = f"source {tmp_path}/completion.fish; complete -C {shlex.quote(line)}"
        done = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True)
        assert wanted in [offer.split("\t")[0] for offer in done.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_loads_its_script(tmp_path: Path) -> None:
    (tmp_path / "completion.zsh").write_text(script("zsh"))
    program = f"source {tmp_path}/completion.zsh && whence -w _phasegrad && print -r -- $_comps[phasegrad]"
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "_phasegrad: function" in done.stdout
    assert "_bash_complete" in done.stdout


def test_an_unknown_shell_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
