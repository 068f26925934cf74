# SPDX-License-Identifier: Apache-2.0
"""Runs one step on many elements with Apache Beam, by default in this process."""

import logging
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from lambdanet.core.errors import InputError, one_line

LOCAL = "DirectRunner"  # without a name, Beam downloads another local runner


def run(elements: Sequence[Any], step: beam.ParDo, beam_options: Sequence[str]) -> None:
    """Runs a step on each element.

    Args:
      elements: what the workers divide among themselves.
      step: what a worker does with an element, such as `beam.ParDo(...)`.
      beam_options: flags of Beam, such as "--runner=FlinkRunner".

    Raises:
      InputError: an option is wrong, or a worker in this process raises it.
    """
    options = PipelineOptions(list(beam_options))
    standard = options.view_as(StandardOptions)
    standard.runner = standard.runner or LOCAL
    try:
        pipeline = beam.Pipeline(options=options)
    except (ImportError, ValueError) as error:
        raise InputError(f"options of Beam: {one_line(error)}") from None
    # Beam also raises the errors that it logs.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    try:
        with pipeline:
            _ = pipeline | beam.Create(elements) | step
    except Exception as error:
        # Beam raises a copy with the name of the step in its message.
        original = error.__context__
        if isinstance(original, InputError | KeyboardInterrupt):
            raise original from None
        raise
