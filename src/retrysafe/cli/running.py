"""Runs one command, from its arguments to its exit code: signals, errors, and an output that cannot be written."""

from __future__ import annotations

import errno
import signal
import sys
from typing import Any

from retrysafe.cli.exits import REFUSED, find_exit_code
from retrysafe.cli.output import drop_output, open_streams, print_error
from retrysafe.cli.parsing import check_values
from retrysafe.cli.signals import CommandInterrupted, gate
from retrysafe.errors import RetrySafeError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a file that cannot be written. A store's errors are our own."""


def run_command(args: Any) -> int:
    open_streams()
    with gate.listen():
        try:
            check_values(vars(args))
            code = int(args.run(args) or 0)
            sys.stdout.flush()
            return code
        except RetrySafeError as error:
            return report_error(error)
        except BrokenPipeError:  # the reader of our output has gone (`| head`): that is no error
            drop_output()
            return 0
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return report_lost_output(args, error)
        except KeyboardInterrupt as error:
            return (
                error.exit_code
                if isinstance(error, CommandInterrupted)
                else CommandInterrupted(signal.SIGINT).exit_code
            )


def report_error(error: RetrySafeError) -> int:
    if gate.received:  # the signal came while a driver was at work, and the driver's error hides it
        return CommandInterrupted(gate.received).exit_code
    print_error(f"retrysafe: {error}")
    if getattr(error, "hint", ""):
        print_error(f"hint: {error.hint}")  # type: ignore[attr-defined]  # CommandError has one
    return find_exit_code(error)


def report_lost_output(args: Any, error: OSError) -> int:
    drop_output()
    print_error(f"retrysafe: the output could not be written: {error.strerror}")
    if getattr(args, "because", None):
        from retrysafe.cli.session import name_given_store  # only where the output was lost
        from retrysafe.operators.follow_up import build_command

        with name_given_store(args):
            print_error(f"hint: the work is done; `{build_command('audit')}` shows what was changed")
    return REFUSED
