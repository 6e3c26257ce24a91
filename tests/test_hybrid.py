"""Actions of Dict and Tuple spaces and Boxes of integers: the environment's own structure everywhere, masks, sentences."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium as gym
import hybrid_envs
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hybrid_envs import HybridIdentityEnv, MaskedHybridEnv, mixed_space, nested_masks, observed_masks, own_vector

import phasegrad as pg
from phasegrad import envs
from phasegrad.data.legs import can_be_taken, stored_dtype
from phasegrad.envs.actions import MOST_CHOICES
from phasegrad.errors import ConfigError, EnvError
from phasegrad.runs.spaces import space_from_json, space_to_json

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "seed": 1, "eval_episodes": 0}
FORMS = {"flat": MaskedHybridEnv, "nested": nested_masks, "observed": observed_masks}


def test_parts_lie_side_by_side_in_the_order_of_the_space_and_come_back_nested() -> None:
    space = mixed_space()
    own = envs.ActionAdapter(space)
    assert list(own.space.spaces) == ["move", "aim", "more.0", "more.1.flags", "more.2"]  # type: ignore[attr-defined]
    flat = np.array([[2, 0.5, 3.0, 1, 2, 0, 1, 2, 1], [0, -1.0, 0.25, 0, 0, 1, 1, 0, 0]], np.float32)
    batch = own.to_environment(flat, 2)
    assert list(batch) == ["move", "aim", "more"]
    assert batch["move"].tolist() == [4, 2]  # which starts at 2
    assert batch["aim"].tolist() == [[0.5, 3.0], [-1.0, 0.25]]
    assert batch["more"][0].tolist() == [[1, 2], [0, 0]]
    assert batch["more"][1]["flags"].tolist() == [[0, 1], [1, 1]]
    assert batch["more"][2].tolist() == [[[1, 6]], [[-1, 5]]]
    assert batch["more"][2].dtype == np.int16
    assert batch in batch_space(space, 2)
    for index, row in enumerate(own.rows(batch, 2)):
        assert row in space
        assert type(row["move"]) is int
        assert own.row(batch, index) in space
    with pytest.raises(EnvError, match=r"actions have shape \(2, 8\), but 2 environments .* take \(2, 9\)"):
        own.to_environment(flat[:, :8], 2)


def test_large_starts_of_choices_survive_beside_numbers() -> None:
    own = envs.ActionAdapter(spaces.Dict(a=spaces.Discrete(5, start=2**40), b=spaces.Box(0, 1, ())))
    assert own.to_environment(np.array([[3, 0.5]], np.float32), 1)["a"].tolist() == [2**40 + 3]


@pytest.mark.parametrize("make", [HybridIdentityEnv, hybrid_envs.choices, hybrid_envs.integer_box, *FORMS.values()])
def test_every_way_of_stepping_gives_the_environment_its_own_actions(make: Any) -> None:
    """The environments refuse what is not in their space, and what their masks forbid."""
    reports = [envs.check(make, 45, vectorization=vectorization) for vectorization in ("sync", "async")]
    reports.append(envs.check(own_vector(make, 2), 45))
    assert [report.episodes for report in reports] == [4, 4, 4]
    assert len({report.mean_return for report in reports}) == 1
    assert len({report.has_action_mask for report in reports}) == 1


@pytest.mark.parametrize("make", [HybridIdentityEnv, hybrid_envs.choices])
def test_what_predict_returns_is_taken(make: Any) -> None:
    agent = pg.PPO(make, **SMALL)
    env = make()
    observation, _ = env.reset(seed=3)
    for deterministic in (True, False):
        action, _ = agent.predict(observation, deterministic=deterministic)
        assert action in env.action_space
        env.step(action)
    batch = {name: np.stack([entry] * 3) for name, entry in observation.items()}
    actions, _ = agent.predict(batch)
    assert actions in batch_space(env.action_space, 3)
    vector = own_vector(make, 3)
    vector.reset(seed=1)
    vector.step(actions)
    first = envs.ActionAdapter(env.action_space).row(actions, 0)
    for (_, mine), (_, theirs) in zip(
        hybrid_envs.leaves(env.action_space, first),
        hybrid_envs.leaves(env.action_space, agent.predict(observation)[0]),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


# ---- masks


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_masks_are_respected_in_training_and_evaluation(form: str, vectorization: str) -> None:
    """The environment raises where it is given what it forbids."""
    agent = pg.PPO(FORMS[form], vectorization=vectorization, **SMALL)
    assert agent.agent.spaces.has_mask
    agent.learn(64)
    rollout = agent.collect(8)
    assert rollout.masks is not None
    assert rollout.masks.shape[-1] == 12  # 4, 2 + 3 and 3: none for the numbers
    assert not rollout.masks.all()
    agent.evaluate(2, deterministic=True)
    agent.evaluate(2, deterministic=False)
    agent.close()


def test_the_three_forms_of_a_mask_give_the_same_run() -> None:
    agents = [pg.PPO(make, **SMALL) for make in FORMS.values()]
    for agent in agents:
        agent.learn(64)
    first, *others = (agent.tensors() for agent in agents)
    for other in others:
        assert all(torch.equal(tensor, other[name]) for name, tensor in first.items())


def test_predict_takes_masks_flat_and_nested() -> None:
    agent = pg.PPO(MaskedHybridEnv, **SMALL)
    env = MaskedHybridEnv("nested")
    observation, info = env.reset(seed=0)
    nested = info["action_mask"]
    assert env.action_space.sample(mask={**nested, "level": None}) in env.action_space  # as gymnasium takes it
    flat = np.concatenate([g for groups in env.masks.values() for g in groups])
    for _ in range(10):
        states = torch.random.get_rng_state()
        action, _ = agent.predict(observation, mask=nested, deterministic=False)
        torch.random.set_rng_state(states)
        again, _ = agent.predict(observation, mask=flat, deterministic=False)
        assert all(np.array_equal(action[name], again[name]) for name in action)
        masks = env.masks
        env.step(action)  # raises where it is forbidden
        env.masks = masks
    only = {"move": np.array([0, 0, 1, 0]), "keys": (np.array([0, 1]), np.array([1, 0, 0])), "aim": None}
    action, _ = agent.predict(observation, mask=only)
    assert (action["move"], action["keys"].tolist()) == (3, [1, 0])
    batch = {name: np.stack([entry] * 2) for name, entry in observation.items()}
    several = {"move": np.array([[0, 0, 1, 0], [1, 0, 0, 0]]), "keys": (np.array([[0, 1], [1, 0]]), None)}
    actions, _ = agent.predict(batch, mask=several)
    assert actions["move"].tolist() == [3, 1]
    assert actions["keys"][:, 0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        ({"move": np.ones(3)}, r"mask of one observation has shape \(3,\) for the part 'move', which needs 4 entries"),
        ({"mov": np.ones(4)}, "names the part 'mov', which does not exist; those .* are move, keys, level"),
        ({"aim": np.ones(1)}, "names the part 'aim', which has no choices"),
        ({"keys": (np.ones(2), np.zeros(3))}, "mask of observation 0 allows no action at all for 'keys'"),
        ({"keys": (np.ones(2), np.ones(2))}, "for the part 'keys.1', which needs 3 entries"),
        (np.ones(11), r"has shape \(11,\), but one observation with the action space .* needs \(1, 12\)"),
        ([[1, 2], [3]], "rows of unlike length"),
    ],
)
def test_masks_that_do_not_fit_are_told_by_the_parts_name(mask: Any, sentence: str) -> None:
    agent = pg.PPO(MaskedHybridEnv, **SMALL)
    observation, _ = MaskedHybridEnv().reset(seed=0)
    with pytest.raises(EnvError, match=sentence):
        agent.predict(observation, mask=mask)


def test_masks_of_several_choices_may_be_a_tuple_as_gymnasium_has_it() -> None:
    layout = envs.ActionAdapter(spaces.MultiDiscrete([2, 3])).masks
    wanted = [[True, False, True, True, False]]
    assert layout.batch((np.array([1, 0]), np.array([1, 1, 0])), 1).tolist() == wanted
    assert layout.batch((np.array([[1, 0]] * 2), np.array([[1, 1, 0]] * 2)), 2).tolist() == wanted * 2
    assert layout.batch(np.array([1, 0, 1, 1, 0]), 1).tolist() == wanted
    square = envs.ActionAdapter(spaces.MultiDiscrete([2, 2])).masks  # where tuples and rows look alike
    assert square.batch((np.array([[1, 0], [0, 1]]), np.ones((2, 2))), 2).tolist() == [[1, 0, 1, 1], [0, 1, 1, 1]]


def test_a_mask_in_the_observation_must_fit_the_actions() -> None:
    class Wrong(HybridIdentityEnv):
        def __init__(self) -> None:
            super().__init__(spaces.Dict(move=spaces.Discrete(3), aim=spaces.Box(0, 1, (1,))))
            parts = dict(self.observation_space.items())  # type: ignore[attr-defined]
            mask = spaces.Dict(move=spaces.MultiBinary(4))
            self.observation_space = spaces.Dict({**parts, "action_mask": mask})

    with pytest.raises(EnvError, match=r"action_mask of the observation has shape \(4,\) for the part 'move'"):
        pg.PPO(Wrong, **SMALL)


# ---- spaces that work, and sentences for those that do not


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (spaces.Dict({}), "has nothing to choose"),
        (spaces.Tuple(()), "has nothing to choose"),
        (spaces.Dict({"a": spaces.Dict({})}), "has nothing to choose"),
        (spaces.Dict({"": spaces.Discrete(2)}), "has a part whose name is empty"),
        (spaces.Dict({0: spaces.Discrete(2)}), "has a key that is no text"),  # type: ignore[dict-item]
        (spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "flatten to one name"),
        (spaces.Dict({"a": spaces.Box(0, 1, (0,)), "b": spaces.Discrete(2)}), "part 'a' .* has no numbers"),
        (spaces.Dict({"a": spaces.Text(3), "b": spaces.Discrete(2)}), "part 'a' of the action space, Text.* not supported"),
        (spaces.Dict({"a": spaces.Box(-np.inf, 3, (2,), np.int32)}), "part 'a' .* has integers without bounds"),
        (spaces.Box(0, MOST_CHOICES, (1,), np.int64), r"has 1,048,577 choices in all, which must be 1 to 1,048,576"),
    ],
)  # fmt: skip
def test_spaces_that_cannot_be_are_refused_in_one_sentence(space: gym.Space, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        envs.ActionAdapter(space)


def test_names_with_dots_work_where_they_do_not_clash() -> None:
    space = spaces.Dict({"a.b": spaces.Discrete(2), "c": spaces.Dict({"": spaces.Discrete(3)})})
    agent = pg.PPO(lambda: HybridIdentityEnv(space), **SMALL)
    agent.learn(32)
    assert agent.predict(HybridIdentityEnv(space).reset(seed=0)[0])[0] in space


def test_boxes_of_integers_are_choices_with_an_offset() -> None:
    own = envs.ActionAdapter(hybrid_envs.integers())
    assert own.space == spaces.MultiDiscrete([3, 2])
    taken = own.to_environment(np.array([[0, 1], [2, 0]]), 2)
    assert taken.tolist() == [[[-1, 6]], [[1, 5]]]
    assert taken.dtype == np.int16
    assert envs.ActionAdapter(spaces.Box(0, 1, (2,), np.bool_)).space == spaces.MultiDiscrete([2, 2])
    largest = spaces.Box(np.uint64(2**64 - 3), np.uint64(2**64 - 1), (1,), np.uint64)
    assert envs.ActionAdapter(largest).to_environment(np.array([[2]]), 1).tolist() == [[2**64 - 1]]


def test_spaces_keep_their_order_on_disk(tmp_path: Path) -> None:
    space = spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=mixed_space(), b=hybrid_envs.choices_space()))
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    assert list(envs.ActionAdapter(again).space.spaces) == list(envs.ActionAdapter(space).space.spaces)  # type: ignore[attr-defined]
    agent = pg.PPO(HybridIdentityEnv, **SMALL)
    agent.save(tmp_path / "saved")
    loaded = pg.load(tmp_path / "saved", env=HybridIdentityEnv)
    observation, _ = HybridIdentityEnv().reset(seed=0)
    mine, theirs = (one.predict(observation)[0] for one in (agent, loaded))
    assert list(theirs) == list(mine) == ["move", "aim", "more"]
    assert str(mine) == str(theirs)


def test_an_environment_whose_parts_have_another_order_is_refused() -> None:
    agent = pg.PPO(HybridIdentityEnv, **SMALL)
    env: Any = envs.make(HybridIdentityEnv, num_envs=2, seeds=[0, 1])
    agent.agent.require_spaces(env)
    env.action_space = spaces.Dict(OrderedDict(reversed(env.action_space.spaces.items())))
    assert env.action_space == agent.agent.action_space  # to gymnasium
    for require in (agent.agent.require_spaces, agent.agent.require_form):
        with pytest.raises(EnvError, match=r"action space of HybridIdentityEnv is Dict.*trained with Dict"):
            require(env)


def test_logged_actions_of_parts_are_checked_and_kept_small() -> None:
    space = envs.ActionAdapter(mixed_space()).space
    good = torch.tensor([[[2, 0.5, 9.0, 1, 2, 0, 1, 2, 1]]])
    assert can_be_taken(good, space)
    for column, value in ((0, 3.0), (0, 0.5), (1, torch.inf), (5, 2.0), (7, -1.0), (4, torch.nan)):
        bad = good.clone()
        bad[..., column] = value
        assert not can_be_taken(bad, space), (column, value)
    assert stored_dtype(space, torch.float32) == torch.float32
    choices = envs.ActionAdapter(hybrid_envs.choices_space()).space
    assert stored_dtype(choices, torch.int64) == torch.uint8
    assert can_be_taken(torch.tensor([[[2, 1, 0]]], dtype=torch.uint8), choices)
    assert not can_be_taken(torch.tensor([[[3, 1, 0]]], dtype=torch.uint8), choices)
    wide = envs.ActionAdapter(spaces.Tuple((spaces.Discrete(300), spaces.Discrete(2)))).space
    assert stored_dtype(wide, torch.int64) == torch.int64


def test_settings_of_boxes_apply_to_the_boxes_among_the_parts() -> None:
    bounds = pg.PPO(HybridIdentityEnv, action_bounds="rescale", **SMALL).agent.bounds
    flat = np.array([[2, -1.0, 1.0, 1, 2, 0, 1, 2, 1], [0, 5.0, -0.5, 0, 0, 1, 1, 0, 0]], np.float32)
    assert bounds(flat)[:, 1:3].tolist() == [[-1.0, 4.0], [1.0, 1.0]]
    assert (bounds(flat)[:, [0, 3, 4, 5, 6, 7, 8]] == flat[:, [0, 3, 4, 5, 6, 7, 8]]).all()
    clip = pg.PPO(HybridIdentityEnv, action_bounds="clip", **SMALL).agent.bounds
    assert clip(flat)[:, 1:3].tolist() == [[-1.0, 1.0], [1.0, 0.0]]
    free = spaces.Dict(a=spaces.Box(-np.inf, 1, (1,)), b=spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"The part 'a' of the actions: action_bounds rescale needs finite"):
        pg.PPO(lambda: HybridIdentityEnv(free), action_bounds="rescale", **SMALL)
    for std in ("state_independent", "state_dependent", "fixed"):
        agent = pg.PPO(HybridIdentityEnv, std=std, initial_std=0.3, mean_tanh=True, action_bounds="clip", **SMALL)
        agent.experience.be_ready()
        observation = agent.collect(4).observations
        params = agent.model.policy({name: leaf[0] for name, leaf in observation.items()})
        described = agent.distribution.described(params)
        wanted = torch.tensor([0.2, 0.4]) if std == "fixed" else torch.tensor([0.3, 0.3])
        if std != "fixed":
            torch.testing.assert_close(described["aim.std"][0], wanted, rtol=0.1, atol=0.0)
        else:
            fraction = agent.config.fixed_std_fraction
            torch.testing.assert_close(described["aim.std"][0], fraction * torch.tensor([2.0, 4.0]))
        assert (described["aim.mean"].abs() <= 1).all()
