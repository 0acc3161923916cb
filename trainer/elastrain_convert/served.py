"""What a script does with a framework, held against the tables: what no test of an adapter has is named."""

from __future__ import annotations

import libcst as cst

from elastrain_convert.around import ENVIRONMENT, LAUNCHED, libraries
from elastrain_convert.effects import Effects
from elastrain_convert.known import RANDOM, words
from elastrain_convert.plan import Plan
from elastrain_convert.process import DIST, SEEDS
from elastrain_convert.script import Script, argument, code
from elastrain_convert.tables import (
    ANY,
    CALLBACKS,
    CALLS_OF_LIGHTNING,
    CALLS_OF_TRAINER,
    HOOKS,
    OF_CALLBACKS,
    OF_HOOKS,
    OF_LIGHTNING,
    OF_TRAINER,
    OF_TRL,
    is_framework,
)

PAGE = "docs, Frameworks, name by name, says what is served and refused"


OF_SEEDS = ("seed", "generator", "random_state")


class Served:
    """Looks at what a script does with a framework."""

    def __init__(self, script: Script, plan: Plan) -> None:
        self.script, self.plan = script, plan

    # -- all frameworks ----
    def apply(self, converted: set[cst.CSTNode]) -> None:
        """``converted``: the calls whose classes have an elastic form."""
        known = {c.func for c in converted if isinstance(c, cst.Call)}
        for node in self.script.nodes:
            if (
                isinstance(node, cst.Name | cst.Attribute)
                and is_framework(self.script.full(node))
                and node not in known
            ):
                self._class(node)
            elif isinstance(node, cst.Call) and self.script.full(node).startswith(DIST):
                self.plan.note(
                    node, f"{code(node.func)}() has no process group", "leave it out, or use a call of the job"
                )
            elif (
                isinstance(node, cst.Subscript | cst.Call)
                and "environ" in code(node)[:40]
                and ENVIRONMENT.search(code(node))
                and not self._is_dropped(node)
            ):
                self.plan.note(
                    node,
                    "a variable of a launcher, which is not of the present generation",
                    f"{self.script.job}.rank …",
                )
            elif isinstance(node, cst.Attribute) and LAUNCHED.fullmatch(node.attr.value) and not self.script.full(node):
                self.plan.note(node, f"{code(node)} is of the processes of a launcher", f"{self.script.job}.rank …")
        libraries(self.script, self.plan)
        self._seeds()
        for node in self.script.nodes:
            if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Attribute):
                made = self.script.resolve(node.target.value)
                if any(m in converted for m in made):
                    self.plan.note(node, f"{code(node.target)} is set later", "give it as an option")

    def _seeds(self) -> None:
        """Random numbers that must be the same in all processes."""
        if any(SEEDS.fullmatch(code(c.func)) for c in self.script.calls):
            return
        for call in self.script.calls:
            drawn = RANDOM(self.script.full(call)) or code(call.func).endswith(
                (".train_test_split", ".shuffle", "random_split")
            )
            if drawn and not any(a.keyword is not None and a.keyword.value in OF_SEEDS for a in call.args):
                self.plan.note(
                    call,
                    "nothing seeds these random numbers: each process draws its own",
                    "give one seed",
                )

    def _is_dropped(self, node: cst.CSTNode) -> bool:
        """In an option whose value another one replaces."""
        words = [n.keyword.value for n in self.script.around(node) if isinstance(n, cst.Arg) and n.keyword is not None]
        return any(word in ("devices", "num_nodes") for word in words)

    def _class(self, node: cst.Name | cst.Attribute) -> None:
        parent = self.script.parent(node)
        if any(isinstance(n, cst.Import | cst.ImportFrom | cst.Annotation) for n in self.script.around(node)):
            return
        if isinstance(parent, cst.Attribute) and parent.value is node and is_framework(self.script.full(parent)):
            return
        name = self.script.full(node).rpartition(".")[2]
        if isinstance(parent, cst.Arg) and isinstance(self.script.parent(parent), cst.ClassDef):
            self.plan.refuse(
                node,
                f"a class that inherits from {name}: what it overrides is not looked at",
                f"class Mine(ElasticTrainer, {name}), and give it job={self.script.job}",
            )
        elif name.endswith("Parser"):
            self.plan.refuse(
                node,
                f"{name} makes the arguments from the command line",
                "parse the class ElasticTrainingArguments in place of TrainingArguments, and give --global_batch_size",
            )
        else:
            self.plan.refuse(node, f"{name} is used in a way that no test of an adapter has", PAGE)

    def options(
        self,
        call: cst.Call,
        known: dict[str, frozenset[str]] | frozenset[str],
        *,
        plain: int = 0,
        also: frozenset[str] = ANY,
    ) -> None:
        """Each option of a call is one of ``known``, and has one of its values. ``plain``: so many need no name."""
        name = code(call.func)
        for place, arg in enumerate(call.args):
            if arg.star or (arg.keyword is None and place >= plain):
                self.plan.refuse(
                    arg,
                    f"{code(arg).rstrip(',')}: an option of {name}() that cannot be seen",
                    "write its name and value",
                )
            elif arg.keyword is not None:
                self._option(name, arg, arg.keyword.value, known, also)

    def _option(
        self,
        name: str,
        arg: cst.Arg,
        word: str,
        known: dict[str, frozenset[str]] | frozenset[str],
        also: frozenset[str],
    ) -> None:
        if word not in known and word not in also:
            self.plan.note(arg, f"{word}: an option of {name}() that no test of the adapter has", PAGE)
        elif word == "callbacks":
            self._callbacks(arg.value)
        elif isinstance(known, dict) and (values := known.get(word)):
            given = code(arg.value).strip("\"'") if isinstance(arg.value, cst.SimpleString | cst.Name) else ""
            if isinstance(arg.value, cst.List) and len(arg.value.elements) <= 1:
                given = code(arg.value).strip("[]\"'") or "none"
            if given not in values:
                self.plan.note(
                    arg,
                    f"{word}={code(arg.value).splitlines()[0]}: not seen to be one of {', '.join(sorted(values))}",
                    PAGE,
                )

    def _callbacks(self, value: cst.BaseExpression) -> None:
        elements = value.elements if isinstance(value, cst.List) else None
        for element in elements if elements is not None else [cst.Element(value)]:
            made = self.script.resolve(element.value) if elements is not None else []
            for call in made or [value]:
                if not (isinstance(call, cst.Call) and CALLBACKS(self.script.full(call))):
                    self.plan.note(
                        value,
                        f"{code(element.value).splitlines()[0]}: a callback that no test of the adapter has",
                        PAGE,
                    )
                else:
                    self.options(call, OF_CALLBACKS, plain=1)

    def uses(self, call: cst.Call, known: frozenset[str]) -> None:
        """Each attribute of what ``call`` makes is one of ``known``."""
        names = {code(t.target).rpartition(".")[2] for t in getattr(self.script.parent(call), "targets", ())}
        for node in self.script.nodes:
            if not isinstance(node, cst.Attribute) or node.attr.value in known:
                continue
            if node.value is call or code(node.value).rpartition(".")[2] in names:
                self.plan.note(node, f"{code(node)}: no test of the adapter has it", PAGE)

    # -- Hugging Face, TRL ----
    def trainer(self, call: cst.Call, name: str, arguments: list[cst.CSTNode]) -> None:
        """A Trainer that becomes an elastic one."""
        self.options(call, OF_TRAINER, plain=2, also=OF_TRL.get(name, ANY))
        self.uses(call, CALLS_OF_TRAINER)
        args = argument(call, "args", 1)
        made = self.script.resolve(args) if args is not None else []
        if not made or not all(any(m is a for a in arguments) for m in made):
            self.plan.refuse(
                call, f"args of {name}: not seen to be made by a call in this file", "args=ElasticTrainingArguments(…)"
            )
        for train in self.script.sites["train"]:
            if train.args and [code(a) for a in train.args] not in (["None"], ["resume_from_checkpoint=None"]):
                self.plan.note(train, "the job resumes by itself, from spec.checkpoint", "trainer.train()")
        self._once("train", call)
        data = argument(call, "train_dataset")
        for made in self.script.resolve(data) if data is not None else ():
            own = self.script.classes.get(code(made.func)) if isinstance(made, cst.Call) else None
            if own is not None and self.script.inherits(own, lambda full: "Iterable" in full):
                self.plan.note(made, "a stream is not shared by rank here", "a data set with a length")
        for other in self.script.calls:
            if argument(other, "streaming") is not None:
                self.plan.note(other, "a stream is not shared by rank here", "a data set with a length")

    def _once(self, method: str, call: cst.Call) -> None:
        sites = [
            s
            for s in self.script.sites[method]
            if isinstance(s.func, cst.Attribute) and (s.args or self._is_trainer(s.func.value, call))
        ]
        if len(sites) != 1 or any(isinstance(n, cst.For | cst.While) for n in self.script.around(sites[0])):
            self.plan.refuse(
                call, f"{method}() is not called exactly once: a job trains once", "one script for each training"
            )

    def _is_trainer(self, value: cst.BaseExpression, call: cst.Call) -> bool:
        return value is call or any(m is call for m in self.script.resolve(value))

    # -- Lightning ----
    def lightning(self, call: cst.Call) -> None:
        """A Trainer of Lightning."""
        self.options(call, OF_LIGHTNING)
        self.uses(call, CALLS_OF_LIGHTNING)
        self._once("fit", call)
        for fit in self.script.sites["fit"]:
            self.options(fit, words("model train_dataloaders val_dataloaders datamodule"), plain=3)
            for arg in fit.args:
                self._visible(arg.value)
        for own in self.script.classes.values():
            if self.script.inherits(own, lambda f: f.startswith(("lightning.", "pytorch_lightning."))):
                self._module(own)

    def _visible(self, value: cst.BaseExpression) -> None:
        for made in self.script.resolve(value):
            full = self.script.full(made) if isinstance(made, cst.Call) else ""
            if full == "torch.utils.data.DataLoader" or (
                isinstance(made, cst.Call) and code(made.func) in self.script.classes
            ):
                continue
            self.plan.note(
                value,
                f"what {code(value).splitlines()[0]} is cannot be seen in this file",
                "bring its class into this file",
            )

    def _returns(self, step: cst.FunctionDef) -> None:
        for node in self.script.walk(step):
            if isinstance(node, cst.Return) and (node.value is None or code(node.value) == "None"):
                self.plan.note(node, "a step without a loss, for which the other ranks wait", "return loss * 0")

    def _module(self, own: cst.ClassDef) -> None:
        served = words("log log_dict save_hyperparameters print")
        job = self.script.job
        for part in own.body.body:
            if not isinstance(part, cst.FunctionDef):
                continue
            name = part.name.value
            if name not in HOOKS and OF_HOOKS.fullmatch(name):
                self.plan.note(part, f"{name}(): no test of the adapter has this hook", PAGE)
            if name == "training_step":
                looks = Effects(
                    self.script,
                    self.plan,
                    served=lambda c: isinstance(c.func, cst.Attribute) and c.func.attr.value in served,
                )
                looks.body(part.body, part)
                self._returns(part)
            if name == "configure_optimizers":
                made = [
                    c
                    for c in self.script.walk(part)
                    if isinstance(c, cst.Call) and self.script.full(c).startswith("torch.optim.")
                ]
                optimizers = [c for c in made if "lr_scheduler" not in self.script.full(c)]
                if len(optimizers) != 1 or any(
                    "LBFGS" in code(c.func) or "ReduceLROnPlateau" in code(c.func) for c in made
                ):
                    self.plan.note(
                        part,
                        "not one optimizer of torch with schedules by step or epoch",
                        "use Fabric: the script has the loop",
                    )
        for node in self.script.walk(own):
            if isinstance(node, cst.Attribute) and node.attr.value == "automatic_optimization":
                self.plan.note(node, "the module has the loop", "use Fabric: the script has the loop")
            if (
                isinstance(node, cst.Arg)
                and node.keyword is not None
                and node.keyword.value in ("reduce_fx", "metric_attribute")
            ):
                self.plan.note(node, f"{node.keyword.value}: no test of the adapter has it", PAGE)
        for batch in (
            n
            for n in self.script.walk(own)
            if isinstance(n, cst.Call) and code(n.func) in ("self.optimizers", "self.manual_backward")
        ):
            self.plan.note(batch, "the module has the loop", f"use Fabric, with {job}.steps()")
