"""Simulators of other libraries as environments that are tensors: Isaac Lab, ManiSkill, Brax and MuJoCo Playground.

They are known by what they can do; none of those libraries is imported before it is used. Isaac Lab, Brax and Playground
reset an environment on the step that ends its episode and do not say what was seen last: the observation before it stands
in for it, as in rsl_rl, so that the value of an episode that was cut is that of one step earlier.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from phasegrad.envs.tensor_contract import FINAL, TensorVectorEnv, seed_list
from phasegrad.errors import EnvError
from phasegrad.tree import tree_map

POLICY = "policy"  # the group of Isaac Lab's observations that a policy sees


def from_isaac_lab(env: Any) -> TensorVectorEnv:
    """An Isaac Lab environment (ManagerBasedRLEnv or DirectRLEnv), also inside gymnasium's wrappers."""
    return IsaacLabTensors(env)


def from_maniskill(env: Any) -> TensorVectorEnv:
    """A ManiSkillVectorEnv, which resets on the same step (`auto_reset=True`)."""
    return ManiSkillTensors(env)


def from_brax(env: Any, num_envs: int, device: Any = "cuda", jax: Any = None) -> TensorVectorEnv:
    """A Brax environment made with `batch_size=num_envs`, or a MuJoCo Playground one wrapped for Brax training.

    Arrays go from JAX to torch and back by DLPack, without a copy where both are on one device. `jax` is the library.
    """
    if jax is None:
        try:
            jax = importlib.import_module("jax")
        except ImportError:
            raise EnvError(
                "Brax and MuJoCo Playground need JAX, which is not installed here: pip install jax."
            ) from None
    return BraxTensors(env, num_envs, device, jax)


def tensor_env_of(env: Any) -> Any:
    """A simulator that was given as it is, as a TensorVectorEnv; what is none comes back unchanged."""
    if isinstance(env, TensorVectorEnv) or not isinstance(env, gym.Env | gym.vector.VectorEnv):
        return env
    inner = getattr(env, "unwrapped", env)
    if not hasattr(inner, "device") or not isinstance(getattr(inner, "num_envs", None), int):
        return env
    if isinstance(env, gym.vector.VectorEnv):
        return ManiSkillTensors(env) if hasattr(env, "auto_reset") else env
    return IsaacLabTensors(env) if hasattr(inner, "observation_manager") or hasattr(inner, "cfg") else env


class IsaacLabTensors(TensorVectorEnv):
    """Observations are a dict whose entry "policy" is what a policy sees, in one tensor or a dict of them."""

    def __init__(self, env: Any) -> None:
        inner = env.unwrapped
        self.env, self.num_envs, self.device = env, inner.num_envs, inner.device
        space = getattr(inner, "single_observation_space", None)
        seen = space[POLICY] if isinstance(space, gym.spaces.Dict) and POLICY in space.spaces else space
        if seen is None:
            raise EnvError(f"{type(inner).__name__} has no single_observation_space with an entry {POLICY!r}.")
        self.single_observation_space, self.single_action_space = seen, inner.single_action_space
        self._before: Any = None

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = self.env.reset(seed=seed_list(seed, self.num_envs)[0])
        self._before = _cloned(observation[POLICY])
        return observation[POLICY], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self.env.step(actions)
        before, self._before = self._before, _cloned(observation[POLICY])
        return observation[POLICY], reward, terminated, truncated, {FINAL: before}

    def close(self, **_: Any) -> None:
        self.env.close()


class ManiSkillTensors(TensorVectorEnv):
    """gymnasium's VectorEnv with tensors; its info has whole tensors under `final_observation` once episodes end."""

    def __init__(self, env: Any) -> None:
        inner = env.unwrapped
        self.env, self.num_envs, self.device = env, env.num_envs, getattr(env, "device", None) or inner.device
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        if getattr(env, "auto_reset", True) is False:
            raise EnvError("This ManiSkillVectorEnv does not reset by itself: make it with auto_reset=True.")

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = self.env.reset(seed=seed_list(seed, self.num_envs))
        return observation, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        final = info.get(FINAL, info.get("final_observation"))
        told: dict[str, Any] = {FINAL: observation if final is None else final}
        last = info.get("final_info") or info
        if "success" in last:
            told["success"] = last["success"]
        return observation, reward, terminated, truncated, told

    def close(self, **_: Any) -> None:
        self.env.close()


class BraxTensors(TensorVectorEnv):
    """A functional environment of JAX arrays: its state is kept here, its step is compiled once."""

    def __init__(self, env: Any, num_envs: int, device: Any, jax: Any) -> None:
        import torch

        self.env, self.num_envs, self.device, self.jax = env, num_envs, torch.device(device), jax
        size, actions = env.observation_size, int(env.action_size)
        self._dict = isinstance(size, dict)
        if not self._dict:
            self.single_observation_space = _box(size)
        else:
            self.single_observation_space = gym.spaces.Dict({name: _box(shape) for name, shape in size.items()})
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (actions,))
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._state: Any = None

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        random, keys = self.jax.random, seed_list(seed, self.num_envs)
        self._state = self._reset(random.split(random.PRNGKey(keys[0] % (1 << 31)), self.num_envs))
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        before = self._seen()
        self._state = self._step(self._state, self.jax.numpy.from_dlpack(actions.detach().contiguous()))
        done, info = self._tensor(self._state.done), self._state.info
        truncated = self._tensor(info["truncation"]) > 0 if "truncation" in info else done < 0
        return self._seen(), self._tensor(self._state.reward), (done > 0) & ~truncated, truncated, {FINAL: before}

    def _seen(self) -> Any:
        seen = self._state.obs
        return tree_map(self._tensor, dict(seen) if self._dict else seen)

    def _tensor(self, array: Any) -> Any:
        from torch.utils.dlpack import from_dlpack

        return from_dlpack(array)


def _box(shape: Any) -> gym.spaces.Box:
    whole = tuple(np.atleast_1d(shape).astype(int).tolist())
    return gym.spaces.Box(-np.inf, np.inf, whole, dtype=np.float32)


def _cloned(observation: Any) -> Any:
    """A copy: simulators write their next observation where the last one was."""
    return tree_map(lambda leaf: leaf.clone(), observation)
