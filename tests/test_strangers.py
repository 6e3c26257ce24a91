"""Studies, presets and run directories from strangers: what they may ask for, and how large they may be."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import phasegrad as pg
from phasegrad import envs
from phasegrad.algorithms.ppo import PPOConfig
from phasegrad.cli.main import main
from phasegrad.config import coerce, option_value
from phasegrad.errors import ConfigError, EnvError, PhasegradError
from phasegrad.machine.data_files import MOST_BYTES, parse_json, parse_toml
from phasegrad.machine.paths import folder_name
from phasegrad.presets import read_preset_file, resolve_config
from phasegrad.studies.definition import load_study, parse_study
from phasegrad.studies.grid import build_grid
from phasegrad.studies.selection import parse_overrides, parse_seeds
from phasegrad.studies.watching import planned_places

MINIMAL = "environments = ['CartPole-v1']\n"
SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "hidden_sizes": (8,), "seed": 3,
    "compile": "off", "checkpoint_every": 16, "eval_episodes": 0,
}  # fmt: skip


def said(text: str, **how: Any) -> str:
    """The one sentence that a study is refused with."""
    with pytest.raises(ConfigError) as caught:
        parse_study(text, "x", where="Study file x.toml", **how)
    message = str(caught.value)
    assert message.startswith("Study file x.toml")
    assert "\n" not in message
    assert len(message) < 700
    return message


# Options of environments


@pytest.mark.parametrize(
    ("env_id", "options", "beyond"),
    [
        ("Pong-v5", {"mode": 1, "stack_num": 2, "repeat_action_probability": 0.25}, []),
        ("procgen/coinrun", {"distribution": "easy", "num_levels": 3, "use_backgrounds": False}, []),
        ("procgen/coinrun", {"distribution": "../easy"}, ["distribution"]),
        ("Hopper-v5", {"reset_noise_scale": 0.1, "frame_skip": 2}, []),
        ("Hopper-v5", {"healthy_z_range": [0.1, 2.0]}, []),
        ("Hopper-v5", {"xml_file": "/x/evil.xml"}, ["xml_file"]),
        ("Hopper-v5", {"xml_file": ".evil.xml"}, ["xml_file"]),
        ("Hopper-v5", {"xml_file": "evil", "frame_skip": 2}, ["xml_file"]),
        ("Hopper-v5", {"xml_file": 3}, ["xml_file"]),
        ("Hopper-v5", {"frame_skip": "3"}, ["frame_skip"]),
        ("CartPole-v1", {"max_episode_steps": 30, "sutton_barto_reward": True}, []),
        ("CartPole-v1", {"xml_file": "evil"}, ["xml_file"]),
        ("LunarLander-v3", {"gravity": -5.0, "continuous": True}, []),
        ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}, []),
        ("FrozenLake-v1", {"desc": ["SFF", "FFG"]}, []),
        ("FrozenLake-v1", {"map_name": "/etc/passwd"}, ["map_name"]),
        ("FrozenLake-v1", {"map_name": "https://x"}, ["map_name"]),
        ("MiniGrid-Empty-5x5-v0", {"agent_view_size": 5}, []),
        ("MyWayHome-v1", {"frame_skip": 3, "map_id": "map02"}, []),
        ("MyWayHome-v1", {"wad_path": "a", "cfg_path": "b", "iwad_path": "c"}, ["wad_path", "cfg_path", "iwad_path"]),
        ("MyWayHome-v1", {"lmp_save_dir": "a", "game_args": "b", "vzd_path": "c"}, ["lmp_save_dir", "game_args", "vzd_path"]),
        ("FetchReach-v4", {"xml_file": "a", "reward_type": "dense"}, ["xml_file"]),
        ("WalkerWalk-v1", {"frame_skip": 2, "from_pixels": True}, []),
        ("Unheard-v0", {"xml_file": "a"}, []),  # making it says that there is no such environment
    ],
)  # fmt: skip
def test_options_that_a_file_may_set(env_id: str, options: dict[str, Any], beyond: list[str]) -> None:
    if env_id not in {known for ids in envs.list_envs().values() for known in ids} and env_id != "Unheard-v0":
        pytest.skip(f"{env_id} is not installed here")
    assert envs.beyond_files(env_id, options) == beyond


def test_an_environment_that_takes_any_keyword_takes_none_of_them_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium

    def anything(size: int = 3, model: str = "small", **more: Any) -> Any:
        return gymnasium.make("CartPole-v1")

    gymnasium.register("Anything-v0", entry_point=anything)
    try:
        assert envs.beyond_files("Anything-v0", {"size": 5}) == []
        assert envs.beyond_files("Anything-v0", {"model": "large"}) == ["model"]
        assert envs.beyond_files("Anything-v0", {"url": "x", "size": 5, "level": 3}) == ["url", "level"]
    finally:
        del gymnasium.registry["Anything-v0"]


@pytest.mark.parametrize(
    "options",
    [
        '{ "xml_file=/x/evil.xml" = 1 }',
        '{ xml_file = ".evil.xml" }',
        '{ xml_file = "evil" }',
        '{ xml_file = ["a"] }',
        '{ "xml-file" = 1 }',
        '{ "a b" = 1 }',
    ],
)
@pytest.mark.parametrize("where", ["[fields]", "[variants.a]"])
def test_a_study_cannot_hand_a_path_to_an_environment(options: str, where: str) -> None:
    message = said(f"environments = ['Hopper-v5']\n{where}\nenv_options = {options}")
    assert "--allow-import" in message or "no name of an option" in message


def test_options_of_a_study_that_its_user_allows_or_gives_reach_every_command(tmp_path: Path) -> None:
    text = "environments = ['Hopper-v5']\nseeds = [1]\n[fields]\nenv_options = { xml_file = '/x/hopper.xml' }"
    assert "env_options.xml_file = '/x/hopper.xml' for Hopper-v5 may be a path or code: add --allow-import" in said(
        text
    )
    allowed = parse_study(text, "x", allow_import=True)
    given = parse_study("environments = ['Hopper-v5']\nseeds = [1]", "x")
    for study, overrides in ((allowed, []), (given, ["env.xml_file=/x/hopper.xml"])):
        (run,) = build_grid(study, tmp_path, parse_overrides(overrides))
        assert '--env.xml_file="/x/hopper.xml"' in run.train_command()
        assert "--allow-import" in run.resume_command()
        assert "--allow-import" in run.eval_command("train")
    (run,) = build_grid(given, tmp_path, {})
    assert "--allow-import" not in run.resume_command()


@pytest.mark.parametrize("track", ["wandb", "mlflow", "tensorboard,wandb"])
def test_a_study_or_preset_names_no_tracker(tmp_path: Path, track: str) -> None:
    assert "add --allow-import" in said(MINIMAL + f"[fields]\ntrack = '{track}'")
    parse_study(MINIMAL + f"[fields]\ntrack = '{track}'", "x", allow_import=True)
    parse_study(MINIMAL + "[fields]\ntrack = 'tensorboard'", "x")
    preset = tmp_path / "p.json"
    preset.write_text(json.dumps({"track": track}))
    with pytest.raises(ConfigError, match="give --track yourself"):
        read_preset_file(preset)


# Presets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a stranger's study lies, with a secret beside it."""
    (tmp_path / "secret.json").write_text('{"password": "hunter2"}')
    made = tmp_path / "study"
    (made / "below").mkdir(parents=True)
    for name in ("p.json", "below/p.json"):
        (made / name).write_text('{"algorithm": "ppo", "gamma": 0.5}')
    (made / "link.json").symlink_to(tmp_path / "secret.json")
    (made / "away").symlink_to(tmp_path)
    return made


