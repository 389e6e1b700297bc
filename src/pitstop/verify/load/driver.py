"""The process that sends a run's requests: Locust's users, one an arrival or one a client.

Reads a Work as JSON from standard input; writes a Record a line as answers end, and a Summary at last. A process of its own because
importing Locust makes the sockets of its whole process gevent's; it must come before any other import that knows sockets.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import resource
import sys
import time
from collections import deque

import gevent
import locust
import msgspec
from locust.env import Environment
from locust.exception import StopUser

from pitstop.verify.load.client import Client
from pitstop.verify.load.records import Job, Record, Summary, Work

LEAD = 0.05
"""Seconds between the last preparation and the start."""


class Run:
    """One run's state, shared by its users."""

    def __init__(self, work: Work, environment: Environment) -> None:
        self.work = work
        self.client = Client(work)
        self.environment = environment
        self.due: deque[Job] = deque()
        self.start = 0.0

    def now(self) -> float:
        return time.perf_counter() - self.start

    def ask(self, job: Job, intended: float) -> None:
        """Send it, and report it to Locust and to who reads our output."""
        record = self.client.ask(job, self.start, intended)
        self.environment.events.request.fire(
            request_type="SSE",
            name=record.kind,
            response_time=1000 * (record.end - record.intended),
            response_length=len(record.text),
            exception=RuntimeError(record.error) if record.error else None,
            context={},
        )
        write(record)


class Arrival(locust.User):
    """Who sends the one request that is due, and leaves."""

    run_of: Run

    @locust.task
    def once(self) -> None:
        job = self.run_of.due.popleft()
        self.run_of.ask(job, job.at)
        raise StopUser


class Caller(locust.User):
    """A client of a closed loop: the next request when the last has ended, due at that moment."""

    run_of: Run

    @locust.task
    def again(self) -> None:
        run = self.run_of
        if not run.due or (run.work.seconds is not None and run.now() >= run.work.seconds):
            raise StopUser
        run.ask(run.due.popleft(), run.now())


def write(line: Record | Summary) -> None:
    sys.stdout.buffer.write(_encode(line) + b"\n")
    sys.stdout.buffer.flush()


_encode = msgspec.json.Encoder().encode


def drive(work: Work) -> None:
    """Do the work; the last line is the summary."""
    user = Caller if work.clients else Arrival
    environment = Environment(user_classes=[user])
    runner = environment.create_local_runner()
    run = user.run_of = Run(work, environment)
    gevent.joinall([gevent.spawn(run.client.ask, job, time.perf_counter(), 0.0) for job in work.warmup])
    gc.collect()
    gc.freeze()
    gc.disable()  # records hold no cycles, and a collection would be a pause of ours
    environment.events.test_start.fire(environment=environment)
    run.start, cpu = time.perf_counter() + LEAD, time.process_time()
    if work.clients:
        run.due.extend(work.jobs)
        gevent.sleep(LEAD)
        runner.spawn_users({user.__name__: work.clients})
    else:
        for job in work.jobs:
            gevent.sleep(max(0.0, job.at - run.now()))
            run.due.append(job)
            runner.spawn_users({user.__name__: 1})
    runner.user_greenlets.join()
    busy = (time.process_time() - cpu) / max(run.now(), 1e-9)
    total = environment.stats.total
    write(Summary(requests=total.num_requests, failures=total.num_failures, busy=busy, locust=locust.__version__))
    runner.quit()


def main() -> None:
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # an overloaded server leaves thousands of connections open
    drive(msgspec.json.decode(sys.stdin.buffer.read(), type=Work))
