"""Runs slipring with SIGHUP ignored, as nohup does; with ``--terminal FD`` as the process that a terminal was
opened for, which gets a SIGHUP when it goes away."""

import fcntl
import os
import signal
import sys
import termios

if sys.argv[1] == "--terminal":
    fcntl.ioctl(int(sys.argv[2]), termios.TIOCSCTTY, 0)
    arguments = sys.argv[3:]
else:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    arguments = sys.argv[1:]
os.execv(sys.executable, [sys.executable, "-m", "slipring", *arguments])
