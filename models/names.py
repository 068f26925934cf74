# SPDX-License-Identifier: Apache-2.0
"""Names of the zoo's models and their exact sizes, without importing TensorFlow.

The models are in `lambdanet.models.zoo`; a name can be checked here before TensorFlow starts.
"""

import fnmatch

from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import unknown

# Trainable parameters with 1000 classes. The comment is the paper's figure in millions, if it prints one.
PARAMETERS: dict[str, int] = {
    "resnet_50": 25_557_032,  # 25.6, Table 3
    "resnet_50_se": 28_088_024,  # 28.1, Table 3
    "resnet_50_linear_attention": 32_905_256,  # 33.0, Table 3
    "resnet_50_augmented": 25_781_872,  # 25.8, Table 3
    "resnet_50_local_attention": 18_015_504,  # 18.0, Table 3
    "resnet_50_axial_attention": 21_817_720,
    "resnet_50_global_attention": 18_045_304,
    "resnet_50_lccc": 25_490_744,  # 25.5, Table 12
    "resnet_50_llcc": 24_992_888,  # 25.0, Table 12
    "resnet_50_lllc": 21_727_448,  # 21.7, Table 12
    "resnet_50_llll": 14_995_592,  # 15.0, Table 3
    "resnet_50_clll": 15_061_880,  # 15.1, Table 12
    "resnet_50_ccll": 15_559_736,  # Table 12 prints 15.4, which no reading of the text explains
    "resnet_50_cccl": 18_825_176,  # 18.8, Table 12
    "resnet_rs_50": 35_691_912,
    "resnet_rs_101": 63_618_696,  # 63.6, Table 13
    "resnet_rs_152": 86_621_576,  # 86.6, Table 13
    "resnet_rs_200": 93_209_992,
    "resnet_rs_270": 129_861_448,
    "resnet_rs_350": 163_956_168,
    "resnet_rs_420": 191_891_656,
    "resnet_rs_50_no_se": 25_613_256,
    "resnet_rs_101_no_se": 44_605_384,  # 44.6, Table 13
    "resnet_rs_152_no_se": 60_249_032,  # 60.2, Table 13
    "resnet_rs_200_no_se": 64_730_056,
    "resnet_rs_270_no_se": 89_655_496,
    "resnet_rs_350_no_se": 112_842_440,
    "resnet_rs_420_no_se": 131_840_712,
    "lambda_resnet_50": 18_963_272,
    "lambda_resnet_101": 36_866_920,  # 36.9, Table 13
    "lambda_resnet_152": 51_404_696,  # 51.4, Table 13
    "lambda_resnet_200": 57_993_112,
    "lambda_resnet_270": 81_366_248,
    "lambda_resnet_350": 105_475_176,
    "lambda_resnet_420": 124_438_664,
    "lambda_resnet_50_c4": 16_242_072,
    "lambda_resnet_101_c4": 25_982_120,  # 26.0, Table 13
    "lambda_resnet_152_c4": 35_077_496,  # 35.1, Table 13
    "lambda_resnet_200_c4": 41_665_912,
    "lambda_resnet_270_c4": 55_786_968,
    "lambda_resnet_350_c4": 69_555_336,
    "lambda_resnet_420_c4": 81_443_704,
    "lambda_resnet_270_c3": 48_357_864,
    "lambda_resnet_tiny": 931_200,
    "mobilenet_v2": 3_504_872,  # 3.50, Table 17
    "mobilenet_v2_lambda": 3_207_912,  # 3.21, Table 17
    # The HaloNet paper.
    "halonet_h0": 5_488_424,  # 5.5, Table A2
    "halonet_h1": 8_089_160,  # 8.1, Table A2
    "halonet_h2": 9_388_328,  # 9.4, Table A2
    "halonet_h3": 11_821_960,  # Table A2 prints 12.3, which d_f = 1280 would give
    "halonet_h4": 19_082_632,  # 19.1, Table A2
    "halonet_h5": 30_683_112,  # 30.7, Table A2
    "halonet_h6": 43_425_544,  # 43.4, Table A2
    "halonet_h7": 67_400_008,  # 67, Table A2
    "halonet_h4_c1": 19_183_168,
    "halonet_h4_c12": 19_588_480,
    "halonet_h4_c123": 26_075_008,
    "halonet_h4_base128": 85_155_272,  # 85, Table A3
    "halonet_h4_base128_patch": 85_148_936,  # 85, Table A3
    "halonet_h4_base128_c12": 87_016_104,  # 87, Table A3
    "resnet_50_se_8": 30_603_912,
    "resnet_101_se_8": 54_072_072,
    "halo_resnet_50": 22_737_864,
    "halo_resnet_101": 46_206_024,
    # timm 1.0.31's own counts.
    "lambda_resnet26t": 10_958_272,
    "lambda_resnet26rpt_256": 10_988_688,
    "lambda_resnet50ts": 21_536_832,
    "lamhalobotnet50ts_256": 22_569_824,
    "halo2botnet50ts_256": 22_635_360,
    "halonet26t": 12_480_288,
    "halonet50ts": 22_733_280,
    "sehalonet33ts": 13_691_712,
    "eca_halonext26ts": 10_756_885,
    "haloregnetz_b": 11_680_072,
    "botnet26t_256": 12_488_672,
    "sebotnet33ts_256": 13_701_984,
    "eca_botnext26ts_256": 10_593_301,
    # For comparison; 43 of B6 in Table 15.
    "efficientnet_b0": 5_288_548,
    "efficientnet_b1": 7_794_184,
    "efficientnet_b2": 9_109_994,
    "efficientnet_b3": 12_233_232,
    "efficientnet_b4": 19_341_616,
    "efficientnet_b5": 30_389_784,
    "efficientnet_b6": 43_040_704,
    "efficientnet_b7": 66_347_960,
}


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Returns the names of models.

    Args:
      pattern: a shell pattern for the names, such as "lambda_resnet_*".
      pretrained: whether to return only models with published weights.
    """
    names = [name for name in PARAMETERS if fnmatch.fnmatchcase(name, pattern)]
    return [name for name in names if pretrained_weights.weights_of(name) or not pretrained]


def check_model(name: str) -> None:
    """Checks that there is a model of this name.

    Raises:
      InputError: there is none; the message has the nearest names.
    """
    if not isinstance(name, str) or name not in PARAMETERS:
        raise unknown("model", name, PARAMETERS, see="`lambdanet list`")
