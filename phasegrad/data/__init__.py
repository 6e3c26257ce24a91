"""From environments to minibatches: storage, collecting, legs, PPG's buffer, ACER's memory, reward scaling."""
