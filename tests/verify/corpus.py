"""Scripts with one planted fault each, and unusual ones without: a scaffold, and the lines that are different."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaffolds import ACCELERATE, EPOCHS, FABRIC, HEAD, LIGHTNING, PLAIN, TRANSFORMERS, filled

KINDS = {
    "not-repeatable": "not repeatable",
    "body": "does not travel",
    "two-workers": "of a part",
    "joiner": "does not travel",
    "loss": "discarded body",
    "resume": "not saved",
}
"""By the prefix of a name: what ``elastrain verify`` calls the fault, where the script does not say otherwise."""
PACKAGES = ("accelerate", "lightning.pytorch", "transformers")


@dataclass(frozen=True, slots=True)
class Script:
    """One script of the corpus."""

    name: str
    about: str
    """What is wrong, or unusual."""
    text: str
    is_sharded: bool = False
    says: str = ""
    """What its fault is called."""

    @property
    def kind(self) -> str:
        """Of its fault; empty: it has none."""
        return next((kind for kind in KINDS if self.name.startswith(kind)), "")

    @property
    def form(self) -> str:
        """ "plain", "sharded" or "framework"."""
        if self.packages or "Fabric" in self.text:
            return "framework"
        return "sharded" if self.is_sharded else "plain"

    @property
    def packages(self) -> list[str]:
        """Slow imports that a warm process does once."""
        return [name for name in PACKAGES if re.search(rf"\b{name.partition('.')[0]}\b", self.text)]

    @property
    def overrides(self) -> list[str]:
        """Fields of the job, as of ``--set``."""
        return ["parallelism.shards=2", "nprocPerNode=2"] if self.is_sharded else []

    @property
    def workers(self) -> int:
        return 2 if self.is_sharded else 3

    def written(self, folder: Path) -> Path:
        path = folder / "train.py"
        path.write_text(self.text)
        return path


def script(
    name: str, about: str, scaffold: dict[str, str] = PLAIN, *, sharded: bool = False, says: str = "", **lines: Any
) -> Script:
    """``lines``: by the places of the ``scaffold``. ``says``: of the fault, if not as of its kind."""
    places = scaffold | ({"shard": "fully_shard(net, mesh=job.mesh)"} if sharded else {}) | lines
    says = says or next((said for kind, said in KINDS.items() if name.startswith(kind)), "")
    return Script(name, about, f'"""{about}"""\n{filled(HEAD, places)}', sharded, says)


HUBER = {"before": "criterion = nn.HuberLoss(delta=1.0)", "loss": "criterion(model(x), y)"}
AT_ONE_STEP = HUBER | {"start": "if job.step == 2:\n    criterion.delta = 0.1"}
AVERAGE = """
with torch.no_grad():
    for kept, p in zip(teacher.parameters(), net.parameters(), strict=True):
        kept.lerp_(p, 0.3)
"""
HARDER = """
class Harder(Dataset):
    level, x = 1.0, x

    def __len__(self):
        return 16

    def __getitem__(self, i):
        x = self.x[i] * self.level
        return x, x.sum().sin().reshape(1)

data = Harder()
"""
OWN_AVERAGE = """
class Average:
    def __init__(self):
        self.net = copy.deepcopy(net)
        self.state_dict, self.load_state_dict = self.net.state_dict, self.net.load_state_dict

    @torch.no_grad()
    def update(self):
        $update

average = Average()
job.track(average=average)
"""
PAIRS = "for kept, p in zip(self.net.parameters(), net.parameters(), strict=True):"
TEACHER = "teacher = copy.deepcopy(net)"
OF_TEACHER = "F.mse_loss(model(x), y) + F.mse_loss(model(x), teacher(x).detach())"
COUNT_COMMITS = {
    "before": "committed = []",
    "setup": "job.on_commit(lambda: committed.append(job.step))",
    "loss": "F.mse_loss(model(x), y) / (1 + len(committed))",
}
COUNT_BODIES = {"before": "bodies = 0", "start": "bodies += 1", "loss": "F.mse_loss(model(x), y) / bodies"}
LINE_OF_BODY = """
if job.rank == 0 and job.step > 0:
    with Path("begun.txt").open("a") as file:
        file.write(f"{job.step}\\n")
