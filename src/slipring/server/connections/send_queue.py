"""The kernel's queue of what is being sent on a socket."""

import fcntl
import struct
import termios

_Int = struct.Struct("i")


def unacknowledged_bytes(descriptor: int) -> int:
    """Bytes that were written to a TCP socket and that the other side has not acknowledged. 0 where the
    system does not report them: Linux does."""
    try:
        answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_Int.size))
    except OSError:
        return 0
    (size,) = _Int.unpack(answer)
    return int(size)
