"""The loop reads a new socket, whatever it had registered for an earlier one of its number."""

import asyncio
import os
import socket

import pytest

from daemon.doors.mqtt.connection import forget


def closed_behind_the_loop(loop, *, reads, writes):
    """Register a socket, close it as another thread would, and return its number."""
    sock, other = socket.socketpair()
    with other:
        if reads:
            loop.add_reader(sock, lambda: None)
        if writes:
            loop.add_writer(sock, lambda: None)
        number = sock.fileno()
        sock.close()
    return number


def pair_with(number):
    """Return two connected sockets; the first has the given file number."""
    near, far = socket.socketpair()
    if near.fileno() != number:
        os.dup2(near.fileno(), number)
        near.close()
        near = socket.socket(fileno=number)
    return near, far


@pytest.mark.parametrize(("reads", "writes"), [(True, False), (False, True), (True, True)])
def test_a_new_socket_with_the_number_of_a_closed_one_is_read(reads, writes):
    async def story():
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        number = closed_behind_the_loop(loop, reads=reads, writes=writes)
        near, far = pair_with(number)
        with near, far:
            forget(loop, near)
            loop.add_reader(near, came.set)
            far.send(b"x")
            await asyncio.wait_for(came.wait(), 10)
            loop.remove_reader(near)

    asyncio.run(story())


def test_without_forgetting_the_new_socket_is_not_read():
    async def story():
        loop = asyncio.get_running_loop()
        number = closed_behind_the_loop(loop, reads=False, writes=True)
        near, far = pair_with(number)
        with near, far, pytest.raises(FileNotFoundError):
            loop.add_reader(near, lambda: None)

    asyncio.run(story())
