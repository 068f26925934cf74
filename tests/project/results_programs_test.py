# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/results split and measure as their pages say."""

import runpy

import numpy as np
from source_tree import ROOT

RESULTS = ROOT / "docs/results"


def test_near_copies_share_a_split():
    """Each drawing shares one key with the next one but one."""
    split = runpy.run_path(str(RESULTS / "keywords.py"))["split"]
    found = split({f"drawing{number}": (number, number + 2) for number in range(60)})
    assert len({*list(found.values())[::2]}) == 1


def test_iou_is_of_areas_without_coasts():
    half = runpy.run_path(str(RESULTS / "water.py"))["Half"]
    water = np.array([[0, 0, 255, 128], [255, 255, 0, 0]])
    land = np.array([[1, 0, 1, 1], [0, 1, 1, 1]], bool)
    found = half(water, water, np.array([[1], [0.5]])).measure(land)
    # Rows count 1 and 0.5: right 1 + 1, missed 1, water taken for land 1 + 0.5, right water 0.5.
    assert [found["iou_land"], found["iou_water"]] == [2 / 4.5, 0.5 / 3]