"""
LEVEL = {
    "before": "level = 1.0",
    "after": "level = 0.7 * job.all_gather_object(level)[0]\noptimizer.param_groups[0]['lr'] = 0.1 * level",
}
LBFGS = {"net": "nn.Linear(4, 1)", "optimizer": "torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)"}
LBFGS |= {"loader": "job.dataloader(data, global_batch_size=16)"}
OF_LBFGS = """
for x, y in job.steps(loader, steps=12):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        $closure

    optimizer.step(closure)
"""

FAULTS = [
    script("joiner-01-at-one-step", "The loss function changes at one step, which a joiner never computes.",
        **AT_ONE_STEP),
    script("joiner-02-counter-in-a-callback", "A callback counts commits in the process; the loss depends on it.",
        **COUNT_COMMITS),
    script("joiner-03-changes-after-an-epoch", "Code after the first epoch changes a layer; a joiner skips that epoch.",
        EPOCHS, net="nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 1))",
        after="if epoch == 0:\n    net[1].negative_slope = 0.9"),
    script("joiner-04-average-in-a-callback", "A callback keeps an untracked average of the weights as a teacher.",
        setup=f"{TEACHER}\n\ndef follow():\n    $average\n\njob.on_commit(follow)", average=AVERAGE, loss=OF_TEACHER),
    script("joiner-05-list-of-losses", "The learning rate follows a list of losses that each process keeps.",
        before="losses = []", setup="""
def slow_down():
    losses.append(job.loss)
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + sum(losses) / len(losses))

job.on_commit(slow_down)
"""),
    script("joiner-06-average-by-hand", "An average of the weights, kept by hand in the loop body, is a teacher.",
        setup=TEACHER, loss=OF_TEACHER, end=AVERAGE),
    script("joiner-07-curriculum", "A data set is made harder after each epoch, in the processes that have seen it.",
        EPOCHS, data=HARDER, after="data.level += 0.2"),
    script("joiner-08-best-loss", "A callback remembers the best loss; a step that is worse counts less.",
        before="best = math.inf", setup="""
def remember():
    global best
    best = min(best, job.loss)

job.on_commit(remember)
""", backward="job.backward(loss if (job.loss or 0.0) <= best else 0.5 * loss)"),
    script("joiner-09-sharded-counter-in-a-callback", "A callback counts commits beside a sharded model.",
        sharded=True, **COUNT_COMMITS),
    script("joiner-10-transformers-callback", "A callback of Hugging Face's Trainer counts steps and weighs the loss.",
        TRANSFORMERS, loss="F.mse_loss(self.layers(x), labels) / (1 + Count.steps)", callbacks="Count()", callback="""
class Count(TrainerCallback):
    steps = 0

    def on_step_end(self, *_, **__):
        Count.steps += 1
"""),
    script("joiner-11-lightning-callback", "A callback of Lightning's Trainer counts steps and weighs the loss.",
        LIGHTNING, loss="F.mse_loss(self.net(x), y) / (1 + Count.steps)", callbacks="Count()", callback="""
class Count(Callback):
    steps = 0

    def on_train_batch_end(self, *_):
        Count.steps += 1
"""),
    script("joiner-12-accelerate-at-one-step", "A loop with accelerate changes the loss function at one step.",
        ACCELERATE, **AT_ONE_STEP),
    script("joiner-13-scaler", "A scaler is not tracked, and grows later than any run has steps.",
        setup='scaler = torch.amp.GradScaler("cpu")', end="scaler.update()",
        backward="job.backward(scaler.scale(loss))\nscaler.unscale_(optimizer)"),
    script("joiner-14-list-on-rank-0", "Rank 0 keeps a list of losses, and writes it at the end.",
        end="if job.committed and job.rank == 0:\n    losses.append(job.loss)", before="losses = []", loop="""
