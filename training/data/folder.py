# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures of the dataset `folder`, in class folders.

    PICTURES/train/cat/*.jpg    PICTURES/validation/cat/*.jpg
    PICTURES/train/dog/*.jpg    PICTURES/validation/dog/*.jpg

The top folders are the splits, and the folders in `train` are the classes, in the order of their names. A
class may have nested folders. Files without one of the `ENDINGS`, and what systems make, are named and left
out; hidden ones are ignored. Without any folder but `train`, one of five pictures of each class, in the order
of their names, is for evaluation, and the others are for training.
"""

import functools
import glob
import os
from collections import Counter
from collections.abc import Sequence

from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import check_known, invalid, unknown
from lambdanet.training.data.bad_records import is_of_system
from lambdanet.training.data.class_names import normalized
from lambdanet.training.data.image_files import ENDINGS, find_pictures
from lambdanet.training.data.sources import LeftOut, Row, RowSource

LAYOUT = "train/CLASS/*.jpg and validation/CLASS/*.jpg"
# One of five pictures is for evaluation where there is no folder for it.
EVALUATION_STRIDE = 5

# The path of a folder, its pictures, and its other files.
ClassFolder = tuple[str, list[str], list[str]]


class FolderSource(RowSource):
    """Pictures of any size in `data_dir/SPLIT/CLASS/`; a `sources.Source`. Each folder is listed once.

    `InputError` where there is no such folder, or the recipe's `train_split` in it has less than two classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        root = os.path.expanduser(data_dir or "")
        super().__init__(recipe, root, root, [])
        if not os.path.isdir(self._root):
            accepted = f"the folder of the pictures, with {LAYOUT}"
            raise invalid("data_dir", accepted, data_dir)
        self._splits = list_folders(self._root)
        self._folders = functools.cache(
            lambda split: find_class_folders(
                self._split_folder(split), self.class_names
            )
        )
        self._train = recipe.train_split
        self._eval = recipe.eval_split
        if self._train not in self._splits:
            hint = f"train_split is {self._train!r}"
            raise invalid(f"folders in {self._root!r}", LAYOUT, self._splits, hint)
        train = self._split_folder(self._train)
        self.class_names = list_folders(train)
        # Splits in the folder of a split, as some archives have them.
        nested = os.path.join(train, self._train)
        is_nested = self._train in self.class_names and len(list_folders(nested)) > 1
        if is_nested or len(self.class_names) < 2:
            accepted = "two or more folders of pictures"
            raise invalid(f"classes in {train!r}", accepted, self.class_names)

    def left_out(self, split: str) -> list[LeftOut]:
        if self.made_from_training and split == self._eval:
            split = self._train
        counts = Counter(row.label for row in self.rows(split))
        left_out = []
        for label, (folder, _, others) in enumerate(self._folders(split)):
            left_out.append((folder, others, counts[label] + len(others)))
        root = self._split_folder(split)
        names = os.listdir(root)
        of_system = [
            os.path.join(root, name) for name in sorted(names) if is_of_system(name)
        ]
        return [*left_out, (root, of_system, len(names))]

    def make_evaluation(self, names: Sequence[str]) -> None:
        """Makes it of these; or of some of each class, where no folder but that of training has a class."""
        if self._eval in self._splits:
            return
        if not any(os.path.exists(os.path.join(self._root, name)) for name in names):
            classes = set(normalized(self.class_names))
            for split in self._splits:
                folders = list_folders(os.path.join(self._root, split))
                if split != self._train and classes.intersection(normalized(folders)):
                    return
            names = [
                os.path.relpath(path, self._root)
                for _, pictures, _ in self._folders(self._train)
                for path in choose_for_evaluation(pictures)
            ]
        self.made_from_training = names

    def _split_folder(self, split: str) -> str:
        check_known(f"split in {self._root!r}:", split, self._splits)
        return os.path.join(self._root, split)

    def find_rows(self, split: str) -> list[Row]:
        is_made = len(self.made_from_training) > 0 and split == self._eval
        every = self._folders(self._train if is_made else split)
        made = {os.path.join(self._root, name) for name in self.made_from_training}
        folders = []
        for folder, pictures, others in every:
            kept = [path for path in pictures if (path in made) == is_made]
            folders.append((folder, kept, [] if is_made else others))
        rows = rows_of_class_folders(
            folders, self.class_names, split, split == self._train
        )
        if is_made:
            total = sum(len(pictures) for _, pictures, _ in every)
            print(
                f"no folder {split!r} in {self._root!r}: {split} is {len(rows)} of {total} pictures of "
                f"{self._train}, some of each class",
                flush=True,
            )
        return rows


def find_class_folders(root: str, class_names: list[str]) -> list[ClassFolder]:
    """Lists the pictures of each class in a split; `InputError` for a folder of another class."""
    names = list_folders(root)
    folders = dict(zip(normalized(names), names, strict=True))
    classes = dict(zip(normalized(class_names), class_names, strict=True))
    for form, name in folders.items():
        if form not in classes:
            raise unknown(f"class in {root!r}", name, class_names)
    found: list[ClassFolder] = []
    for form, name in classes.items():
        path = os.path.join(root, folders.get(form, name))
        found.append((path, *(find_pictures(path) if form in folders else ([], []))))
    return found


def rows_of_class_folders(
    folders: list[ClassFolder], class_names: list[str], split: str, all_classes: bool
) -> list[Row]:
    """Returns the rows of a split; `InputError` for a class without pictures, if all must have some."""
    rows = []
    for label, (folder, pictures, others) in enumerate(folders):
        if others and not pictures:
            raise invalid(
                f"pictures in {folder!r}",
                f"names that end in {', '.join(ENDINGS)}",
                others[0],
            )
        if not pictures and all_classes:
            hint = "remove the folder, or put pictures in it"
            raise invalid(
                f"class {class_names[label]!r}", "one with pictures", folder, hint
            )
        rows += [Row(path, label, split) for path in pictures]
    return rows


def list_folders(path: str) -> list[str]:
    """Returns the names of the folders in a folder, without hidden ones and those that systems make."""
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(
        name for name in names if not name.startswith(".") and not is_of_system(name)
    )


def find_parquet_files(data_dir: str | None, split: str = "*") -> list[str]:
    """Returns the paths of the files `SPLIT-*.parquet` in a folder, in their order."""
    root = os.path.expanduser(data_dir or os.devnull)
    return sorted(glob.glob(f"{glob.escape(root)}/{split}-*.parquet"))


def choose_for_evaluation(pictures: list[str]) -> list[str]:
    """Returns the pictures of a class that are for evaluation where there is no folder for it.

    One of `EVALUATION_STRIDE` by their order, the last where there are fewer, and none of a single picture.
    """
    few = pictures[1:][-1:]
    return pictures[EVALUATION_STRIDE - 1 :: EVALUATION_STRIDE] or few