def study_with(folder: Path, preset: str, more: str = "") -> str:
    (folder / "s.toml").write_text(
        f"environments = ['CartPole-v1']\nseeds = [1]\n[fields]\npreset = {json.dumps(preset)}\n{more}"
    )
    return str(folder / "s.toml")


@pytest.mark.parametrize(
    "preset",
    [
        "/etc/passwd.json", "../secret.json", "below/../../secret.json", "~/secret.json", "~root/x.json", "link.json",
        "away/secret.json", "C:\\secret.json", "..\\secret.json", "file:secret.json", "./../secret.json", "//x/secret.json",
        "absolute", "a\0b.json",
    ],
)  # fmt: skip
def test_a_study_reads_no_preset_from_elsewhere(folder: Path, preset: str) -> None:
    preset = str(folder.parent / "secret.json") if preset == "absolute" else preset
    with pytest.raises(ConfigError) as caught:
        load_study(study_with(folder, preset))
    assert "s.toml" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("preset", ["p.json", "below/p.json", "./p.json"])
def test_a_preset_beside_the_study_is_found_from_anywhere(
    folder: Path, preset: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir("/")
    (run,) = build_grid(load_study(study_with(folder, preset)), tmp_path, {})
    assert run.config.gamma == 0.5
    assert f"--preset={folder / preset}" in run.train_command()


def test_a_trusted_study_may_read_a_preset_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "far.json").write_text('{"gamma": 0.25, "env_options": {"xml_file": "/x/h.xml"}}')
    path = Path(study_with(folder, "../far.json"))
    path.write_text(path.read_text().replace("CartPole-v1", "Hopper-v5"))
    (run,) = build_grid(load_study(str(path), allow_import=True), tmp_path, {})
    assert run.config.gamma == 0.25
    assert '--env.xml_file="/x/h.xml"' in run.train_command(), "its process asks nobody again"


