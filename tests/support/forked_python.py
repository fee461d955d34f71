"""Python for the scripts that a script starts: its arguments go to a fork server, whose child has its streams.

The client writes this file behind a first line that names the interpreter and beside the server's socket. With
``--suite`` before all else it is Python for a process of the suite: code is forked, too, and starts real Python. A
script whose file has the name in ``KBTRAIN_TEST_FRESH`` is run by Python itself.
"""

import json
import os
import signal
import socket
import sys

arguments = sys.argv[1:]
suite = arguments[0] == "--suite"
if suite:
    del arguments[0]
elif arguments[0] in ("-S", "-c") or os.environ.get("KBTRAIN_TEST_FRESH") in map(os.path.basename, arguments[:2]):
    # a line of code that imports nothing: Python itself is as quick
    os.execv(sys.executable, [sys.executable, *arguments])
server = socket.socket(socket.AF_UNIX)
server.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
while arguments[0] in ("-u", "-I"):
    del arguments[0]
request = {"script": arguments[0], "argv": arguments[1:], "cwd": os.getcwd(), "env": dict(os.environ),
           "python": None if suite else os.path.abspath(__file__)}  # fmt: skip
text = json.dumps(request).encode() + b"\n"
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the fork may be there and known before its id is read here
sent = socket.send_fds(server, [text[: 1 << 16]], [0, 1, 2])
server.sendall(text[sent:])
for number in (0, 1, 2):
    os.close(number)
answers = server.makefile()
pid = int(answers.readline() or 0)
if pid:
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))  # the fork ends as it sees fit
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
code = int(answers.readline() or -signal.SIGKILL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
os._exit(code)
