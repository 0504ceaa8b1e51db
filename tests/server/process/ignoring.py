"""Runs slipring with SIGHUP ignored, as nohup does; with ``--terminal FD`` as the session leader of that
terminal, which gets SIGINT from Ctrl-C and SIGHUP when the terminal closes."""

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
