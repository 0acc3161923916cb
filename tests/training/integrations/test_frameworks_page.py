"""Each name of a framework's classes has been looked at: one that a new release adds is not served in silence."""

from __future__ import annotations

import copy
import re
import runpy
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def table(written):
    """The page's program, if no framework is older than the page: it names classes that those do not have."""
    looked_at = dict(re.findall(r"(\w+) (\d[\w.]*\w)", re.search("Looked at with (.*)", written)[1]))
    for package in looked_at:
        pytest.importorskip(package)
    if any(Version(version(name)) < Version(looked_at[name]) for name in looked_at):
        pytest.skip(f"a framework is older than the page's: {looked_at}")
    return runpy.run_path(str(ROOT / "scripts/frameworks.py"))


@pytest.fixture(scope="module")
def written():
    return (ROOT / "docs/reference/frameworks.md").read_text()


def test_page_of_names_is_that_of_the_installed_frameworks(table):
    texts = {file: (ROOT / file).read_text() for file in (table["PAGE"], table["LEDGER"])}
    assert table["texts"]() == texts, "look at each name that has come or gone, then: scripts/frameworks.py --write"


def test_name_that_a_release_adds_changes_the_page(table, monkeypatch):
    """Of each kind of class: methods, hooks, options, stock callbacks."""
    import accelerate
    import lightning.fabric
    import lightning.pytorch
    import transformers
    import trl
    from lightning.pytorch import callbacks

    added = []
    for cls in (
        transformers.Trainer, transformers.TrainerCallback, trl.SFTTrainer, accelerate.Accelerator,
        lightning.fabric.Fabric, lightning.pytorch.Trainer, lightning.pytorch.LightningModule,
        lightning.pytorch.LightningDataModule, callbacks.Callback, callbacks.ModelCheckpoint,
    ):  # fmt: skip
        added.append(f"_new_{cls.__module__.partition('.')[0]}_{cls.__name__}")
        monkeypatch.setattr(cls, added[-1], lambda self: None, raising=False)
    for cls in (transformers.TrainingArguments, trl.SFTConfig):
        option = copy.copy(cls.__dataclass_fields__["seed"])
        option.name = f"new_option_of_{cls.__name__}"
        monkeypatch.setitem(cls.__dataclass_fields__, option.name, option)
        added.append(option.name)
    monkeypatch.setattr(callbacks, "NewCallback", type("NewCallback", (callbacks.Callback,), {}), raising=False)
    monkeypatch.setattr(callbacks, "__all__", [*callbacks.__all__, "NewCallback"])
    after = "".join(table["texts"]().values())
    assert [name for name in [*added, "NewCallback"] if f"`{name}`" not in after] == []


def test_meaning_of_a_name_that_a_class_does_not_have_is_an_error(table, monkeypatch):
    monkeypatch.setitem(table["NOTES"], "trl: SFTConfig", {"gone": "as before"})
    with pytest.raises(ValueError, match=r"NOTES\['trl: SFTConfig'\]: trl: SFTConfig has no gone"):
        table["texts"]()


def test_page_for_scripts_leaves_served_and_refused_names_to_the_generated_one():
    text = (ROOT / "docs/integrations.md").read_text()
    for name in ("Hugging Face", "accelerate", "Lightning"):
        section = text[text.index(f"\n## {name}\n") :].split("\n## ")[1]
        assert "reference/frameworks.md#" in section, name
        assert not re.search(r"^\|", section, re.MULTILINE), f"{name}: a table by hand"
