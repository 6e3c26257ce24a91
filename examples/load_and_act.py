"""Loading an agent and acting with it, without phasegrad's training loop: any gymnasium environment of that kind."""

import gymnasium as gym

import phasegrad as pg

if __name__ == "__main__":
    trained = pg.PPO("CartPole-v1", seed=1)
    trained.learn(40_960, progress=True)
    trained.save("agents/cartpole")

    agent = pg.load("agents/cartpole")  # or a run directory: pg.load("runs/cartpole")
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    total, ended = 0.0, False
    while not ended:
        action, _ = agent.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, ended = total + float(reward), terminated or truncated
    print({"return_mean": total, "value_of_the_last_state": float(agent.value(observation))})
