"""Whose turn it is in the search for schedules, and when it rests."""

from oracle.search.scheduling_rounds import FEWER, PATIENT, SchedulingRounds


def rounds_until_search(turns):
    rounds = 0
    while turns.programs():
        rounds += 1
    return rounds


def test_the_local_search_begins_and_then_alternates_with_programs():
    turns = SchedulingRounds()
    assert rounds_until_search(turns) == 0
    for _ in range(3):
        turns.searched(in_vain=False)
        assert rounds_until_search(turns) == 1


def test_searches_become_rarer_while_they_find_nothing():
    turns, rounds = SchedulingRounds(), []
    for in_vain in (True, True, True, False, True):
        turns.searched(in_vain=in_vain)
        rounds.append(rounds_until_search(turns))
    assert rounds == [1 + FEWER * times for times in (1, 2, 3, 0, 1)]


def test_the_pause_grows_after_each_round_without_success():
    turns, now = SchedulingRounds(), 0.0
    assert not turns.rests(9.0, now), "before the first"
    rested = []
    for _ in range(PATIENT + 3):
        turns.round_over(9.0, 9.0, now, now + 10.0)
        now += 10.0
        begun = now
        while turns.rests(9.0, now):
            now += 1.0
        rested.append(now - begun)
    assert rested == [0.0] * PATIENT + [10.0, 20.0, 30.0]


def test_a_better_schedule_ends_a_rest_and_the_patience_restarts():
    turns = SchedulingRounds()
    for _ in range(PATIENT + 1):
        turns.round_over(9.0, 9.0, 0.0, 10.0)
    assert turns.rests(9.0, 11.0)
    assert not turns.rests(8.0, 11.0), "a dive has found it"
    turns.round_over(9.0, 8.0, 11.0, 21.0)
    assert not turns.rests(8.0, 21.0)
    turns.round_over(8.0, 8.0, 21.0, 31.0)
    assert not turns.rests(8.0, 31.0)
