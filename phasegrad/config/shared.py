"""The settings that every algorithm shares, and what a config may do with its own: freeze, follow schedules, be saved.

Nothing here knows what the settings are used for.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any

from phasegrad.config.coercing import (
    algorithm_name,
    coerce,
    coerce_fields,
    documented_fields,
    live_fields,
    lost_function,
    setting,
    short,
)
from phasegrad.errors import ConfigError, nearest
from phasegrad.schedules import LostFunction, Scheduled, as_given, completed

# What an agent's networks, storage, normalisers and optimisers are made for: it cannot change once they are.
FIXED_FIELDS = {
    "env", "num_envs", "num_steps", "device", "action_bounds", "normalize_observation", "clip_observation",
    "normalize_reward", "clip_reward", "reward_gamma", "arch", "encoder", "hidden_sizes", "value_hidden_sizes", "activation",
    "layer_norm", "images", "critic_only",
    "impala_channels", "impala_stem", "impala_stem_stride", "impala_pooling", "policy_gain", "std", "initial_std",
    "std_floor", "fixed_std_fraction", "mean_tanh", "frame_stack", "memory", "memory_size", "sequence_length", "adam_eps", "max_grad_norm", "optimizer", "rmsprop_alpha",
    "rmsprop_eps", "rmsprop_inside_root", "action_distribution", "n_pi", "aux_interval", "aux_buffer", "aux_head", "replay_ratio",
    "replay_capacity", "kl_learning_rate",
}  # fmt: skip
WEIGHTS = ("entropy_coef", "value_coef", "beta_clone", "q_coef")  # of a loss's terms; a program takes them as inputs
# Neither these nor what `scalars` give a loss is fixed in the program of one. All other settings count as if they were.
UNREAD_BY_LOSSES = {
    *WEIGHTS, *FIXED_FIELDS, "clip_range", "kl_beta", "leash", "kl_target", "kl_stop", "learning_rate", "critic_learning_rate",
    "aux_learning_rate", "gamma", "gae_lambda", "policy_gae_lambda", "average_decay", "max_kl", "cg_damping",
    "line_search_decay", "env_timeout", "preset", "stop_at", "compile", "log_steps", "track", "backend", "vectorization", "storage", "act_precision",
    "anneal_learning_rate", "anneal_clip_range",
}  # fmt: skip
SHORTEST, LONGEST = 8, 32  # steps of a training sequence, unless asked for
ENCODERS = ["auto", "mlp", "nature", "impala", "grid"]  # and those that are registered
ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu", "leaky_relu")


@dataclass(kw_only=True)
class Config:
    """What every algorithm shares: the environment, the networks, the run."""

    # The run
    env: str = setting("", "environment id: envpool's, gymnasium's, procgen/GAME or module:Id-v0")
    env_options: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"help": "keyword arguments of the environment; on the command line --env.NAME VALUE"},
    )
    total_steps: int = setting(1_000_000, "environment steps of the whole run, over all environments", low=1)
    seed: int = setting(1, "seed of everything: weights, actions, minibatches, environments", low=0, high=2**31 - 1)
    preset: str = setting(
        "auto", "named settings to start from; auto picks the environment's, none takes the plain defaults"
    )
    device: str = setting("auto", "where the networks live: auto, cpu, cuda, cuda:1")
    storage: str = setting(
        "auto",
        "where rollouts and PPG's buffer lie beside networks on a GPU: on the device, or in the host's memory; auto takes the "
        "device where they fit into half of its free memory; on a CPU both are one",
        choices=("auto", "device", "host"),
    )
    compile: str = setting(
        "auto",
        "networks on a CPU: on compiles them with the system's C compiler (on a GPU by torch.compile or CUDA graphs, where sooner), replay (networks without convolutions) calls "
        "traced kernels, off is plain autograd; auto takes off for runs below 20,000 steps (4,000 with a memory), else on where there is a "
        "compiler, else replay",
        choices=("auto", "on", "replay", "off"),
    )
    act_precision: str = setting(
        "float32",
        "numbers in which networks without a memory act while they train: bfloat16 takes half the memory and, on GPUs made for "
        "it, less time; updates stay float32",
        choices=("float32", "bfloat16"),
    )
    torch_threads: int = setting(0, "threads of torch's kernels; 0 lets the network's size decide", low=0, high=1 << 12)
    checkpoint_every: int = setting(
        0, "environment steps between checkpoints, rounded up to an iteration; 0 is a tenth of the run", low=0
    )
    restart_every: int = setting(
        0,
        "environment steps after which each environment is created again, once its episode ends, so that resuming has less "
        "to play back; 0 for what plays back in about a minute",
        low=0,
    )
    keep_checkpoints: int = setting(3, "how many of the latest checkpoints stay on disk", low=1)
    eval_checkpoints: int = setting(
        0,
        "deterministic evaluation episodes at each checkpoint; the best checkpoint by them is kept too; 0 for none",
        low=0,
        high=1 << 20,
    )
    eval_every: int = setting(
        0,
        "environment steps between evaluations of eval_episodes greedy episodes; 0 is a tenth of the run, with fewer "
        "episodes, or none, if they would take more than 5 % of the run",
        low=0,
    )
    eval_episodes: int | None = setting(
        None,
        "greedy episodes per evaluation, in separate environments: the run's score; auto is 20, or as many as fit into "
        "5 % of the run; 0 for no evaluation",
        low=0,
        high=1 << 20,
        auto=True,
    )
    stop_at: float | None = setting(
        None, "end the run when an evaluation reaches this mean return; none for the whole run", live=True
    )
    log_steps: bool = setting(
        False, "keep every step's reward, action and policy (mean and std) under steps/ in the run directory"
    )
    track: str = setting(
        "none",
        "trackers that also receive the metrics, separated by commas: wandb and mlflow need the extra track; TensorBoard "
        "files are in every run directory anyway",
        choices=("none", "tensorboard", "wandb", "mlflow"),
        several=True,
    )

    # Environments and rollout
    backend: str = setting(
        "auto",
        "auto takes envpool for the ids it knows and gymnasium for the rest",
        choices=("auto", "envpool", "gymnasium"),
    )
    vectorization: str = setting(
        "sync", "gymnasium environments in this process (sync) or one process each (async)", choices=("sync", "async")
    )
    env_threads: int = setting(
        0, "envpool threads; 0 for one per environment, up to the number of cores", low=0, high=1 << 12
    )
    env_timeout: float = setting(
        0.0,
        "seconds that making, stepping or closing a gymnasium environment may take before the run gives up; 0 for no limit",
        low=0,
    )
    num_envs: int = setting(8, "N: environments stepped together", low=1, high=1 << 20)
    num_steps: int = setting(256, "T: steps of each environment in a rollout", low=1, high=1 << 24)
    gamma: float = setting(0.99, "discount factor", low=0, high=1)
    gae_lambda: float = setting(0.95, "lambda of generalised advantage estimation", low=0, high=1)
    policy_gae_lambda: float | None = setting(
        None,
        "separate lambda for the policy's advantages, as in DNA (0.8 beside 0.95); none for gae_lambda",
        low=0,
        high=1,
    )
    bootstrap_truncated: bool = setting(
        True, "value the final observation of an episode cut by a time limit; off counts it as terminated"
    )
    action_bounds: str = setting(
        "clip",
        "continuous actions: clip to the bounds, or rescale [-1, 1] to them; without effect for action_distribution tanh "
        "and beta, which are always rescaled",
        choices=("clip", "rescale"),
    )

    # Normalisation
    normalize_observation: bool = setting(
        False, "running mean and variance of Box observations, floats or integers; uint8 images stay as they are"
    )
    clip_observation: float = setting(10.0, "limit of a normalised observation", low=0)
    normalize_reward: bool = setting(False, "divide rewards by the running deviation of the discounted return")
    clip_reward: float = setting(10.0, "limit of a normalised reward", low=0)
    reward_gamma: float | None = setting(
        None, "discount of the return the reward normaliser follows; none for gamma", low=0, high=1
    )

    # Networks
    arch: str = setting(
        "auto",
        "dual: separate policy and value networks; shared: one trunk; auto: dual for vectors, shared for images",
        choices=("auto", "shared", "dual"),
    )
    encoder: Any = setting(
        "auto", "auto, mlp, nature, impala, grid; in Python also a callable from the observation space to a module"
    )
    hidden_sizes: tuple[int, ...] = setting((64, 64), "widths of the MLP's layers, such as 64,64", low=1)
    value_hidden_sizes: tuple[int, ...] | None = setting(
        None, "other widths for the value network's MLP (arch dual), such as 256,256; none for hidden_sizes", low=1
    )
    activation: str = setting("tanh", "between the MLP's layers", choices=ACTIVATIONS)
    layer_norm: bool = setting(False, "a LayerNorm after each of the MLP's linear layers, before the activation")
    images: str = setting(
        "all",
        "which observations a CNN treats as images: all with three dimensions and bounds, and stacks of those; or only "
        "uint8, the rule for agents saved before this setting existed",
        choices=("all", "uint8"),
    )
    critic_only: tuple[str, ...] = setting(
        (),
        "entries of a Dict observation that only the value network sees (arch dual), such as goal,robot.mass: they are "
        "needed to train, not to act",
    )
    impala_channels: tuple[int, ...] = setting((16, 32, 32), "channels of the IMPALA stacks", low=1)
    impala_stem: int = setting(
        0, "channels of a strided convolution before the IMPALA stacks, which makes them cheaper; 0 for none", low=0
    )
    impala_stem_stride: int = setting(2, "stride of that convolution; its kernel is twice as wide", low=2)
    impala_pooling: str = setting(
        "flatten", "after the IMPALA stacks: flatten, or mean over the image (Impoola)", choices=("flatten", "mean")
    )
    frame_stack: int = setting(
        1,
        "how many of the latest observations the networks see at once, for environments in which a single observation does "
        "not show motion; each is stored once",
        low=1,
        high=64,
    )
    memory: str = setting(
        "none",
        "a recurrent layer after the encoder, for environments that are only partly observable: gru, lstm, or none",
        choices=("none", "gru", "lstm"),
    )
    memory_size: int = setting(64, "units of the recurrent layer", low=1, high=1 << 16)
    sequence_length: int | None = setting(
        None,
        "steps of a training sequence, through which gradients flow; it must divide num_steps; 0 for the whole rollout; "
        "auto is the largest divisor of num_steps from 8 to 32 that leaves a sequence for each minibatch",
        low=0,
        high=1 << 24,
        auto=True,
    )
    action_distribution: str = setting(
        "auto",
        "the policy's distribution: auto lets the action space decide; for a Box gaussian (the default), tanh (a Gaussian "
        "squashed into the bounds), beta (on the bounds), or a registered one",
    )
    policy_gain: float = setting(0.01, "scale of the policy head's orthogonal initialisation", low=0)
    std: str = setting(
        "state_independent",
        "standard deviation of continuous actions: of a gaussian, and of a tanh before squashing",
        choices=("state_independent", "state_dependent", "fixed"),
    )
    initial_std: float = setting(1.0, "standard deviation at the start of training; beta has its own", low=1e-6)
    std_floor: float = setting(1e-3, "smallest standard deviation, if it depends on the state", low=1e-8)
    fixed_std_fraction: float = setting(
        0.05, "standard deviation of --std fixed as a share of the action range", low=1e-6
    )
    mean_tanh: bool = setting(False, "a final tanh on the mean of gaussian actions")

    _made: typing.ClassVar[bool]  # of each config, but no fields
    _frozen: typing.ClassVar[bool]
    _derived: typing.ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        vars(self).update(_made=False, _frozen=False, _derived={})

    def __setattr__(self, name: str, value: Any) -> None:
        """A setting that is changed once there is an agent is checked as one given at the start is."""
        if not vars(self).get("_made"):
            vars(self)["_derived"] = {}
            return super().__setattr__(name, value)
        given = coerce_fields(type(self), {name: value})[name]  # which knows the names that there are
        before = getattr(self, name)
        checked = completed(name, given, before)
        if as_given(checked) == as_given(before):
            return None
        if self._frozen:
            if name in live_fields(type(self)):
                raise ConfigError(
                    f"{name} cannot be assigned once training has begun: agent.change({name}={short(value)}) changes it "
                    "between two iterations, and the run remembers it."
                )
            raise ConfigError(
                f"{name} is {short(before)} and cannot become {short(checked)} once training has begun: make a new agent "
                f"with that {name}. What may change is {', '.join(sorted(live_fields(type(self))))}."
            )
        if name in FIXED_FIELDS:
            raise ConfigError(
                f"{name} is {short(before)} and cannot become {short(checked)} once the agent exists, which was made for "
                f"it: make a new agent with that {name}."
            )
        self.settle(**{name: checked})

    def made_for_agent(self) -> None:
        """An agent was made by these settings: what it was made for stays."""
        vars(self)["_made"] = True

    def freeze(self) -> None:
        """Training has begun: no setting is assigned any more."""
        vars(self).update(_made=True, _frozen=True)

    @property
    def is_frozen(self) -> bool:
        """Whether training has begun."""
        return self._frozen

    def settle(self, **values: Any) -> None:
        """Set valid values whether frozen or not: for what is decided as a run begins, and for what changes by plan."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values, _derived={})
        try:
            self.validate()
        except ConfigError:
            vars(self).update(before, _derived={})
            raise

    def weights(self) -> dict[str, float]:
        """The weights of a loss's terms, by the names of their settings."""
        if "weights" not in self._derived:
            self._derived["weights"] = {name: float(getattr(self, name)) for name in WEIGHTS if hasattr(self, name)}
        return self._derived["weights"]

    def follow(self, progress: float) -> None:
        """Put the settings that have a schedule to what they are at `progress` of the run, from 0 to 1."""
        for name, value in self.schedules().items():
            if isinstance(value.schedule, LostFunction):
                raise ConfigError(lost_function(name, value))
            try:
                now = value.at(progress)
            except Exception as error:  # of a user's own function
                why = f"{type(error).__name__} {str(error)[:80]}"
                raise ConfigError(f"The schedule of {name} failed at progress {progress:g}: {why}.") from None
            coerce(name, float(now), float, documented_fields(type(self))[name].metadata)
            vars(self).update({name: now}, _derived={})

    def schedules(self) -> dict[str, Scheduled]:
        """The settings that have a schedule, with the numbers in force."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Scheduled)}

    def read_by_losses(self) -> tuple[Any, ...]:
        """The settings that a traced or compiled loss has fixed: where one of them changes it needs a new program."""
        if "read" not in self._derived:
            read = {name: getattr(self, name) for name in documented_fields(type(self)) if name not in UNREAD_BY_LOSSES}
            kinds = (float, str, bool)
            self._derived["read"] = tuple(item for item in read.items() if isinstance(item[1], kinds))
        return self._derived["read"]

    def validate(self) -> None:
        """Refuse contradictions between fields; ranges of single fields are checked before."""
        if not isinstance(self.encoder, str) and not callable(self.encoder):
            raise ConfigError("encoder must be a name or a callable from the observation space to a torch module.")
        if isinstance(self.encoder, str) and self.encoder not in ENCODERS:
            raise ConfigError(
                f"encoder must be one of {', '.join(ENCODERS)}, not {self.encoder!r}.{nearest(self.encoder, ENCODERS)}"
            )
        self._require_distribution()
        if self.memory != "none":
            self._require_sequences()
        elif self.sequence_length is not None:
            raise ConfigError("sequence_length belongs to a recurrent policy: set memory gru or lstm too.")
        for name in ("value_hidden_sizes", "critic_only"):
            if getattr(self, name) not in (None, ()) and self.arch not in ("dual", "auto"):
                raise ConfigError(f"{name} needs a value network of its own: set arch dual or leave {name} out.")
        if self.act_precision != "float32" and self.memory != "none":
            raise ConfigError("act_precision bfloat16 is for networks without a memory: set memory none, or float32.")
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise ConfigError(f"device must be auto, cpu or cuda[:N], not {self.device!r}.")

    def _require_distribution(self) -> None:
        name = self.action_distribution
        if self.mean_tanh and name in ("tanh", "beta"):
            raise ConfigError(f"mean_tanh is for action_distribution gaussian: {name} keeps to the bounds without it.")
        if self.std != "state_independent" and name == "beta":
            raise ConfigError(
                f"std {self.std} is for action_distribution gaussian and tanh: beta has no std, so leave it out."
            )

    def _require_sequences(self) -> None:
        length, steps = self.sequence_length or 0, self.num_steps
        if length > steps or (length and steps % length):
            near = [size for size in range(1, steps + 1) if steps % size == 0]
            near = [size for size in near if size <= length][-1:] + [size for size in near if size > length][:1]
            raise ConfigError(
                f"sequence_length {length} does not divide num_steps {steps}: use {' or '.join(map(str, near))}, or 0 for "
                "the whole rollout."
            )
        if length and length != steps and getattr(self, "whole_segments", False):
            raise ConfigError("whole_segments trains on whole rollouts: leave sequence_length out, or whole_segments.")

    @property
    def sequence_steps(self) -> int:
        """Steps of a training sequence; 0 where nothing is remembered."""
        if self.memory == "none":
            return 0
        if self.sequence_length == 0 or getattr(self, "whole_segments", False):
            return self.num_steps
        if self.sequence_length is not None:
            return self.sequence_length
        divisors = [size for size in range(1, min(LONGEST, self.num_steps) + 1) if self.num_steps % size == 0]
        enough = self.batch_size // getattr(self, "num_minibatches", 1)  # so that each minibatch has one
        fitting = [size for size in divisors if SHORTEST <= size <= enough] or [s for s in divisors if s >= SHORTEST]
        return max(fitting) if fitting else self.num_steps

    @property
    def units_a_rollout(self) -> int:
        """What minibatches are made of: the samples of a rollout, or its sequences."""
        length = self.sequence_steps or (self.num_steps if getattr(self, "whole_segments", False) else 1)
        return self.batch_size // length

    @property
    def unit(self) -> str:
        """The name of one of them, for a sentence."""
        if self.sequence_steps:
            return f"sequences of {self.sequence_steps} steps (num_envs x num_steps / sequence_length)"
        whole = getattr(self, "whole_segments", False)
        return "environments (whole_segments)" if whole else "samples (num_envs x num_steps)"

    def require_share(self, processes: int) -> None:
        """Refuse sizes that `processes` cannot divide among them."""
        if self.num_envs % processes:
            below = self.num_envs - self.num_envs % processes
            near = f"{below} or {below + processes}" if below else str(processes)
            raise ConfigError(
                f"num_envs {self.num_envs} cannot be divided evenly among {processes} processes: use {near}."
            )

    @property
    def batch_size(self) -> int:
        """Samples of a full rollout: N x T."""
        return self.num_envs * self.num_steps

    def to_json(self) -> dict[str, Any]:
        """Every field as JSON; a user's own encoder by its name, which a reader must supply again."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if not isinstance(self.encoder, str):
            fields["encoder"] = f"custom:{getattr(self.encoder, '__name__', type(self.encoder).__name__)}"
        return {name: list(value) if isinstance(value, tuple) else as_given(value) for name, value in fields.items()}


def require_minibatches(
    config: Config, name: str, count: int, units: int, processes: int, source: str = "a rollout"
) -> None:
    """Refuse minibatches too many for each process's part of the `units` of their source to have something in each."""
    units //= processes
    if count > units:
        whole = getattr(config, "whole_segments", False)
        what = (
            "sequences" if config.sequence_steps else "environments' segments (whole_segments)" if whole else "samples"
        )
        shorter = ", shorten sequence_length" if config.sequence_steps else ""
        raise ConfigError(
            f"{name} {count} is more than the {units} {what} that each of {processes} processes has of {source}: lower "
            f"it{shorter}, or use fewer processes."
        )


def require_dual(config: Config, reason: str) -> None:
    """Refuse an architecture in which policy and value share parameters."""
    if config.arch != "dual":
        raise ConfigError(f"arch must be dual for {algorithm_name(type(config))}, not {config.arch!r}: {reason}.")
