# SPDX-License-Identifier: Apache-2.0
"""How a program of the project ends: an error is one line, and the exit status says of which kind.

0; 2 for a mistake in what was given; 1 where the system refuses (a full disk, a missing package); 75 where
SIGTERM stopped training, which can go on; 130 after an interruption.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from logging import LogRecord

from absl import logging

from lambdanet.errors import InputError, Preempted, Unfinished


def run(name: str, main: Callable[[], None], extra: str = "train") -> int:
    """Calls `main` and returns the exit status; what went wrong goes to stderr in one line.

    Args:
      name: the program's, which begins that line.
      main: does the work. Exceptions that are nobody's mistake but ours are raised on.
      extra: of the package, which installs what the program imports.
    """
    # 3 hides what TensorFlow logs about processors and missing GPUs; its exceptions say what went wrong.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _prepare_streams()
    try:
        with _without_noise():
            main()
        sys.stdout.flush()
        return 0
    except InputError as error:
        return _fail(name, str(error), 2)
    except Preempted as stopped:
        return _fail(name, str(stopped), 75)
    except Unfinished as stopped:
        return _fail(name, str(stopped), 1)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", 130)
    except BrokenPipeError:  # as in `lambdanet list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "lambdanet":
            raise
        return _fail(name, f"{error}; pip install 'lambdanet[{extra}]' brings what is missing", 1)
    except OSError as error:
        return _fail(name, str(error), 1)


def _prepare_streams() -> None:
    """Opens closed streams on the null device, and escapes characters that the others cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # as in `lambdanet list >&-`
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Hides two warnings of libraries that nothing is to be done about.

    Pillow's, that a large picture may be an attack: it refuses those of twice that size. TensorFlow's, that a
    loaded model lacks gradients: programs take none.
    """

    def is_wanted(record: LogRecord) -> bool:
        return "with ops with unsaved custom gradients" not in record.getMessage()

    logger = logging.get_absl_logger()
    logger.addFilter(is_wanted)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Image size .* could be decompression bomb")
            yield
    finally:
        logger.removeFilter(is_wanted)


def _fail(name: str, message: str, status: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines())
    print(f"{name}: {'' if status in (75, 130) else 'error: '}{line}", file=sys.stderr)
    return status
