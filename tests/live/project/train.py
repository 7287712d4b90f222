"""Noisy gradient descent in a valley that narrows (standard library only).

From step ``narrow_at`` on the curvature is so large that the rate it began with overshoots: the
parameter then bounces between the walls, until the rate is lowered. Steps take 10 % more or less
time than they should.
"""

import argparse
import random
import time

from mlflow_rlsched import attach

STEP_S = 0.02
WALL = 1.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--narrow-at", type=int)
    args = parser.parse_args()
    noise, pace = random.Random(0), random.Random(1)
    weight = 0.0
    with attach(batch_size=args.batch_size, learning_rate=args.lr) as session:
        start = session.load() or {"step": 0}
        for step in range(start["step"], args.steps):
            time.sleep(STEP_S * pace.uniform(0.9, 1.1))
            curvature = 22.0 if step >= args.narrow_at else 1.0
            gradient = curvature * weight + 0.1 * noise.gauss(0, 1)
            weight -= session.knobs.learning_rate * gradient
            weight = min(max(weight, -WALL), WALL)
            loss = 0.1 + 0.5 * curvature * weight**2 + 0.01 * noise.random()
            session.step(loss=loss)
            if session.should_save:
                session.save({"step": step + 1})
            if session.should_stop:
                break


if __name__ == "__main__":
    main()
