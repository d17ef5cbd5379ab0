"""A TCP proxy that can stop passing bytes while both connections stay open."""

import socket
import threading
from contextlib import contextmanager, suppress


class Proxy:
    """Listens on its own port and forwards to another local port."""

    def __init__(self, target):
        self._target = target
        self._there, self._back, self._ended = threading.Event(), threading.Event(), False
        self.heal()
        self._sockets = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._threads = []
        self._begin(self._work)

    def cut(self):
        """Hold back all bytes sent from now on."""
        self._there.clear()
        self._back.clear()

    def cut_answers(self):
        """Pass on requests, but hold back the answers."""
        self._back.clear()

    def heal(self):
        """Pass on the bytes held back, and all later ones."""
        self._there.set()
        self._back.set()

    def close(self):
        self._ended = True
        self.heal()
        shut(self._door)
        self._threads[0].join()  # the listener is closed
        for each in self._sockets:
            shut(each)
        for each in self._threads:
            each.join()
        for each in (self._door, *self._sockets):
            each.close()

    def _begin(self, work, *about):
        self._threads.append(threading.Thread(target=work, args=about, daemon=True))
        self._threads[-1].start()

    def _work(self):
        while not self._ended:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            self._there.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            self._begin(self._pump, near, far, self._there)
            self._begin(self._pump, far, near, self._back)

    def _pump(self, source, sink, way):
        with suppress(OSError):
            while data := source.recv(2**16):
                way.wait()
                sink.sendall(data)
        way.wait()
        for each in (source, sink):
            shut(each)


def shut(end):
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(target):
    between = Proxy(target)
    try:
        yield between
    finally:
        between.close()
