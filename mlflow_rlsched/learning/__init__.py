"""How policies come about: imitation, reinforcement, evaluation."""
