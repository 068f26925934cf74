# SPDX-License-Identifier: Apache-2.0
"""Measures how often implied attention is on what a network must read, where that is known.

    python -m experiments.explanations

Two tasks have such a truth. On the pointer grid, an arrow's answer is the color of one cell (`pointer`). In
drawn scenes, a picture's label is the shape of its red object among three gray ones (`scenes`). Head and
sign, and on scenes the layer, are chosen on validation examples, and reported on others; before training, the
same choice gives chance.

Predictions, made before the first run:

* Pointer grid, after training: the peak of the position map of one head is on the cell for at least 80 % of
  the arrows, for each of five seeds; before training, for at most 10 %.
* Scenes: the peak of the best lambda map is on the red object in 50 to 80 % of the pictures, and less often
  than that of Grad-CAM; before training, as often as the share of the map that the object covers, plus the
  advantage of choosing, at most 30 %.
* Deletion and insertion: Grad-CAM removes the class by fewer pixels than the lambda map (a smaller area under
  the curve of deletion), because it follows the gradient; both are better than a random order.
"""