def test_options_in_a_studys_preset_are_looked_at_too(folder: Path) -> None:
    (folder / "p.json").write_text('{"env_options": {"xml_file": "/x/h.xml"}}')
    path = Path(study_with(folder, "p.json"))
    path.write_text(path.read_text().replace("CartPole-v1", "Hopper-v5"))
    with pytest.raises(ConfigError, match=r"env_options.xml_file.* add --allow-import"):
        load_study(str(path))


def test_a_preset_file_sets_no_path_that_its_user_does_not_give_too(tmp_path: Path) -> None:
    preset = tmp_path / "p.json"
    preset.write_text('{"gamma": 0.5, "env_options": {"xml_file": "/x/h.xml", "frame_skip": 3}}')
    given = {"env": "Hopper-v5", "preset": str(preset)}
    with pytest.raises(ConfigError, match=r"the option xml_file '/x/h.xml', which may be a path.*--env.xml_file VALUE"):
        resolve_config(PPOConfig, given)
    config = resolve_config(PPOConfig, {**given, "env_options": {"xml_file": "/mine.xml"}})
    assert config.env_options == {"xml_file": "/mine.xml", "frame_skip": 3}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "nests deeper"),
        ('{"gamma": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"gamma": 1, "gamma": 0.5}', "has 'gamma' twice"),
        ('{"gamma": 1' + "\0", "not valid JSON"),
        ("[1]", "must hold one JSON object"),
        ("", "not valid JSON"),
        ('{"env_options": 3}', "env_options"),
        ('{"env": "os:system-v0"}', "has env, which is not a preset's to say"),
        ('{"preset": "/etc/x.json"}', "has preset"),
    ],
)
def test_a_preset_file_that_is_none(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_preset_file(path)
    assert str(path) in str(caught.value)


def test_a_preset_file_has_only_known_settings_with_values_that_make_sense(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for text, sentence in (
        ('{"gama": 0.5}', "Did you mean gamma"),
        ('{"gamma": NaN}', "gamma must be a finite number"),
        ('{"gamma": 1e400}', "gamma must be a finite number"),
        ('{"num_steps": 1e400}', "num_steps must be a whole number"),
        ('{"total_steps": ' + "9" * 4000 + "}", "total_steps must be below 2\\^63"),
        ('{"hidden_sizes": [[8]]}', "hidden_sizes must be a whole number"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            resolve_config(PPOConfig, {"env": "CartPole-v1", "preset": str(path)})
    path.write_bytes(b"\xef\xbb\xbf" + b'{\r\n "gamma": 0.5\r\n}\r\n')
    assert resolve_config(PPOConfig, {"env": "CartPole-v1", "preset": str(path)}).gamma == 0.5


# Files that are none, or too large


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "folder", "binary", "gone"])
@pytest.mark.parametrize("ending", [".toml", ".json"])
def test_only_small_files_are_read(tmp_path: Path, kind: str, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 10_000_000_000)
    elif kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00" * 100)
    with pytest.raises(ConfigError) as caught:
        load_study(str(path)) if ending == ".toml" else read_preset_file(path)
    told = {"pipe": "a named pipe", "device": "a device", "sparse": "larger than", "folder": "a folder"}
    assert told.get(kind, "not text in UTF-8" if kind == "binary" else "No such file") in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_same_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "s.toml")
    os.mkfifo(tmp_path / "p.json")
    for command in (
        ["study", str(tmp_path / "s.toml"), "--dry-run"],
        [
            "train",
            "ppo",
            "--env",
            "CartPole-v1",
            "--preset",
            str(tmp_path / "p.json"),
            "--run-dir",
            str(tmp_path / "r"),
        ],
    ):
        assert main(command) == 2
        assert "is a named pipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("steps = " + "9" * 5000, "a number or a key of 5,000 characters"),
        ("steps = 0x" + "f" * 5000, "a number or a key of 5,002 characters"),
        ("a" * 5000 + " = 1", "a number or a key of 5,000 characters"),
        ("a" + ".a" * 5000 + " = 1", "more than 8 levels"),
        ("a" + ' . "a"' * 50 + " = 1", "more than 8 levels"),
        ("[a" + ".a" * 50 + "]", "more than 8 levels"),
        ("a = " + "[" * 50, "more than 8 levels"),
        ("a = " + "{b = " * 50, "more than 8 levels"),
        ("".join(f"a{i} = 1\n" for i in range(3000)), "more than 2,000 keys"),
        ("".join(f"[a{i}]\n" for i in range(3000)), "more than 2,000 keys"),
        ("seeds = [" + "1," * 60_000 + "]", "50,000 entries"),
        (MINIMAL + f"seeds = {list(range(9_000))}", "9,000 seeds; 1,000 is the most"),
        (MINIMAL + "seeds = []", "at least one seed"),
        (MINIMAL + "seeds = [1, 1]", "names 1 twice"),
        (MINIMAL + "seeds = [1e400]", "whole number"),
        (MINIMAL + "seeds = [nan]", "whole number"),
        (MINIMAL + "steps = 9223372036854775808", "below 2^63"),
        (MINIMAL + "steps = inf", "whole number"),
        (MINIMAL + "[variants.a]\ngamma = nan\n[variants.a]\n", "not valid TOML"),
        (MINIMAL + MINIMAL, "not valid TOML"),
        (MINIMAL + "title = 'a\0b'", "not valid TOML"),
        ("", "environments is missing"),
        ("#" * 300_000, "more than 262,144 characters"),
        (f"environments = ['{'a' * 100_000}']", "at most 80 printable characters"),
        (f"environments = ['CartPole-v1']\n'{'x' * 100_000}' = 1", "unknown key"),
        (f"environments = ['CartPole-v1']\ntitle = {['x' * 1000] * 50}", "title must be text"),
        ("environments = ['\\u202eA', 'A']".replace("'", '"'), "printable"),
    ],
)
def test_a_study_that_is_too_much(text: str, sentence: str) -> None:
    assert sentence in said(text)


