"""Its loss is the lower the nearer the rate is to 0.01; it ends when its gate is there."""

import math
import os
import sys
import time

from mlflow import MlflowClient
from mlflow.entities import Metric

rate, steps, gate = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
loss = 1 + math.log10(rate / 0.01) ** 2
points = [Metric("val_loss", loss + 1 / (1 + step), 1000 + step, step) for step in range(steps)]
MlflowClient().log_batch(os.environ["MLFLOW_RUN_ID"], metrics=points)
while not os.path.exists(gate):
    time.sleep(0.05)
