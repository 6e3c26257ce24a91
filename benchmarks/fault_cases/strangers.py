"""Studies, presets and runs from strangers: nothing of theirs is read, imported or built unasked, and no size is believed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial

from fault_cases.case import Case, require
from fault_cases.scene import Scene, newest

AREA = "strangers"
SECONDS = 30
HEAD = 'title = "t"\nalgorithm = "ppo"\nsteps = 64\nseeds = [1]\n'
MUJOCO = HEAD + 'environments = ["HalfCheetah-v5"]\n'
PLAIN = HEAD + 'environments = ["CartPole-v1"]\n'
VARIANT = "[variants.a]\nclip_range = 0.1\n"
# Each must be refused with a sentence; EVIL is a pipe that would hold a reader for ever, SECRET a JSON file of the user's
OPTIONS = {
    "a path": 'xml_file = "EVIL"', "a relative path": 'xml_file = "../outside/evil.xml"', "a name in the folder": 'xml_file = ".evil.xml"',
    "a name without a path": 'xml_file = "evil.xml"', "a name that holds the value": '"xml_file=EVIL" = 1',
    "a name with a dash": '"xml-file" = "evil.xml"', "a list of paths": 'xml_file = ["EVIL"]', "a home": 'xml_file = "~/evil.xml"',
    "a number of a file": "xml_file = 3", "a module": 'wrappers = "os:system"', "render_mode": 'render_mode = "human"',
    "entry_point": 'entry_point = "os:system"', "kwargs": 'kwargs = { xml_file = "EVIL" }', "an escape": '"\\u001b[31m" = 1',
    "vectorization_mode": 'vectorization_mode = "x"', "additional_wrappers": 'additional_wrappers = ["os:x"]',
    "a windows path": 'xml_file = "C:evil.xml"', "a file url": 'xml_file = "file:evil.xml"',
}  # fmt: skip
STUDIES: dict[str, Callable[[], str]] = {
    **{f"env_options with {name}": partial(lambda text: MUJOCO + "[fields]\nenv_options = { " + text + " }\n" + VARIANT, text) for name, text in OPTIONS.items()},
    **{f"env_options of a variant with {name}": partial(lambda text: MUJOCO + "[variants.a]\nenv_options = { " + text + " }\n", OPTIONS[name]) for name in ("a path", "a name that holds the value", "a name in the folder")},
    "an environment that imports": lambda: HEAD + 'environments = ["evil_module:Evil-v0"]\n' + VARIANT,
    "an environment table that imports": lambda: HEAD + 'environments = [{ env = "evil_module:Evil-v0" }]\n' + VARIANT,
    "an environment with a line end": lambda: HEAD + 'environments = ["CartPole-v1\\n"]\n' + VARIANT,
    "an environment that is an escape": lambda: HEAD + 'environments = ["\\u001b]0;x\\u0007"]\n' + VARIANT,
    "a preset that is any file": lambda: PLAIN + '[fields]\npreset = "SECRET"\n' + VARIANT,
    "a preset by a relative path": lambda: PLAIN + '[fields]\npreset = "../outside/secret.json"\n' + VARIANT,
    "a preset in a variant": lambda: PLAIN + '[variants.a]\npreset = "SECRET"\n',
    "a preset of an environment": lambda: HEAD + 'environments = [{ env = "CartPole-v1", preset = "SECRET" }]\n' + VARIANT,
    "5,000 digits": lambda: PLAIN.replace("steps = 64", "steps = 1" + "0" * 5000) + VARIANT,
    "a hexadecimal number of 5,000 digits": lambda: PLAIN.replace("steps = 64", "steps = 0x1" + "0" * 5000) + VARIANT,
    "5,000 digits in a variant": lambda: PLAIN + "[variants.a]\nclip_range = 1" + "0" * 5000 + "\n",
    "dotted keys": lambda: PLAIN + VARIANT + "[x]\n" + "\n".join(f"a{n}." + ".".join("b" * 400) + " = 1" for n in range(2000)),
    "one dotted key": lambda: PLAIN + "fields." + ".".join("a" * 100_000) + " = 1\n" + VARIANT,
    "deep arrays": lambda: PLAIN + "x = " + "[" * 50_000 + "]" * 50_000 + "\n" + VARIANT,
    "deep tables": lambda: PLAIN + "x = " + "{a=" * 50_000 + "1" + "}" * 50_000 + "\n" + VARIANT,
    "60,000 seeds": lambda: PLAIN.replace("seeds = [1]", f"seeds = [{','.join(map(str, range(60_000)))}]") + VARIANT,
    "60,000 seeds by a number": lambda: PLAIN.replace("seeds = [1]", "seeds = 60000") + VARIANT,
    "10^12 seeds by a number": lambda: PLAIN.replace("seeds = [1]", "seeds = 1000000000000") + VARIANT,
    "the same seed twice": lambda: PLAIN.replace("seeds = [1]", "seeds = [1, 1]") + VARIANT,
    "a seed below 0": lambda: PLAIN.replace("seeds = [1]", "seeds = [-1]") + VARIANT,
    "30,000 variants": lambda: PLAIN + "".join(f"[variants.v{n}]\nclip_range = 0.1\n" for n in range(30_000)),
    "30,000 environments": lambda: HEAD + "environments = [" + ",".join(f'{{env="CartPole-v1",name="n{n}"}}' for n in range(30_000)) + "]\n" + VARIANT,
    "steps 10^30": lambda: PLAIN.replace("steps = 64", "steps = 1" + "0" * 30) + VARIANT,
    "steps that are not a number": lambda: PLAIN.replace("steps = 64", "steps = nan") + VARIANT,
    "steps below 0": lambda: PLAIN.replace("steps = 64", "steps = -4") + VARIANT,
    "many environments": lambda: PLAIN + "[fields]\nnum_envs = 1000000000\n" + VARIANT,
    "a run directory": lambda: PLAIN + '[fields]\nrun_dir = "EVIL"\n' + VARIANT,
    "tracking": lambda: PLAIN + '[fields]\ntrack = "evil"\n' + VARIANT,
    "an unknown key": lambda: PLAIN + "evil = 1\n" + VARIANT,
    "a date": lambda: PLAIN.replace("steps = 64", "steps = 1979-05-27") + VARIANT,
    "an algorithm that imports": lambda: PLAIN.replace('"ppo"', '"evil_module:Evil"') + VARIANT,
    "a NUL": lambda: PLAIN + "\0",
    "half a text": lambda: PLAIN[:-20],
    "eval_episodes 10^18": lambda: PLAIN + VARIANT.replace("[variants.a]", "[variants.a]\neval_episodes = 1000000000000000000"),
}  # fmt: skip
PRESETS: dict[str, Callable[[], str]] = {
    "a list": lambda: "[1]", "5,000 digits": lambda: '{"gamma": 1' + "0" * 5000 + "}", "deep": lambda: "[" * 100_000,
    "an env that imports": lambda: '{"env": "evil_module:Evil-v0"}',
    "env_options with a path": lambda: '{"env_options": {"xml_file": "EVIL"}}',
    "env_options with a name that holds the value": lambda: '{"env_options": {"xml_file=EVIL": 1}}',
    "NaN": lambda: '{"gamma": NaN}', "a preset of a preset": lambda: '{"preset": "SECRET"}',
    "an escape": lambda: '{"\\u001b[31m": 1}', "an escape in a value": lambda: '{"objective": "\\u001b]0;x\\u0007"}',
    "huge": lambda: '{"num_envs": 1000000000000}', "a run directory": lambda: '{"run_dir": "EVIL"}',
    "twice": lambda: '{"gamma": 0.5, "gamma": "x"}', "30 MB": lambda: '{"gamma": "' + "x" * 30_000_000 + '"}',
}  # fmt: skip
FIELDS = {  # of the config of a run or of an agent
    "xml_file": {"env": "HalfCheetah-v5", "env_options": {"xml_file": "EVIL"}},
    "xml_file in a name": {"env": "HalfCheetah-v5", "env_options": {"xml_file=EVIL": 1}},
    "a module": {"env": "evil_module:Evil-v0"},
    "an option of CartPole's": {"env_options": {"xml_file": "EVIL"}},
    "an entry point": {"env_options": {"entry_point": "evil_module:Evil"}},
    "tracking": {"track": "evil_module"},
    "a preset": {"preset": "SECRET"},
    "many environments": {"num_envs": 10**9},
    "an algorithm that imports": {"algorithm": "evil_module:Evil"},
    "an encoder that imports": {"encoder": "evil_module:Evil"},
}
HARMLESS = ("an env that imports", "a preset of a preset", "twice")  # what else is given wins: only nothing may be read
SPARSE = 10 * 1024**3


def cases(seed: int) -> list[Case]:
    found = [Case(AREA, f"a study with {name}", partial(study, text=text)) for name, text in STUDIES.items()]
    found += [
        Case(AREA, f"a preset file with {name}", partial(preset, text=text, lenient=name in HARMLESS))
        for name, text in PRESETS.items()
    ]
    for name, fields in FIELDS.items():
        for verb in ("resume", "eval", "video", "report", "watch"):
            found.append(Case(AREA, f"a run with {name}, {verb}", partial(run_of, fields=fields, verb=verb)))
    found += [Case(AREA, f"{what} of 10 GB", partial(enormous, what=what)) for what in ENORMOUS]
    return found


def outside_files(scene: Scene) -> dict[str, str]:
    """What a stranger would like read or imported."""
    evil = scene.outside / "evil.xml"
    os.mkfifo(evil)
    os.mkfifo(scene.work / "evil.xml")
    os.mkfifo(scene.work / ".evil.xml")
    secret = scene.outside / "secret.json"
    secret.write_text('{"gamma": 0.987654}')
    (scene.work / "mine.json").write_text('{"gamma": 0.987654}')
    mark = scene.work / "imported"
    (scene.work / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')\n")
    return {"EVIL": str(evil), "SECRET": str(secret)}


def filled(text: str, places: dict[str, str]) -> str:
    for name, path in places.items():
        text = text.replace(name, path)
    return text


def refused(scene: Scene, *words: str, lenient: bool = False) -> None:
    environment = scene.environment()
    environment["PYTHONPATH"] += f":{scene.work}"
    outcome = scene.run(*words, seconds=SECONDS, most_mb=1000, environment=environment)
    require(not (scene.work / "imported").exists(), "a stranger's module was imported")
    require(lenient or outcome.code in (1, 2), f"it was accepted: {outcome.out[:80]!r}")


def study(scene: Scene, text: Callable[[], str]) -> None:
    (scene.work / "study.toml").write_text(filled(text(), outside_files(scene)))
    refused(scene, "study", "study.toml", "--dry-run", "--quiet")


def preset(scene: Scene, text: Callable[[], str], lenient: bool) -> None:
    (scene.work / "preset.json").write_text(filled(text(), outside_files(scene)))
    words = [
        "train",
        "ppo",
        "--env",
        "HalfCheetah-v5",
        "--total-steps",
        "64",
        "--num-envs",
        "2",
        "--num-steps",
        "16",
        "--quiet",
        "--run-dir",
        "new",
    ]
    refused(scene, *words, "--preset", "preset.json", lenient=lenient)
    config = scene.work / "new" / "config.json"
    require(not config.exists() or "0.987654" not in config.read_text(), "a file that the preset names was read")


def run_of(scene: Scene, fields: dict[str, object], verb: str) -> None:
    """A run directory of a stranger's, whose config and checkpoints say the same."""
    run = scene.copy("killed")
    places = outside_files(scene)
    given = json.loads(filled(json.dumps(fields), places))
    config = run / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | given))
    for state in run.glob("checkpoints/*/state.json"):
        found = json.loads(state.read_text())
        found["config"] |= {name: value for name, value in given.items() if name != "algorithm"}
        found["algorithm"] = given.get("algorithm", found["algorithm"])
        state.write_text(json.dumps(found))
    require(newest(run).exists(), "no checkpoint")
    words = {
        "resume": "resume run --quiet", "eval": "eval run --episodes 1 --max-steps 5",
        "video": "video run --max-steps 4 --size 64 --out film.gif", "report": "report run --out page.html",
        "watch": "watch run --once",
    }[verb].split()  # fmt: skip
    if verb in ("report", "watch"):
        scene.run(*words, seconds=SECONDS)
        require(not (scene.work / "imported").exists(), "a stranger's module was imported")
    elif not ("preset" in fields or ("num_envs" in fields and verb != "resume")):
        refused(scene, *words)
    else:
        scene.run(*words, seconds=SECONDS)


ENORMOUS = {
    "a study": "study huge.toml --dry-run --quiet",
    "a preset": "train ppo --env CartPole-v1 --total-steps 64 --preset huge.json --quiet",
    "demonstrations": "clone ppo --env CartPole-v1 --data huge.npz --run-dir cloned --quiet",
    "config.json": "eval run", "state.json": "eval run", "state.safetensors": "eval run", "leg.safetensors": "resume run --quiet",
    "metrics.jsonl": "plot run --out curve.csv", "result.json": "report run --out page.html",
    "evaluations.jsonl": "watch run --once", "changes.jsonl": "resume run --quiet",
}  # fmt: skip


def enormous(scene: Scene, what: str) -> None:
    """A file with a hole in it takes no room, and all memory where it is read."""
    run = scene.copy("finished")
    words = ENORMOUS[what].split()
    path = next((scene.work / word for word in words if word.startswith("huge")), None)
    if path is None:
        path = newest(run) / what if what.startswith(("state", "leg")) else run / what
    with path.open("ab") as file:
        file.truncate(SPARSE)
    outcome = scene.run(*words, seconds=SECONDS, most_mb=1000)
    require(
        outcome.told or what not in ("a study", "a preset", "demonstrations", "config.json"), "it was taken as it is"
    )
