"""The algorithms as editors and type checkers see them: every setting by name. Written by tools/write_signatures.py."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phasegrad.agent import Spaces
from phasegrad.algorithms.a2c import A2C as _A2C
from phasegrad.algorithms.acer import ACER as _ACER
from phasegrad.algorithms.base import Algorithm as Algorithm
from phasegrad.algorithms.ppg import PPG as _PPG
from phasegrad.algorithms.ppo import PPO as _PPO
from phasegrad.algorithms.registry import ALGORITHMS as ALGORITHMS
from phasegrad.algorithms.registry import register as register
from phasegrad.algorithms.trpo import TRPO as _TRPO
from phasegrad.algorithms.vpg import VPG as _VPG
from phasegrad.config import Config

class PPO(_PPO):
    """Proximal Policy Optimization.

    `env` is an environment id, a function that makes a gymnasium environment, or a gymnasium VectorEnv. `run_dir` is
    where checkpoints and metrics go; nothing is written without it. `overwrite` replaces a run that is there.

    Settings changed most, of 82, with their defaults. What you do not set, the environment's preset may:

        env_options = {}: keyword arguments of the environment; on the command line --env.NAME VALUE
        total_steps = 1000000: environment steps of the whole run, over all environments
        seed = 1: seed of everything: weights, actions, minibatches, environments
        preset = 'auto': named settings to start from; auto picks the environment's, none takes the
            plain defaults
        num_envs = 8: N: environments stepped together
        num_steps = 256: T: steps of each environment in a rollout
        gamma = 0.99: discount factor
        gae_lambda = 0.95: lambda of generalised advantage estimation
        learning_rate = 0.0003: Adam's step size; a number, or over the run linear:START:END,
            cosine:START:END, constant:NUMBER, warmup:FRACTION:SCHEDULE
        epochs = 10: passes over each rollout [K]
        num_minibatches = 32: gradient steps per epoch
        objective = 'clip': surrogate: pg, cpi (no clipping), clip, kl (fixed, or adaptive with
            kl_target)
        clip_range = 0.2: how far the probability ratio may be from 1 before it is clipped, or its
            schedule [epsilon]
        entropy_coef = 0.0: weight of the entropy bonus, or its schedule [c_2, beta_S]
        normalize_observation = False: running mean and variance of Box observations, floats or
            integers; uint8 images stay as they are
        normalize_reward = False: divide rewards by the running deviation of the discounted return
    """

    def __init__(
        self,
        env: Any = None,
        *,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        config: Config | None = None,
        spaces: Spaces | None = None,
        env_options: Mapping[str, Any] = {},
        total_steps: int = 1000000,
        seed: int = 1,
        preset: str = "auto",
        device: str = "auto",
        storage: str = "auto",
        compile: str = "auto",
        act_precision: str = "float32",
        torch_threads: int = 0,
        checkpoint_every: int = 0,
        restart_every: int = 0,
        keep_checkpoints: int = 3,
        eval_checkpoints: int = 0,
        eval_every: int = 0,
        eval_episodes: int | None = None,
        stop_at: float | None = None,
        log_steps: bool = False,
        track: str = "none",
        backend: str = "auto",
        vectorization: str = "sync",
        env_threads: int = 0,
        env_timeout: float = 0.0,
        num_envs: int = 8,
        num_steps: int = 256,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        policy_gae_lambda: float | None = None,
        bootstrap_truncated: bool = True,
        action_bounds: str = "clip",
        normalize_observation: bool = False,
        clip_observation: float = 10.0,
        normalize_reward: bool = False,
        clip_reward: float = 10.0,
        reward_gamma: float | None = None,
        arch: str = "auto",
        encoder: Any = "auto",
        hidden_sizes: Sequence[int] = (64, 64),
        value_hidden_sizes: Sequence[int] | None = None,
        activation: str = "tanh",
        layer_norm: bool = False,
        images: str = "all",
        critic_only: Sequence[str] = (),
        impala_channels: Sequence[int] = (16, 32, 32),
        impala_stem: int = 0,
        impala_stem_stride: int = 2,
        impala_pooling: str = "flatten",
        frame_stack: int = 1,
        memory: str = "none",
        memory_size: int = 64,
        sequence_length: int | None = None,
        action_distribution: str = "auto",
        policy_gain: float = 0.01,
        std: str = "state_independent",
        initial_std: float = 1.0,
        std_floor: float = 0.001,
        fixed_std_fraction: float = 0.05,
        mean_tanh: bool = False,
        learning_rate: float | str | Callable[[float], float] = 0.0003,
        critic_learning_rate: float | str | Callable[[float], float] | None = None,
        anneal_learning_rate: bool = False,
        adam_eps: float = 1e-05,
        entropy_coef: float | str | Callable[[float], float] = 0.0,
        max_grad_norm: float = 0.5,
        kl_learning_rate: float = 0.0,
        objective: str = "clip",
        clip_range: float | str | Callable[[float], float] = 0.2,
        anneal_clip_range: bool = False,
        kl_beta: float = 1.0,
        kl_target: float = 0.0,
        num_minibatches: int = 32,
        whole_segments: bool = False,
        value_coef: float | str | Callable[[float], float] = 0.5,
        value_clip: float = 0.0,
        normalize_advantage: str = "minibatch",
        leash: float | None = None,
        leash_steps: int | None = None,
        critic_warmup: int = 0,
        measure_interference: bool = False,
        epochs: int = 10,
        kl_stop: float = 0.0,
        recompute_advantages: bool = False,
    ) -> None: ...

class PPG(_PPG):
    """Phasic Policy Gradient.

    `env` is an environment id, a function that makes a gymnasium environment, or a gymnasium VectorEnv. `run_dir` is
    where checkpoints and metrics go; nothing is written without it. `overwrite` replaces a run that is there.

    Settings changed most, of 95, with their defaults. What you do not set, the environment's preset may:

        env_options = {}: keyword arguments of the environment; on the command line --env.NAME VALUE
        total_steps = 1000000: environment steps of the whole run, over all environments
        seed = 1: seed of everything: weights, actions, minibatches, environments
        preset = 'auto': named settings to start from; auto picks the environment's, none takes the
            plain defaults
        num_envs = 8: N: environments stepped together
        num_steps = 256: T: steps of each environment in a rollout
        gamma = 0.99: discount factor
        gae_lambda = 0.95: lambda of generalised advantage estimation
        n_pi = 32: policy iterations before each auxiliary phase [N_pi]
        e_pi = 1: epochs of the policy loss on each rollout [E_pi]
        e_v = 1: epochs of the value loss on each rollout [E_V]
        e_aux = 6: epochs of the auxiliary phase over the buffer [E_aux]; 0 leaves the phase out
        beta_clone = 1.0: weight of the KL that holds the policy in place in the auxiliary phase, or its
            schedule [beta_clone]
        learning_rate = 0.0003: Adam's step size; a number, or over the run linear:START:END,
            cosine:START:END, constant:NUMBER, warmup:FRACTION:SCHEDULE
        aux_learning_rate = 0.0005: step size of the auxiliary phase's own Adam, or its schedule
        entropy_coef = 0.0: weight of the entropy bonus, or its schedule [c_2, beta_S]
        arch = 'dual': dual: separate policy and value networks; detach: one network whose value head
            trains the trunk only in the auxiliary phase; shared: one network, as in PPO
    """

    def __init__(
        self,
        env: Any = None,
        *,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        config: Config | None = None,
        spaces: Spaces | None = None,
        env_options: Mapping[str, Any] = {},
        total_steps: int = 1000000,
        seed: int = 1,
        preset: str = "auto",
        device: str = "auto",
        storage: str = "auto",
        compile: str = "auto",
        act_precision: str = "float32",
        torch_threads: int = 0,
        checkpoint_every: int = 0,
        restart_every: int = 0,
        keep_checkpoints: int = 3,
        eval_checkpoints: int = 0,
        eval_every: int = 0,
        eval_episodes: int | None = None,
        stop_at: float | None = None,
        log_steps: bool = False,
        track: str = "none",
        backend: str = "auto",
        vectorization: str = "sync",
        env_threads: int = 0,
        env_timeout: float = 0.0,
        num_envs: int = 8,
        num_steps: int = 256,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        policy_gae_lambda: float | None = None,
        bootstrap_truncated: bool = True,
        action_bounds: str = "clip",
        normalize_observation: bool = False,
        clip_observation: float = 10.0,
        normalize_reward: bool = True,
        clip_reward: float = 10.0,
        reward_gamma: float | None = None,
        arch: str = "dual",
        encoder: Any = "auto",
        hidden_sizes: Sequence[int] = (64, 64),
        value_hidden_sizes: Sequence[int] | None = None,
        activation: str = "tanh",
        layer_norm: bool = False,
        images: str = "all",
        critic_only: Sequence[str] = (),
        impala_channels: Sequence[int] = (16, 32, 32),
        impala_stem: int = 0,
        impala_stem_stride: int = 2,
        impala_pooling: str = "flatten",
        frame_stack: int = 1,
        memory: str = "none",
        memory_size: int = 64,
        sequence_length: int | None = None,
        action_distribution: str = "auto",
        policy_gain: float = 0.01,
        std: str = "state_independent",
        initial_std: float = 1.0,
        std_floor: float = 0.001,
        fixed_std_fraction: float = 0.05,
        mean_tanh: bool = False,
        learning_rate: float | str | Callable[[float], float] = 0.0003,
        critic_learning_rate: float | str | Callable[[float], float] | None = None,
        anneal_learning_rate: bool = False,
        adam_eps: float = 1e-05,
        entropy_coef: float | str | Callable[[float], float] = 0.0,
        max_grad_norm: float = 0.5,
        kl_learning_rate: float = 0.0,
        objective: str = "clip",
        clip_range: float | str | Callable[[float], float] = 0.2,
        anneal_clip_range: bool = False,
        kl_beta: float = 1.0,
        kl_target: float = 0.0,
        num_minibatches: int = 32,
        whole_segments: bool = False,
        value_coef: float | str | Callable[[float], float] = 0.5,
        value_clip: float = 0.0,
        normalize_advantage: str = "minibatch",
        leash: float | None = None,
        leash_steps: int | None = None,
        critic_warmup: int = 0,
        measure_interference: bool = False,
        n_pi: int = 32,
        e_pi: int = 1,
        e_v: int = 1,
        e_aux: int = 6,
        beta_clone: float | str | Callable[[float], float] = 1.0,
        aux_learning_rate: float | str | Callable[[float], float] = 0.0005,
        aux_minibatches: int = 0,
        aux_target: str = "returns",
        aux_value_loss: bool = True,
        aux_head: bool = False,
        aux_interval: int = 0,
        aux_buffer: int = 0,
        aux_steps: int = 0,
        aux_minibatch_size: int = 0,
        aux_precision: str = "float32",
        hold_value: bool = False,
    ) -> None: ...

class A2C(_A2C):
    """Advantage Actor-Critic.

    `env` is an environment id, a function that makes a gymnasium environment, or a gymnasium VectorEnv. `run_dir` is
    where checkpoints and metrics go; nothing is written without it. `overwrite` replaces a run that is there.

    Settings changed most, of 72, with their defaults. What you do not set, the environment's preset may:

        env_options = {}: keyword arguments of the environment; on the command line --env.NAME VALUE
        total_steps = 1000000: environment steps of the whole run, over all environments
        seed = 1: seed of everything: weights, actions, minibatches, environments
        preset = 'auto': named settings to start from; auto picks the environment's, none takes the
            plain defaults
        num_envs = 16: N: environments stepped together
        num_steps = 5: T: steps of each environment before each update [t_max]
        gamma = 0.99: discount factor
        gae_lambda = 1.0: lambda of generalised advantage estimation; 1 is the n-step return
        learning_rate = 0.0007: the optimiser's step size; a number, or over the run linear:START:END,
            cosine:START:END, constant:NUMBER, warmup:FRACTION:SCHEDULE
        optimizer = 'rmsprop': the optimiser to use
        entropy_coef = 0.01: weight of the entropy bonus, or its schedule [beta]
        value_coef = 0.5: weight of the value loss 1/2 (R - V)^2, or its schedule
        hidden_sizes = (64, 64): widths of the MLP's layers, such as 64,64
        normalize_observation = False: running mean and variance of Box observations, floats or
            integers; uint8 images stay as they are
        normalize_reward = False: divide rewards by the running deviation of the discounted return
    """

    def __init__(
        self,
        env: Any = None,
        *,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        config: Config | None = None,
        spaces: Spaces | None = None,
        env_options: Mapping[str, Any] = {},
        total_steps: int = 1000000,
        seed: int = 1,
        preset: str = "auto",
        device: str = "auto",
        storage: str = "auto",
        compile: str = "auto",
        act_precision: str = "float32",
        torch_threads: int = 0,
        checkpoint_every: int = 0,
        restart_every: int = 0,
        keep_checkpoints: int = 3,
        eval_checkpoints: int = 0,
        eval_every: int = 0,
        eval_episodes: int | None = None,
        stop_at: float | None = None,
        log_steps: bool = False,
        track: str = "none",
        backend: str = "auto",
        vectorization: str = "sync",
        env_threads: int = 0,
        env_timeout: float = 0.0,
        num_envs: int = 16,
        num_steps: int = 5,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        policy_gae_lambda: float | None = None,
        bootstrap_truncated: bool = True,
        action_bounds: str = "clip",
        normalize_observation: bool = False,
        clip_observation: float = 10.0,
        normalize_reward: bool = False,
        clip_reward: float = 10.0,
        reward_gamma: float | None = None,
        arch: str = "auto",
        encoder: Any = "auto",
        hidden_sizes: Sequence[int] = (64, 64),
        value_hidden_sizes: Sequence[int] | None = None,
        activation: str = "tanh",
        layer_norm: bool = False,
        images: str = "all",
        critic_only: Sequence[str] = (),
        impala_channels: Sequence[int] = (16, 32, 32),
        impala_stem: int = 0,
        impala_stem_stride: int = 2,
        impala_pooling: str = "flatten",
        frame_stack: int = 1,
        memory: str = "none",
        memory_size: int = 64,
        sequence_length: int | None = None,
        action_distribution: str = "auto",
        policy_gain: float = 0.01,
        std: str = "state_independent",
        initial_std: float = 1.0,
        std_floor: float = 0.001,
        fixed_std_fraction: float = 0.05,
        mean_tanh: bool = False,
        learning_rate: float | str | Callable[[float], float] = 0.0007,
        critic_learning_rate: float | str | Callable[[float], float] | None = None,
        anneal_learning_rate: bool = False,
        adam_eps: float = 1e-05,
        entropy_coef: float | str | Callable[[float], float] = 0.01,
        max_grad_norm: float = 0.5,
        kl_learning_rate: float = 0.0,
        optimizer: str = "rmsprop",
        rmsprop_alpha: float = 0.99,
        rmsprop_eps: float = 1e-05,
        rmsprop_inside_root: bool = False,
        updates_per_iteration: int = 32,
        value_coef: float | str | Callable[[float], float] = 0.5,
        normalize_advantage: str = "none",
    ) -> None: ...

class VPG(_VPG):
    """Vanilla policy gradient.

    `env` is an environment id, a function that makes a gymnasium environment, or a gymnasium VectorEnv. `run_dir` is
    where checkpoints and metrics go; nothing is written without it. `overwrite` replaces a run that is there.

    Settings changed most, of 67, with their defaults. What you do not set, the environment's preset may:

        env_options = {}: keyword arguments of the environment; on the command line --env.NAME VALUE
        total_steps = 1000000: environment steps of the whole run, over all environments
        seed = 1: seed of everything: weights, actions, minibatches, environments
        preset = 'auto': named settings to start from; auto picks the environment's, none takes the
            plain defaults
        num_envs = 8: N: environments stepped together
        num_steps = 500: T: steps of each environment in a rollout
        gamma = 0.99: discount factor
        gae_lambda = 0.97: lambda of generalised advantage estimation
        learning_rate = 0.0003: Adam's step size; a number, or over the run linear:START:END,
            cosine:START:END, constant:NUMBER, warmup:FRACTION:SCHEDULE
        critic_learning_rate = 0.001: Adam's step size on the value network, or its schedule
        value_steps = 80: steps on the value network after each step on the policy
        entropy_coef = 0.0: weight of the entropy bonus, or its schedule [c_2, beta_S]
        hidden_sizes = (64, 64): widths of the MLP's layers, such as 64,64
        normalize_observation = False: running mean and variance of Box observations, floats or
            integers; uint8 images stay as they are
        normalize_reward = False: divide rewards by the running deviation of the discounted return
    """

    def __init__(
        self,
        env: Any = None,
        *,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        config: Config | None = None,
        spaces: Spaces | None = None,
        env_options: Mapping[str, Any] = {},
        total_steps: int = 1000000,
        seed: int = 1,
        preset: str = "auto",
        device: str = "auto",
        storage: str = "auto",
        compile: str = "auto",
        act_precision: str = "float32",
        torch_threads: int = 0,
        checkpoint_every: int = 0,
        restart_every: int = 0,
        keep_checkpoints: int = 3,
        eval_checkpoints: int = 0,
        eval_every: int = 0,
        eval_episodes: int | None = None,
        stop_at: float | None = None,
        log_steps: bool = False,
        track: str = "none",
        backend: str = "auto",
        vectorization: str = "sync",
        env_threads: int = 0,
        env_timeout: float = 0.0,
        num_envs: int = 8,
        num_steps: int = 500,
        gamma: float = 0.99,
        gae_lambda: float = 0.97,
        policy_gae_lambda: float | None = None,
        bootstrap_truncated: bool = True,
        action_bounds: str = "clip",
        normalize_observation: bool = False,
        clip_observation: float = 10.0,
        normalize_reward: bool = False,
        clip_reward: float = 10.0,
        reward_gamma: float | None = None,
        arch: str = "dual",
        encoder: Any = "auto",
        hidden_sizes: Sequence[int] = (64, 64),
        value_hidden_sizes: Sequence[int] | None = None,
        activation: str = "tanh",
        layer_norm: bool = False,
        images: str = "all",
        critic_only: Sequence[str] = (),
        impala_channels: Sequence[int] = (16, 32, 32),
        impala_stem: int = 0,
        impala_stem_stride: int = 2,
        impala_pooling: str = "flatten",
        frame_stack: int = 1,
        memory: str = "none",
        memory_size: int = 64,
        sequence_length: int | None = None,
        action_distribution: str = "auto",
        policy_gain: float = 0.01,
        std: str = "state_independent",
        initial_std: float = 1.0,
        std_floor: float = 0.001,
        fixed_std_fraction: float = 0.05,
        mean_tanh: bool = False,
        learning_rate: float | str | Callable[[float], float] = 0.0003,
        critic_learning_rate: float | str | Callable[[float], float] = 0.001,
        anneal_learning_rate: bool = False,
        adam_eps: float = 1e-05,
        entropy_coef: float | str | Callable[[float], float] = 0.0,
        max_grad_norm: float = 0.0,
        kl_learning_rate: float = 0.0,
        value_steps: int = 80,
        normalize_advantage: str = "batch",
    ) -> None: ...

class TRPO(_TRPO):
    """Trust Region Policy Optimization.

    `env` is an environment id, a function that makes a gymnasium environment, or a gymnasium VectorEnv. `run_dir` is
    where checkpoints and metrics go; nothing is written without it. `overwrite` replaces a run that is there.

    Settings changed most, of 71, with their defaults. What you do not set, the environment's preset may:

        env_options = {}: keyword arguments of the environment; on the command line --env.NAME VALUE
        total_steps = 1000000: environment steps of the whole run, over all environments
        seed = 1: seed of everything: weights, actions, minibatches, environments
        preset = 'auto': named settings to start from; auto picks the environment's, none takes the
            plain defaults
        num_envs = 8: N: environments stepped together
        num_steps = 256: T: steps of each environment in a rollout
        gamma = 0.99: discount factor
        gae_lambda = 0.97: lambda of generalised advantage estimation
        max_kl = 0.01: mean KL that no update of the policy exceeds, or its schedule [delta]
        cg_iterations = 10: iterations of the conjugate gradient method
        critic_learning_rate = 0.001: Adam's step size on the value network; a number, or over the run
            linear:START:END, cosine:START:END, constant:NUMBER, warmup:FRACTION:SCHEDULE
        value_epochs = 5: passes of the value regression over each rollout
        entropy_coef = 0.0: weight of the entropy bonus in L, or its schedule
        hidden_sizes = (64, 64): widths of the MLP's layers, such as 64,64
        normalize_observation = False: running mean and variance of Box observations, floats or
            integers; uint8 images stay as they are
        normalize_reward = False: divide rewards by the running deviation of the discounted return
    """

    def __init__(
        self,
        env: Any = None,
        *,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        config: Config | None = None,
        spaces: Spaces | None = None,
        env_options: Mapping[str, Any] = {},
        total_steps: int = 1000000,
        seed: int = 1,
        preset: str = "auto",
        device: str = "auto",
        storage: str = "auto",
        compile: str = "auto",
        act_precision: str = "float32",
        torch_threads: int = 0,
        checkpoint_every: int = 0,
        restart_every: int = 0,
        keep_checkpoints: int = 3,
        eval_checkpoints: int = 0,
        eval_every: int = 0,
        eval_episodes: int | None = None,
        stop_at: float | None = None,
        log_steps: bool = False,
        track: str = "none",
        backend: str = "auto",
        vectorization: str = "sync",
        env_threads: int = 0,
        env_timeout: float = 0.0,
        num_envs: int = 8,
        num_steps: int = 256,
        gamma: float = 0.99,
        gae_lambda: float = 0.97,
        policy_gae_lambda: float | None = None,
        bootstrap_truncated: bool = True,
        action_bounds: str = "clip",
        normalize_observation: bool = False,
        clip_observation: float = 10.0,
        normalize_reward: bool = False,
        clip_reward: float = 10.0,
        reward_gamma: float | None = None,
        arch: str = "dual",
        encoder: Any = "auto",
        hidden_sizes: Sequence[int] = (64, 64),
        value_hidden_sizes: Sequence[int] | None = None,
        activation: str = "tanh",
        layer_norm: bool = False,
        images: str = "all",
        critic_only: Sequence[str] = (),
        impala_channels: Sequence[int] = (16, 32, 32),
        impala_stem: int = 0,
        impala_stem_stride: int = 2,
        impala_pooling: str = "flatten",
        frame_stack: int = 1,
        memory: str = "none",
        memory_size: int = 64,
        sequence_length: int | None = None,
        action_distribution: str = "auto",
        policy_gain: float = 0.01,
        std: str = "state_independent",
        initial_std: float = 1.0,
        std_floor: float = 0.001,
        fixed_std_fraction: float = 0.05,
        mean_tanh: bool = False,
        max_kl: float | str | Callable[[float], float] = 0.01,
        cg_iterations: int = 10,
        cg_damping: float = 0.1,
        fisher_samples: int = 0,
        line_search_tries: int = 10,
        line_search_decay: float = 0.8,
        entropy_coef: float | str | Callable[[float], float] = 0.0,
        normalize_advantage: str = "batch",
        critic_learning_rate: float | str | Callable[[float], float] = 0.001,
        adam_eps: float = 1e-05,
        value_epochs: int = 5,
        num_minibatches: int = 32,
        max_grad_norm: float = 0.0,
    ) -> None: ...

class ACER(_ACER):
    """Actor-Critic with Experience Replay.

    `env` is an environment id, a function that makes a gymnasium environment, or a gymnasium VectorEnv. `run_dir` is
    where checkpoints and metrics go; nothing is written without it. `overwrite` replaces a run that is there.

    Settings changed most, of 77, with their defaults. What you do not set, the environment's preset may:

        env_options = {}: keyword arguments of the environment; on the command line --env.NAME VALUE
        total_steps = 1000000: environment steps of the whole run, over all environments
        seed = 1: seed of everything: weights, actions, minibatches, environments
        preset = 'auto': named settings to start from; auto picks the environment's, none takes the
            plain defaults
        num_envs = 16: N: environments stepped together, and trajectories of a replay update
        num_steps = 20: T: steps of each environment before each update [k]
        gamma = 0.99: discount factor
        gae_lambda = 1.0: lambda of Retrace's traces, 1 in the paper
        learning_rate = 0.0007: the optimiser's step size; a number, or over the run linear:START:END,
            cosine:START:END, constant:NUMBER, warmup:FRACTION:SCHEDULE
        replay_ratio = 4.0: mean number of replay updates per rollout (Poisson-distributed) [r]; 0 is
            on-policy
        replay_capacity = 50000: environment steps that the replay memory holds
        trust_region = True: keep each update near the average policy
        trust_region_delta = 1.0: how far an update may move from the average policy [delta]
        importance_clip = 10.0: where importance weights are truncated, with a bias correction [c]
        entropy_coef = 0.01: weight of the entropy bonus, or its schedule
        hidden_sizes = (64, 64): widths of the MLP's layers, such as 64,64
    """

    def __init__(
        self,
        env: Any = None,
        *,
        run_dir: str | Path | None = None,
        overwrite: bool = False,
        config: Config | None = None,
        spaces: Spaces | None = None,
        env_options: Mapping[str, Any] = {},
        total_steps: int = 1000000,
        seed: int = 1,
        preset: str = "auto",
        device: str = "auto",
        storage: str = "auto",
        compile: str = "auto",
        act_precision: str = "float32",
        torch_threads: int = 0,
        checkpoint_every: int = 0,
        restart_every: int = 0,
        keep_checkpoints: int = 3,
        eval_checkpoints: int = 0,
        eval_every: int = 0,
        eval_episodes: int | None = None,
        stop_at: float | None = None,
        log_steps: bool = False,
        track: str = "none",
        backend: str = "auto",
        vectorization: str = "sync",
        env_threads: int = 0,
        env_timeout: float = 0.0,
        num_envs: int = 16,
        num_steps: int = 20,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        policy_gae_lambda: float | None = None,
        bootstrap_truncated: bool = True,
        action_bounds: str = "clip",
        normalize_observation: bool = False,
        clip_observation: float = 10.0,
        normalize_reward: bool = False,
        clip_reward: float = 10.0,
        reward_gamma: float | None = None,
        arch: str = "auto",
        encoder: Any = "auto",
        hidden_sizes: Sequence[int] = (64, 64),
        value_hidden_sizes: Sequence[int] | None = None,
        activation: str = "tanh",
        layer_norm: bool = False,
        images: str = "all",
        critic_only: Sequence[str] = (),
        impala_channels: Sequence[int] = (16, 32, 32),
        impala_stem: int = 0,
        impala_stem_stride: int = 2,
        impala_pooling: str = "flatten",
        frame_stack: int = 1,
        memory: str = "none",
        memory_size: int = 64,
        sequence_length: int | None = None,
        action_distribution: str = "auto",
        policy_gain: float = 0.01,
        std: str = "state_independent",
        initial_std: float = 1.0,
        std_floor: float = 0.001,
        fixed_std_fraction: float = 0.05,
        mean_tanh: bool = False,
        learning_rate: float | str | Callable[[float], float] = 0.0007,
        critic_learning_rate: float | str | Callable[[float], float] | None = None,
        anneal_learning_rate: bool = False,
        adam_eps: float = 1e-05,
        entropy_coef: float | str | Callable[[float], float] = 0.01,
        max_grad_norm: float = 10.0,
        optimizer: str = "rmsprop",
        rmsprop_alpha: float = 0.99,
        rmsprop_eps: float = 1e-05,
        rmsprop_inside_root: bool = False,
        updates_per_iteration: int = 8,
        q_coef: float | str | Callable[[float], float] = 0.5,
        replay_ratio: float = 4.0,
        replay_capacity: int = 50000,
        replay_start: int = 10000,
        importance_clip: float = 10.0,
        trust_region: bool = True,
        trust_region_delta: float = 1.0,
        average_decay: float = 0.99,
    ) -> None: ...
