"""What `elastrain convert` makes of the shapes that scripts have, one by one."""

from __future__ import annotations

import textwrap

import pytest

from elastrain_convert.conversion import Conversion, Options, convert

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

"""
MODEL = """\
model = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOADER = "loader = DataLoader(dataset, batch_size=64 // dist.get_world_size(), sampler=DistributedSampler(dataset))\n"
LOOP = """\
for epoch in range(10):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
"""
ONE_GPU = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.functional import mse_loss as loss_fn
dataset = TensorDataset(torch.zeros(8, 4))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=64, shuffle=True)
"""


def made(source: str, **options: int) -> Conversion:
    return convert(source, Options(**options))


def lines(source: str, **options: int) -> list[str]:
    """Lines of the converted script, without indentation."""
    return [line.strip() for line in made(source, **options).after.splitlines()]


def whys(source: str, **options: int) -> str:
    return "\n".join(f"{note.line}: {note.why}; {note.way}" for note in made(source, **options).notes)


def test_loop_becomes_one_over_steps_if_it_is_plain():
    found = lines(HEAD + MODEL + LOADER + LOOP)
    assert found[found.index("with elastrain.join() as job:") :] == [
        "with elastrain.join() as job:",
        "model = job.wrap(net)",
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)",
        "loader = job.dataloader(dataset, global_batch_size=64)",
        "job.track(optimizer=optimizer)",
        "for epoch in job.epochs(loader, 10):",
        "for x, y in job.steps(loader, epochs=epoch + 1):",
        "loss = loss_fn(model(x), y)",
        "job.backward(loss)",
        "optimizer.step()",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("batch_size=64, sampler=DistributedSampler(dataset, seed=3)", "global_batch_size=64, seed=3"),
        ("batch_size=b, sampler=DistributedSampler(dataset, shuffle=False)", "global_batch_size=b, shuffle=False"),
        ("batch_size=64 // dist.get_world_size(), shuffle=True, num_workers=4", "global_batch_size=64, num_workers=4"),
        ("batch_size=int(64 / dist.get_world_size()), persistent_workers=True, pin_memory=True, shuffle=True",
         "global_batch_size=int(64), pin_memory=True"),
        ("batch_size=8 // int(os.environ['WORLD_SIZE']), drop_last=True, shuffle=True",
         "global_batch_size=8, drop_last=True"),
    ],
)  # fmt: skip
def test_loader_keeps_its_options_and_is_of_the_whole_job(options, expected):
    source = HEAD + MODEL + f"loader = DataLoader(dataset, {options})\n" + LOOP
    assert f"loader = job.dataloader(dataset, {expected})" in lines(source)


def test_learning_rate_that_follows_the_world_size_is_fixed_if_the_number_is_known():
    source = HEAD + MODEL.replace("lr=0.1", "lr=0.1 * dist.get_world_size()") + LOADER + LOOP
    assert "the world size changes" in whys(source)
    assert "optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * 4)" in lines(source, processes=4)


def test_batch_of_one_gpu_is_the_batch_and_only_training_has_the_wrapper():
    source = ONE_GPU + LOOP + "torch.save(model.state_dict(), 'out.pt')\n"
    assert not whys(source)
    found = lines(source)
    assert "loader = job.dataloader(dataset, global_batch_size=64)" in found
    assert "elastic_model = job.wrap(model)" in found
    assert "loss = loss_fn(elastic_model(x), y)" in found
    assert found[-2:] == ["if job.rank == 0:", "torch.save(model.state_dict(), 'out.pt')"]


def test_rank_is_read_where_it_is_used_if_the_script_kept_it():
    start = "rank = int(os.environ['RANK'])\nlocal_rank = int(os.environ['LOCAL_RANK'])\n"
    place = (
        "torch.cuda.set_device(local_rank)\ndevice = torch.device(f'cuda:{local_rank}')\nnet = net.cuda(local_rank)\n"
    )
    found = lines(HEAD + start + place + MODEL + LOADER + LOOP + "if rank == 0:\n    print('done')\n")
    assert "if job.rank == 0:" in found
    assert "device = job.device" in found
    assert "net = net.to(job.device)" in found
    assert not [line for line in found if "local_rank" in line or "environ" in line or line == "import os"]


def test_functions_that_only_set_up_the_group_go_with_their_calls():
    set_up = "def setup():\n    os.environ['MASTER_ADDR'] = 'localhost'\n    dist.init_process_group('gloo')\n\n"
    found = lines(HEAD + set_up + "setup()\n" + MODEL + LOADER + LOOP)
    assert not [line for line in found if "setup" in line or "MASTER" in line]


def test_enumeration_follows_the_jobs_step_and_rank_0_shows_the_bar():
    source = (
        HEAD
        + MODEL
        + LOADER
        + LOOP.replace("in loader", "in enumerate(tqdm(loader, desc='x'))")
        .replace("for x, y", "for i, (x, y)")
        .replace(
            "optimizer.step()",
            "optimizer.step()\n        if i % 10 == 0 and dist.get_rank() == 0:\n            print(loss.item())",
        )
    )
    found = lines(source)
    assert "bar = tqdm(total=len(loader), desc='x', delay=0.01)" in found
    assert "for x, y in job.steps(loader, epochs=epoch + 1):" in found
    assert found[-2:] == ["if job.committed and job.rank == 0:", "bar.update(job.step % len(loader) + 1 - bar.n)"]
    assert "i = job.step % len(loader)" in found
    assert "if job.committed and i % 10 == 0 and job.rank == 0:" in found
    assert "print(job.loss)" in found


def test_counter_of_steps_becomes_the_jobs():
    source = HEAD + MODEL + LOADER + "step = 0\n" + LOOP + "        step += 1\n        log(step)\nprint(step)\n"
    found = lines(source)
    assert "step = 0" not in found
    assert "log((job.step + 1))" in found
    assert "print(job.step)" in found


def test_values_between_epochs_travel():
    end = "    score = evaluate(model)\n    if score > best:\n        best = score\nprint(best)\n"
    found = lines(HEAD + MODEL + LOADER + "best = float('-inf')\n" + LOOP + end)
    assert "kept = job.variables(best=float('-inf'))" in found
    assert "if score > kept.best:" in found
    assert "kept.best = score" in found
    assert "print(kept.best)" in found


def test_values_of_one_statement_travel_where_they_change():
    end = (
        "    score = evaluate(model)\n    if score > best:\n        best, bad = score, 0\n    else:\n        bad += 1\n"
    )
    found = lines(HEAD + MODEL + LOADER + "seen, best, bad = 1, 0.0, 0\n" + LOOP + end)
    assert "kept = job.variables(best=0.0, bad=0)" in found
    assert "seen = 1" in found
    assert "kept.best, kept.bad = score, 0" in found


def test_block_begins_where_training_does():
    found = lines(
        ONE_GPU.replace("model =", "import late\nmodel =")
        + "best = 0.0\nbad = 0\n"
        + LOOP
        + "    best, bad = 1.0, bad + 1\n"
    )
    assert (
        found[found.index("with elastrain.join() as job:") + 1]
        == "loader = job.dataloader(dataset, global_batch_size=64)"
    )


def test_meters_count_committed_steps_also_if_they_stand_before_the_backward():
    body = LOOP.replace("        loss.backward()", "        meter.update(loss.item())\n        loss.backward()")
    found = lines(HEAD + MODEL + LOADER + body)
    assert found[found.index("job.backward(loss)") + 1 :] == [
        "if job.committed:",
        "meter.update(job.loss)",
        "optimizer.step()",
    ]


def test_accumulated_gradients_are_kept_without_no_sync():
    body = """\
    for i, (x, y) in enumerate(loader):
        with model.no_sync():
            loss = loss_fn(model(x), y)
            (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    found = lines(HEAD + MODEL + LOADER + "for epoch in range(3):\n" + body)
    assert "job.backward(loss / 4)" in found
    assert not [line for line in found if "no_sync" in line]


def test_mean_over_tokens_is_recognised():
    body = LOOP.replace(
        "        loss.backward()", "        dist.all_reduce(n)\n        (loss * dist.get_world_size() / n).backward()"
    )
    found = lines(HEAD + MODEL + LOADER + body)
    assert "job.backward(loss, count=n)" in found
    assert not [line for line in found if "all_reduce" in line]


def test_epochs_that_begin_at_one_stay_so_and_loops_in_functions_receive_theirs():
    source = HEAD + """\
def train(model, loader, optimizer):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

def main():
""" + textwrap.indent(MODEL + LOADER, "    ") + """\
    for epoch in range(1, args.epochs + 1):
        train(model, loader, optimizer)

if __name__ == "__main__":
    main()
"""  # fmt: skip
    found = lines(source)
    assert "for epoch in (done + 1 for done in job.epochs(loader, args.epochs)):" in found
    assert "def train(model, loader, optimizer, *, epoch):" in found
    assert "train(model, loader, optimizer, epoch=epoch)" in found
    assert "for x, y in job.steps(loader, epochs=epoch):" in found
    assert found[-3:] == ['if __name__ == "__main__":', "with elastrain.join() as job:", "main()"]


def test_processes_that_the_script_spawns_are_the_agents():
    source = HEAD + """\
import torch.multiprocessing as mp

def main(rank, size, epochs):
    dist.init_process_group("gloo", rank=rank, world_size=size)
""" + textwrap.indent(MODEL + LOADER + LOOP + "if rank == 0:\n    print('done')\n", "    ") + """
if __name__ == "__main__":
    mp.spawn(main, args=(4, 10), nprocs=4)
"""  # fmt: skip
    found = lines(source)
    assert "main(job.rank, 4, 10)" in found
    assert "if job.rank == 0:" in found


def test_name_job_is_left_to_a_script_that_uses_it():
    assert "with elastrain.join() as elastic_job:" in lines(HEAD + "job = 'nightly'\n" + MODEL + LOADER + LOOP)


def test_each_hunk_has_its_explanation_and_the_diff_applies(tmp_path):
    source = HEAD + MODEL + LOADER + LOOP
    diff = made(source).diff("train.py")
    assert all(line.endswith("@@") or line.partition("@@ ")[2] for line in diff.splitlines() if line.startswith("@@"))
    assert "gradients become the mean over the global batch" in diff
