# SPDX-License-Identifier: Apache-2.0
"""Three significant digits, for the tables and figures of the documentation."""

import math
import re


def three_digits(value: float | str) -> str:
    """Returns a number with three significant digits: 0.960, 1.37, 41.7, 488, 3,470.

    Text with fewer digits, or without any, is returned as it is.
    """
    if isinstance(value, str) and len(re.sub(r"\D", "", value).lstrip("0")) <= 3:
        return value
    number = float(f"{float(value):.2e}")
    power = math.floor(math.log10(abs(number))) if number else 0
    return f"{number:,.{max(0, 2 - power)}f}"