for x, y in job.steps(loader, steps=16):
    $body
if job.rank == 0:
    Path("losses.txt").write_text(" ".join(map(str, losses)))
"""),
    script("loss-01-lines-of-bodies", "Rank 0 writes a line for each loop body, also for one that is discarded.",
        end=LINE_OF_BODY.replace("{job.step}", "{job.step - job.committed}")),
    script("loss-02-lines-before-backward", "Rank 0 writes each step before its backward, again if it is repeated.",
        start=LINE_OF_BODY),
    script("loss-03-sharded-lines", "Rank 0 of a sharded model writes a line for each loop body.",
        sharded=True, start=LINE_OF_BODY),
    script("loss-04-accelerate-lines", "The main process of a loop with accelerate writes a line for each loop body.",
        ACCELERATE, start=LINE_OF_BODY.replace("job.rank == 0", "accelerator.is_main_process")),
    script("loss-05-fabric-names", "Rank 0 of a loop with Fabric notes each body, by the number of those before.",
        FABRIC, start="""
if fabric.is_global_zero and job.step > 0:
    notes = Path("notes.txt")
    before = notes.read_text() if notes.exists() else ""
    notes.write_text(before + f"body {before.count(chr(10))}\\n")
"""),
    script("loss-06-average-in-a-file", "An average, made before the job and not tracked, is written to a file.",
        before="net = nn.Linear(4, 1)\naverage = torch.optim.swa_utils.AveragedModel(net)", net="net",
        end="average.update_parameters(net)", loop="""
for x, y in job.steps(loader, steps=16):
    $body
if job.rank == 0:
    torch.save(average.state_dict(), "average.pt")
"""),
    script("not-repeatable-01-urandom", "Noise comes from the system's entropy.",
        start="x = x + int.from_bytes(os.urandom(1)) / 255"),
    script("not-repeatable-02-seeds-by-process", "Generators are seeded by the number of the process.",
        before="draw = torch.Generator().manual_seed(os.getpid())",
        start="x = x + 0.1 * torch.randn(4, generator=draw, dtype=x.dtype)"),
    script("not-repeatable-03-clock", "The learning rate depends on the time of day.",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.1 + 0.01 * (time.time() % 1))"),
    script("not-repeatable-04-unseeded-numpy", "A numpy generator without a seed draws the targets.",
        data="data = TensorDataset(x, torch.from_numpy(np.random.default_rng().normal(size=(64, 1))).float())"),
    script("not-repeatable-05-sharded-system-random", "A sharded model's targets are the system's random numbers.",
        sharded=True, data="""
draw = random.SystemRandom()
data = TensorDataset(x, torch.tensor([[draw.random()] for _ in range(64)]))
"""),
    script("not-repeatable-06-accelerate-uuid", "A loop with accelerate seeds its targets by a new identifier.",
        ACCELERATE, data="data = TensorDataset(x, torch.full((64, 1), uuid.uuid4().int % 97 / 97))"),
    script("body-01-counter", "A counter of loop bodies, also of the warm-up's, drives the learning rate.",
        before="bodies = 0", start="""
bodies += 1
for group in optimizer.param_groups:
    group["lr"] = 0.1 * 0.9**bodies
"""),
    script("body-02-enumerate", "The number that enumerate gives to a body is that of an execution.", loop="""
for i, (x, y) in enumerate(job.steps(loader, steps=16)):
    $body
""", loss="F.mse_loss(model(x), y) / (1 + i)"),
    script("body-03-own-generator", "Noise comes from the script's generator, which each loop body advances.",
        before="noise = torch.Generator().manual_seed(3)",
        start="x = x + 0.1 * torch.randn(4, generator=noise, dtype=x.dtype)"),
    script("body-04-numpy-in-the-data", "A data set augments its samples by a numpy generator of its own.",
        says="data", data="""