def test_a_grid_is_counted_before_it_is_made(tmp_path: Path) -> None:
    environments = ", ".join(f"{{ env = 'CartPole-v1', name = 'n{i}' }}" for i in range(100))
    variants = "".join(f"[variants.v{i}]\n" for i in range(500))
    assert "50,000" not in (message := said(f"environments = [{environments}]\n{variants}"))
    assert "are more than 10,000 runs" in message
    many = parse_study(f"environments = [{environments}]\nseeds = {list(range(900))}", "x")
    with pytest.raises(ConfigError, match="The study has 90,000 runs; 10,000 is the most"):
        build_grid(many, tmp_path, {})
    for seeds in ("60000", "1-100000", "1-999999999999999999999", "9" * 5000, "1-999,1000-1999,5"):
        with pytest.raises(ConfigError):
            parse_seeds(seeds)


def test_texts_as_other_systems_write_them() -> None:
    text = "\ufeff" + MINIMAL.replace("\n", "\r\n") + "title = 'ü'\r\n"
    assert parse_study(text.removeprefix("\ufeff"), "x").title == "ü"


def test_a_study_with_a_mark_of_byte_order_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_study(str(tmp_path / "s.toml")).environments[0].env == "CartPole-v1"


@pytest.mark.parametrize(
    "text",
    [
        'a = """x\\""" y = [[[[[[[[[["""', "a = '''[[[[[[[[[[[[[['''", 'a = "[[[[[[[[[[\\"[[[[" # [[[[[[[[[[[[[[[',
        'a = """""" # nothing', "a = 1.5e3\nb = 1979-05-27T07:32:00Z\n[c.d.e]\nf = [[1, 2], [3]]",
        'a = """x"""""\nb = 1',
    ],
)  # fmt: skip
def test_what_is_in_strings_and_comments_is_not_counted(text: str) -> None:
    import tomllib

    assert parse_toml("x", text) == tomllib.loads(text)


