"""The queue of jobs that joined out of order."""

from copy import deepcopy
from random import Random

from sia.model import Job, Pool
from sia.state.state import GroupState, JobState, OutOfOrderJobs, PoolState


def pending(number):
    """A pending job with this number of arrival."""
    pool = PoolState(Pool("a", 4), GroupState("all"), 1)
    return JobState(Job(f"job-{number}", "a", 1, 0.0), pool, 10.0, number)


def test_the_first_job_is_that_of_the_lowest_number_whoever_leaves_and_comes_back():
    rng, queue, there = Random(0), OutOfOrderJobs(), {}
    for _ in range(5000):
        number = rng.randrange(60)
        if number in there:
            del queue[number], there[number]
        else:
            queue[number] = there[number] = pending(number)
        assert len(queue) == len(there)
        if there:
            assert queue.first() is there[min(there)]


def test_a_copy_of_a_queue_goes_on_by_itself():
    queue = OutOfOrderJobs()
    for number in (5, 3, 8):
        queue[number] = pending(number)
    copy = deepcopy(queue)
    del copy[3]
    assert copy.first().arrival == 5
    assert queue.first().arrival == 3


def test_numbers_of_jobs_that_left_do_not_pile_up():
    queue, first = OutOfOrderJobs(), pending(0)
    queue[0] = first
    for number in range(1, 1000):  # each leaves at once, and is never the first
        queue[number] = pending(number)
        del queue[number]
    assert queue.first() is first
    assert len(queue._order) < 30
