# SPDX-License-Identifier: Apache-2.0
"""Registry of published weights: the rows are complete and consistent."""

import re

from lambdanet.configs.registry import pretrained_weights


def test_each_row_is_complete():
    assert (
        len({one.model for one in pretrained_weights.WEIGHTS})
        == len(pretrained_weights.WEIGHTS)
        == 13
    )
    for one in pretrained_weights.WEIGHTS:
        assert re.fullmatch("([0-9a-f]{40})?", one.revision)
        assert re.fullmatch("([0-9a-f]{64})?", one.sha256)
        assert one.release_file.startswith(one.model[:5])
        assert one.license == "Apache-2.0"
        assert one.interpolation == "bicubic"
        assert 0.9 < one.crop_fraction < 1
        assert 78 < one.top1 < 83 < 94 < one.top5 < 96
        # The farther from ImageNet, the lower.
        order = ("ReaL", "ImageNet", "V2", "R", "Sketch", "A")
        assert one.accuracies.keys() <= set(order) and "ReaL" in one.accuracies
        known = [one.accuracies[name] for name in order if name in one.accuracies]
        assert known == sorted(known, reverse=True)
        assert 4.5 < one.accuracies["ReaL"] - one.top1 < 6.5


def test_a_file_is_known_by_its_hash():
    known, unknown = (
        pretrained_weights.get("lambda_resnet50ts"),
        pretrained_weights.get("lambda_resnet26t"),
    )
    assert known.matches_sha256(known.sha256) is True
    assert known.matches_sha256("b87370f7" + 56 * "0") is True  # the release's
    assert known.matches_sha256(64 * "0") is False
    assert unknown.matches_sha256("e5a5c857" + 56 * "0") is True
    assert unknown.matches_sha256(64 * "0") is None