def test_what_is_left_for_the_parser_takes_little_memory() -> None:
    import tracemalloc

    worst = (
        "".join(f"a{i}.b.c.d.e.f.g.k = 1\n" for i in range(1_990)),
        "".join(f"[a{i}.b.c.d.e.f.g.k]\n" for i in range(1_990)),
        "a = [" + "1," * 49_000 + "]",
        "a = [" + '"x",' * 49_000 + "]",
        'a = """' + '\\"""' * 60_000 + '"""',
        'a = "' + "\\n" * 100_000 + '"',
    )
    for text in worst:
        assert len(text) <= MOST_BYTES
        tracemalloc.start()
        parse_toml("x", text)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken < 100_000_000


def test_numbers_of_thousands_of_digits_in_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = "9" * 5000
    assert option_value(digits) == digits, "text, which the environment's signature refuses"
    assert option_value("[" * 100_000) == "[" * 100_000
    with pytest.raises(ConfigError, match="whole number"):
        coerce("total_steps", digits, int, {"low": 1})
    with pytest.raises(ConfigError, match="below 2"):
        coerce("total_steps", "9" * 4000, int, {"low": 1})
    for more in (
        ["--total-steps", digits],
        ["--env.max_episode_steps", digits],
        ["--total-steps", "1e400"],
        ["--gamma", "nan"],
    ):
        assert main(["train", "ppo", "--env", "CartPole-v1", "--run-dir", str(tmp_path / "r"), *more]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_names_of_folders() -> None:
    assert folder_name("../../etc/passwd") == "etc-passwd"
    assert folder_name(".hidden") == "hidden"
    assert [folder_name(name) for name in ("con", "AUX", "nul.txt", "com1", "console")] == [
        "con_", "AUX_", "nul.txt_", "com1_", "console",
    ]  # fmt: skip
    assert len(folder_name("x" * 300)) == 80
    assert not folder_name("a" * 79 + "." * 50 + "b").endswith(".")


# Run directories


@pytest.fixture(scope="module")
def with_a_path(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose user gave a path themselves, and the file there."""
    mujoco = pytest.importorskip("gymnasium.envs.mujoco.mujoco_env")
    place = tmp_path_factory.mktemp("path")
    model = place / "mine.xml"
    shutil.copy(Path(mujoco.__file__).parent / "assets" / "inverted_pendulum.xml", model)
    options = {"xml_file": str(model)}
    pg.PPO("InvertedPendulum-v5", env_options=options, run_dir=place / "run", **SMALL).learn(
        64, callback=lambda row: row["step"] < 32
    ).close()
    return place / "run", model


def test_a_run_directory_passes_no_path_on_unasked(
    with_a_path: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model = Path(shutil.copytree(with_a_path[0], tmp_path / "run")), with_a_path[1]
    told = f"gives InvertedPendulum-v5 the option xml_file '{str(model)[:20]}"
    commands = (
        ["eval", str(run), "--episodes", "1"],
        ["video", str(run), "--out", str(tmp_path / "v.gif"), "--max-steps", "3"],
    )
    for command in (*commands, ["resume", str(run), "--total-steps", "96", "--quiet"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "--allow-import" in error
    bare = tmp_path / "bare"  # killed before its first checkpoint
    bare.mkdir()
    shutil.copy(run / "config.json", bare)
    assert main(["resume", str(bare)]) == 2
    assert told in capsys.readouterr().err
    with pytest.raises(EnvError, match="allow_import=True"):
        pg.load(run).evaluate(1)
    assert main(["eval", str(run), "--episodes", "1", "--allow-import"]) == 0
    assert main(["resume", str(run), "--total-steps", "96", "--quiet", "--allow-import"]) == 0
    assert pg.load(run, allow_import=True).evaluate(1).lengths


def test_who_names_the_path_again_is_not_asked(
    with_a_path: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model = Path(shutil.copytree(with_a_path[0], tmp_path / "run")), with_a_path[1]
    command = ["train", "ppo", "--env", "InvertedPendulum-v5", "--run-dir", str(run), "--resume", "--quiet"]
    assert main(command) == 2
    assert "--allow-import" in capsys.readouterr().err
    assert main([*command, "--env.xml_file", str(model)]) == 0


def test_a_change_of_environments_in_a_file_is_looked_at_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pg.PPO("CartPole-v1", run_dir=run, **SMALL).learn(64, callback=lambda row: row["step"] < 32).close()
    moved = {"env": "Hopper-v5", "env_options": {"xml_file": "/x/evil.xml"}}
    before = {"env": "CartPole-v1", "env_options": {}}
    line = {"iteration": 2, "step": 32, "before": before, "after": moved}
    (run / "changes.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(PhasegradError, match=r"option xml_file '/x/evil.xml'"):
        pg.load(run).learn(64)


@pytest.mark.parametrize(
    "payload", ["[" * 200_000, '{"a":' * 200_000, '{"step": ' + "9" * 5000 + "}", "[" * 900 + "]" * 900]
)
@pytest.mark.parametrize("name", ["config.json", "result.json", "state.json", "evaluations.jsonl", "changes.jsonl", "levels.json", "tracking.json"])  # fmt: skip
def test_deep_json_in_a_run_directory_is_one_sentence_for_every_verb(
    original: Path, tmp_path: Path, name: str, payload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(original, tmp_path / "run"))
    folder = sorted((run / "checkpoints").iterdir())[-1] if name == "state.json" else run
    (folder / name).write_text(payload + "\n")
    for command in (
        ["eval", str(run), "--episodes", "1"], ["resume", str(run), "--quiet"], ["watch", str(run), "--once"],
        ["plot", str(run), "--out", str(tmp_path / "c.csv")], ["report", str(run), "--out", str(tmp_path / "r.html")],
    ):  # fmt: skip
        assert main(command) in (0, 2)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert all(line.startswith("phasegrad: ") for line in error.splitlines())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("deep") / "run"
    pg.PPO("CartPole-v1", run_dir=run, **SMALL).learn(256).close()
    return run


@pytest.mark.parametrize("payload", ["[" * 200_000, '{"name": ' + "9" * 5000 + "}", '{"environments": 3}'])
def test_deep_json_in_a_studys_folder(tmp_path: Path, payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.json").write_text(payload)
    (tmp_path / "page.json").write_text(payload)
    assert main(["watch", str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_studys_file_of_a_huge_grid_is_counted_first(tmp_path: Path) -> None:
    data = {"environments": [{"name": "a"}] * 1000, "variants": [{"name": "b"}] * 1000, "seeds": list(range(1000))}
    with pytest.raises(PhasegradError, match="more than 10,000 runs"):
        planned_places(tmp_path, data)


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 200_000,
        b'{"op_code": ' + b"9" * 5000 + b"}",
        b"\0\xff",
        b"{}\n{}\n",
        b'{"op_code": 0}\n' + b"[" * 200_000 + b"\n",
        b'{"op_code": 0, "study_name": 3}\n{"op_code": 4}\n',
        None,
    ],
)
def test_a_searchs_journal_that_is_none(
    tmp_path: Path, payload: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    from phasegrad.tune.search import JOURNAL

    if payload is None:
        os.mkfifo(tmp_path / JOURNAL)
    else:
        (tmp_path / JOURNAL).write_bytes(payload)
    command = ["tune", "ppo", "--env", "CartPole-v1", "--dir", str(tmp_path), "--trials", "1", "--total-steps", "64"]
    assert main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_json_is_read_strictly() -> None:
    assert parse_json("x", '{"a": [1, {"b": 2}]}') == {"a": [1, {"b": 2}]}
    assert parse_json("x", '{"a": "[[[[[[[[[[[[[[[["}') == {"a": "[[[[[[[[[[[[[[[["}
    with pytest.raises(ConfigError, match="'b' twice"):
        parse_json("x", '{"a": {"b": 1, "b": 2}}')
