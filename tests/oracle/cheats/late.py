"""Work that is not done when the step returns."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from oracle.cheats import cheat, right

SOON = 0.02
POOL = ThreadPoolExecutor(2)
WORDS = "the result when the step returned, also when all its work had ended"


def later(*arguments):
    time.sleep(SOON)
    right(*arguments)


@cheat("L20", WORDS)
def leaves_a_thread(params, grads, velocities, *, lr, mu, l2_decay):
    threading.Thread(target=later, args=(params, grads, velocities, lr, mu, l2_decay)).start()


@cheat("L20", WORDS)
def leaves_a_daemon(params, grads, velocities, *, lr, mu, l2_decay):
    threading.Thread(target=later, args=(params, grads, velocities, lr, mu, l2_decay), daemon=True).start()


@cheat("L20", WORDS)
def leaves_it_to_a_pool(params, grads, velocities, *, lr, mu, l2_decay):
    POOL.submit(later, params, grads, velocities, lr, mu, l2_decay)


@cheat("L20", WORDS)
def leaves_it_to_a_timer(params, grads, velocities, *, lr, mu, l2_decay):
    signal.signal(signal.SIGALRM, lambda *_: right(params, grads, velocities, lr, mu, l2_decay))
    signal.setitimer(signal.ITIMER_REAL, SOON)


class Last:
    """Works when it is collected."""

    def __init__(self, arguments):
        self.me, self.arguments = self, arguments

    def __del__(self):
        right(*self.arguments)


@cheat("L20", WORDS)
def leaves_it_to_a_finalizer(params, grads, velocities, *, lr, mu, l2_decay):
    Last((list(params), list(grads), list(velocities), lr, mu, l2_decay))


@cheat("L20", WORDS)
def takes_back_what_it_has_made(params, grads, velocities, *, lr, mu, l2_decay):
    """Right when it returns, and spoiled after."""
    right(params, grads, velocities, lr, mu, l2_decay)

    def spoil():
        time.sleep(SOON)
        for p in params:
            p[...] = 0

    threading.Thread(target=spoil).start()
