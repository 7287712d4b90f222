"""What training code imports: ``attach`` (stdlib only until the training itself loads torch).

::

    from mlflow_rlsched import ElasticDataLoader, attach

    with attach(batch_size=64, learning_rate=0.1) as session:
        state = session.load()                      # None at the first start
        session.apply(optimizer)
        for batch in ElasticDataLoader(dataset, session):  # or by session.knobs.batch_size
            ...
            session.step(loss=loss, samples=len(batch))
            if session.should_save:
                session.save({"model": model.state_dict(), ...})
            if session.should_stop:
                break                               # leaves with code 75, to be resumed

Outside a scheduled run all of it works and nothing is written.
"""

from mlflow_rlsched.training.knobs import Knobs
from mlflow_rlsched.training.oom import is_out_of_memory
from mlflow_rlsched.training.session import Session, attach

__all__ = ["Knobs", "Session", "attach", "is_out_of_memory"]