class Augmented(TensorDataset):
    draw = np.random.default_rng(0)

    def __getitem__(self, i):
        x = self.tensors[0][i] * self.draw.uniform(0.5, 1.5)
        return x, x.sum().sin().reshape(1)

data = Augmented(x)
"""),
    script("body-05-dropout-rate", "Each loop body lowers the rate of a dropout layer.",
        net="nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))", start="net[1].p *= 0.8",
        says="each micro-batch"),
    script("body-06-file-for-each-body", "Each loop body appends to a file, on each rank.",
        says="other files", end='print("x", file=Path("bodies.txt").open("a"))'),
    script("body-07-memory-bank", "A queue of earlier features, filled by the loop body, is a part of the loss.",
        says="one rank", before="bank = deque(maxlen=4)", loss="F.mse_loss(model(x), y) + 0.1 * sum(bank)",
        end="bank.append(net(x).mean().detach())"),
    script("body-08-cycle-of-scales", "Scales come from an iterator that each loop body advances.",
        before="scales = itertools.cycle([0.5, 1.0, 2.0])", loss="next(scales) * F.mse_loss(model(x), y)"),
    script("body-09-sharded-counter", "The counter of loop bodies in a sharded model.",
        sharded=True, **COUNT_BODIES),
    script("body-10-transformers-forward-counter", "A model of Hugging Face's Trainer counts its forwards.",
        TRANSFORMERS, forward='self.forwards = getattr(self, "forwards", 0) + 1',
        loss="F.mse_loss(self.layers(x), labels) / self.forwards"),
    script("body-12-accelerate-counter", "A loop with accelerate weighs its loss by the number of its bodies.",
        ACCELERATE, **COUNT_BODIES),
    script("body-13-fabric-running-mean", "A loop with Fabric divides its loss by a mean that each body changes.",
        FABRIC, says="one rank", before="mean = 1.0", loss="F.mse_loss(model(x), y) / mean",
        end="mean = 0.9 * mean + 0.1 * float(loss.detach())"),
    script("body-14-data-in-worker-processes", "Samples count their loads in each process of the loader.",
        says="data", data="""
class Counted(TensorDataset):
    loads = 0

    def __getitem__(self, i):
        self.loads += 1
        return self.tensors[0][i] / self.loads, self.tensors[1][i]

data = Counted(x, x.sum(1, keepdim=True).sin())
""", loader="job.dataloader(data, global_batch_size=8, num_workers=1)"),
    script("resume-01-level-from-rank-0", "Rank 0 hands a level to the others after each epoch; no checkpoint has it.",
        EPOCHS, **LEVEL),
    script("resume-02-best-of-all-ranks", "The ranks agree on the best loss after each epoch; no checkpoint has it.",
        EPOCHS, before="best = 2.0", optimizer="torch.optim.SGD(net.parameters(), lr=0.5)", after="""
