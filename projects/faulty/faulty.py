"""Trainings that go wrong on demand, and two that leave a trail (standard library only).

``fault``   misbehaves at once, in the way that ``--fault`` names.
``count``   cooperates: counts steps, saves, resumes, stops when asked to.
``script``  counts steps too, but knows nothing of a scheduler.

The ledger gets one line for each thing done, ``<attempt> <pid> <event> <step> <monotonic time>``,
where event is ``start`` (step: the one resumed from), ``step``, ``save``, ``stop`` or ``done``.
"""

import argparse
import os
import signal
import sys
import time

FAULTS = ("none", "crash", "oom", "hang", "ignore_term", "fork", "fill_disk")


class Ledger:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event, step):
        attempt = os.environ.get("RLSCHED_ATTEMPT", "0")
        line = f"{attempt} {os.getpid()} {event} {step} {time.monotonic():.6f}\n"
        os.write(self.file, line.encode())


def need_memory(batch_size, fits):
    if batch_size > fits:
        raise MemoryError(f"a batch of {batch_size} samples does not fit, {fits} would")


def start_workers(count):
    """Start processes that sleep for ever in sessions of their own."""
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            while True:
                signal.pause()


def fault(args):
    from mlflow_rlsched import attach

    with attach(batch_size=args.batch_size) as session:
        session.step(loss=1.0)
        if args.fault == "crash":
            sys.exit(3)
        elif args.fault == "oom":
            need_memory(session.knobs.batch_size, args.fits)
        elif args.fault == "hang":
            while True:
                signal.pause()
        elif args.fault == "ignore_term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            start_workers(args.workers)
            while True:
                signal.pause()
        elif args.fault == "fork":
            start_workers(args.workers)
        elif args.fault == "fill_disk":
            with open(args.output, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024 * 1024))


def count(args):
    from mlflow_rlsched import attach

    ledger = Ledger(args.ledger)
    with attach(batch_size=args.batch_size, learning_rate=args.lr) as session:
        step = (session.load() or {"step": 0})["step"]
        ledger.write("start", step)
        need_memory(session.knobs.batch_size, args.fits)
        while step < args.steps:
            time.sleep(args.step_s)
            step += 1
            ledger.write("step", step)
            session.step(loss=1 / step)
            session.report(epoch=step, progress=step / args.steps)
            if (step % args.every == 0 or session.should_save) and session.save({"step": step}):
                ledger.write("save", step)
            if session.should_stop:
                ledger.write("stop", step)
                return
        session.report(final=step)
        ledger.write("done", step)


def script(args):
    ledger = Ledger(args.ledger)
    ledger.write("start", 0)
    need_memory(args.batch_size, args.fits)
    for step in range(1, args.steps + 1):
        time.sleep(args.step_s)
        ledger.write("step", step)
        print(f"step {step}", flush=True)
    ledger.write("done", args.steps)
    sys.exit(args.exit_code)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("fault")
    command.set_defaults(run=fault)
    command.add_argument("--fault", choices=FAULTS, default="none")
    command.add_argument("--batch-size", type=int, default=64)
    command.add_argument("--fits", type=int, default=32, help="larger batches run out of memory")
    command.add_argument("--workers", type=int, default=2)
    command.add_argument("--output", default="/dev/full", help="what fill_disk writes without end")

    command = commands.add_parser("count")
    command.set_defaults(run=count)
    command.add_argument("--lr", type=float, default=0.1)
    command.add_argument("--every", type=int, default=10, help="steps between checkpoints")

    script_command = commands.add_parser("script")
    script_command.set_defaults(run=script)
    script_command.add_argument("--exit-code", type=int, default=0)

    for counting in (command, script_command):
        counting.add_argument("--batch-size", type=int, default=64)
        counting.add_argument("--fits", type=int, default=1_000_000)
        counting.add_argument("--steps", type=int, default=100)
        counting.add_argument("--step-s", type=float, default=0.02)
        counting.add_argument("--ledger", default="/dev/null")

    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