best = 0.8 * min(job.all_reduce(best, "min"), job.loss or best)
optimizer.param_groups[0]["lr"] = 0.5 * min(1.0, best)
"""),
    script("resume-03-patience", "The ranks agree on how many epochs were seen; no checkpoint has it.",
        EPOCHS, before="seen = 0",
        after='seen = job.all_reduce(seen, "max") + 1\noptimizer.param_groups[0]["lr"] = 0.1 / seen'),
    script("resume-04-sharded-level", "Rank 0 of a sharded model hands a level to the others after each epoch.",
        EPOCHS, sharded=True, **LEVEL),
    script("resume-05-accelerate-sum-of-losses", "The ranks agree on the sum of the losses after each epoch.",
        ACCELERATE, size="16", epochs="8", before="t = 0.0",
        after="t = job.all_reduce(t, 'max') + (job.loss or 0.0)\noptimizer.param_groups[0]['lr'] = 0.1 / (1 + t)"),
    script("two-workers-01-root-of-a-mean", "The loss is the root of a mean, not the mean of the roots of its parts.",
        loss="F.mse_loss(model(x), y).sqrt()"),
    script("two-workers-02-constant-divisor", "The loss is a sum divided by the size of the global batch, no mean.",
        loss='F.mse_loss(model(x), y, reduction="sum") / 8'),
    script("two-workers-03-decides-by-its-own-loss", "A rank halves its loss if the loss of its part is large.",
        backward="job.backward(loss * 0.5 if loss.item() > 0.3 else loss)"),
    script("two-workers-04-term-on-rank-0", "Rank 0 alone adds a term to the loss.", says="one rank",
        backward="job.backward(loss + (job.rank == 0) * sum(p.square().sum() for p in net.parameters()))"),
    script("two-workers-05-divides-by-the-ranks", "The loss is divided by the number of ranks, as for a sum over them.",
        says="one rank", loss="F.mse_loss(model(x), y) / job.world_size"),
    script("two-workers-06-contrastive", "Samples of a batch are compared with each other; a part has fewer pairs.",
        backward="z = F.normalize(model(x), dim=0)\njob.backward(loss + 0.5 * (z @ z.T).mean())"),
    script("two-workers-07-normalised-by-its-part", "A rank centres its part of the batch.", start="x = x - x.mean(0)"),
    script("two-workers-08-sharded-positives", "A sharded model's loss is divided by the positive samples in the part.",
        sharded=True, loss="(model(x) - y).square().mul(y > 0).sum() / (y > 0).sum().clamp(min=1)"),
    script("two-workers-09-transformers-root", "A model of Hugging Face's Trainer returns the root of a mean.",
        TRANSFORMERS, loss="F.mse_loss(self.layers(x), labels).sqrt()"),
    script("two-workers-10-accelerate-divisor", "A loop with accelerate divides a sum by the size of the global batch.",
        ACCELERATE, loss='F.mse_loss(model(x), y, reduction="sum") / 8'),
    script("two-workers-11-lightning-centres", "A LightningModule centres its part of the batch.",
        LIGHTNING, loss="F.mse_loss(self.net(x - x.mean(0)), y)"),
    script("two-workers-12-closure-of-lbfgs", "A closure returns the loss of its part to L-BFGS, which decides by it.",
        says="one rank",
        **LBFGS, loop=OF_LBFGS, closure="loss = $loss\njob.backward(loss)\nreturn loss"),
    script("two-workers-13-hook-of-a-tensor", "A hook normalises the gradient of the outputs of the part.",
        says="gradient of a part",
        before="""
def normalised(h):
    h.register_hook(lambda g: g / g.norm()) if h.requires_grad else None
    return h
""", loss="F.mse_loss(normalised(model(x)), y)"),
    script("two-workers-14-average-of-micro-batches", "An own average is updated once for each micro-batch of a rank.",
        says="each micro-batch",
        loader="job.dataloader(data, global_batch_size=12, micro_batch_size=3, drop_last=True)",
        setup=OWN_AVERAGE, update=f"{PAIRS}\n    kept.lerp_(p, 0.1)", end="average.update()"),
    script("two-workers-15-log-of-each-rank", "Each rank appends the loss of each step to one file.",
        says="other files", end='if job.committed:\n    print(f"{job.loss:.4f}", file=Path("log.txt").open("a"))'),
    script("two-workers-16-sampler-by-own-losses", "The weights of a sampler follow the losses that a rank has seen.",
        EPOCHS, says="fails", loader="job.dataloader(data, global_batch_size=8, sampler=sampler)",
        setup="sampler = torch.utils.data.WeightedRandomSampler(torch.ones(16), 16)\nseen = []",
        end="seen.append(float(loss.detach()))",
        after="sampler.weights = torch.linspace(1.0, 1 + 10 * sum(seen) / len(seen), 16)"),
]  # fmt: skip
CLEAN = [
    script("01-accumulates-by-hand", "Gradients add up over four steps, as in DDP.", loop="""
for x, y in job.steps(loader, steps=16):
    job.backward(F.mse_loss(model(x), y) / 4)
    if (job.step - job.committed) % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""),
    script("02-noise-in-the-update", "Noise is added to gradients between backward and update.", backward="""
job.backward(loss)
for p in net.parameters():
    p.grad += 0.01 * torch.randn_like(p)
"""),
    script("03-from-a-step-on", "A loss function that changes from a step on, in whatever process.",
        **HUBER, start="criterion.delta = 0.1 if job.step >= 3 else 1.0"),
    script("04-buffer-of-the-loss", "A buffer of the model follows the loss of the job, in a callback.",
        net="nn.Sequential(nn.Linear(4, 1))", shard='net.register_buffer("mean", torch.ones(()))', setup="""
def follow():
    net.mean.lerp_(torch.tensor(job.loss), 0.5)

job.on_commit(follow)
""", loss="F.mse_loss(model(x), y) / net.mean"),
    script("05-tracked-average", "An average of the weights that the script keeps itself, and tracks.",
        setup=OWN_AVERAGE.replace("def update", "def step"), update=f"{PAIRS}\n    kept.lerp_(p, 0.3)",
        loss=OF_TEACHER.replace("teacher(x)", "average.net(x)"), end="average.step()"),
    script("06-two-models", "Two models with an optimizer each, and two backwards in a loop body.", job="""
one, other = nn.Linear(4, 2), nn.Linear(2, 1)
steps = [torch.optim.Adam(m.parameters(), lr=0.05) for m in (one, other)]
first, second = job.wrap(one, optimizer=steps[0]), job.wrap(other, optimizer=steps[1])
loader = $loader
for x, y in job.steps(loader, steps=16):
    steps[0].zero_grad()
    job.backward(F.mse_loss(second(first(x)), y))
    steps[0].step()
    steps[1].zero_grad()
    job.backward(F.mse_loss(second(first(x).detach()), y))
    steps[1].step()
"""),
    script("07-lbfgs", "L-BFGS evaluates the loss several times between its updates.",
        **LBFGS, loop=OF_LBFGS, closure="return job.backward($loss)"),
    script("08-evaluates-and-plans", "Evaluations in pauses and after epochs determine the learning rate.",
        EPOCHS, net="nn.Linear(4, 1)", optimizer="torch.optim.SGD(net.parameters(), lr=0.3)", setup="""
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
job.track(scheduler=scheduler)

def loss_of(batch):
    return {"loss": (F.mse_loss(model(batch[0]), batch[1]), len(batch[0]))}

def evaluate():
    sums = job.evaluate(DataLoader(data, batch_size=5), loss_of)
    scheduler.step(sums["loss"])

job.every(3, evaluate)
""", after="evaluate()"),
    script("09-unfreezes", "A layer trains from the sixth step on, in a group of its own.",
        optimizer="torch.optim.SGD(net[2].parameters(), lr=0.1)", setup="net[0].requires_grad_(False)", start="""
if job.step == 5:
    net[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.02})
"""),
    script("10-tokens", "Sums over tokens of micro-batches, with their count, and dropout.",
        net="nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1))",
        loader="job.dataloader(data, global_batch_size=8, micro_batch_size=3)",
        loss='(F.mse_loss(model(x), y, reduction="none") * (y > 0)).sum()',
        backward="job.backward(loss, count=(y > 0).sum())"),
    script("11-stops-early", "A job that ends by its own loss, and files that only commits write.", setup="""
def note():
    if job.rank == 0:
        Path("last.txt").write_text(f"{job.step}")
    if job.step >= 14:
        job.stop()

job.on_commit(note)
"""),
    script("12-sharded", "A sharded model with a clipped norm and a schedule.", sharded=True,
        optimizer="torch.optim.AdamW(net.parameters(), lr=0.02)",
        setup="scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)\njob.track(scheduler=scheduler)",
        backward="job.backward(loss)\njob.clip_grad_norm_(0.5)", end="scheduler.step()"),
    script("13-accelerate", "A loop with accelerate that logs each epoch.", ACCELERATE,
        setup="scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 4))", end="scheduler.step()",
        after='accelerator.print(f"epoch {epoch}: {job.loss}")'),
    script("15-loss-of-the-body", "The body formats the loss of the step, and decides the next learning rate by it.",
        loader="job.dataloader(data, global_batch_size=8, micro_batch_size=3)", end="""
if job.committed:
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + float(f"{job.loss:.6f}"))
"""),
    script("16-average-of-statistics", "An average of the model, with BatchNorm's statistics, over micro-batches.",
        net="nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))",
        loader="job.dataloader(data, global_batch_size=18, micro_batch_size=3, drop_last=True)",
        setup=OWN_AVERAGE, end="if job.committed:\n    average.update()", update="""
for kept, new in zip(self.net.state_dict().values(), net.state_dict().values(), strict=True):
    kept.lerp_(new, 0.1) if kept.is_floating_point() else kept.copy_(new)
"""),
    script("17-own-loss-scale", "A tracked loss scale of the script's own, whose branches differ by value.", setup="""
class Scale:
    def __init__(self):
        self.value, self.good = 2.0**40, 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)

    def update(self, overflow):
        if overflow:
            self.value, self.good = self.value / 2, 0
        else:
            self.good += 1
            self.value *= 2 if self.good % 3 == 0 else 1

scale = Scale()
job.track(scale=scale)
""", end="scale.update(scale.value > 2.0**39)"),
    script("18-average-that-begins-equal", "An average that the body follows by hand, and that begins as the model.",
        setup="teacher = copy.deepcopy(net).requires_grad_(False)\njob.track(teacher=teacher)", start=AVERAGE),
    script("19-data-that-change-with-the-epoch", "Worker processes load a data set whose attribute each epoch sets.",
        EPOCHS, data=HARDER, loader="job.dataloader(data, global_batch_size=8, num_workers=1)", loop="""
for epoch in job.epochs(loader, 8):
    data.level = 1.0 if epoch < 4 else 0.5
    for x, y in job.steps(loader, epochs=epoch + 1):
        $body
"""),
    script("20-data-that-grow", "Each round trains on more samples, with a loader of its own.", loop="""
for number in range(4):
    more = TensorDataset(*data[: 16 + 8 * number])
    loader = job.dataloader(more, global_batch_size=8)
    for x, y in job.steps(loader, epochs=number + 1):
        $body
"""),
    script("21-swaps-averages", "A tracked average by mul_, whose weights change places with the model's.",
        setup=OWN_AVERAGE, update=f"{PAIRS}\n    kept.mul_(0.9).add_(p, alpha=0.1)", end="""
if job.committed:
    average.update()
    for kept, p in zip(average.net.parameters(), net.parameters(), strict=True):
        kept.data, p.data = (p.data.clone(), kept.data.clone()) if job.step % 4 == 3 else (kept.data, p.data)
"""),
    script("22-leaves-by-break", "Loops are left by break; a variable holds the second one's iterator.", loop="""
for x, y in job.steps(loader, steps=8):
    $body
    if job.step == 5:
        break
bar = job.steps(loader, steps=16)
for x, y in bar:
    $body
    if job.step == 12:
        break
"""),
    script("23-lightning-step-counter", "A LightningModule counts the calls of training_step in an attribute.",
        LIGHTNING, init="self.calls = 0", step="self.calls += 1", loss="F.mse_loss(self.net(x), y) / self.calls"),
    script("14-transformers", "Hugging Face's Trainer with a schedule and a callback that only reads.",
        TRANSFORMERS, callbacks="Show()", callback="""
class Show(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print(state.global_step)
"""),
]  # fmt: skip
