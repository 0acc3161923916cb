"""PPO: an actor and a critic, several passes of updates over what the policy of the step's beginning has collected."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import Dataset

import elastrain

ACTIONS = (-1.0, 0.0, 1.0)


class Episodes(Dataset):
    """What is random in each episode: where a ball starts on its track, and the draws of its actions."""

    def __init__(self, count, length):
        self.count, self.length = count, length

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(2) * 2 - 1, torch.rand(self.length)


def mlp(outputs, hidden=32):
    return nn.Sequential(
        nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


@torch.no_grad()
def collect(actor, critic, start, draws, args):
    """Push the balls towards the middle. Returns (episodes, length, …) of what updates need."""
    state, states, actions, rewards = start, [], [], []
    for draw in draws.T:
        chosen = (actor(state).softmax(1).cumsum(1) < draw[:, None]).sum(1).clamp_max(len(ACTIONS) - 1)
        states.append(state)
        actions.append(chosen)
        speed = state[:, 1] + 0.1 * torch.tensor(ACTIONS)[chosen]
        state = torch.stack([state[:, 0] + 0.1 * speed, speed], 1)
        rewards.append(-state.abs().sum(1))
    states, actions = torch.stack(states, 1), torch.stack(actions, 1)
    values = torch.cat([critic(states), critic(state[:, None])], 1).squeeze(-1)
    advantages, advantage = [], torch.zeros(len(start))
    for t in reversed(range(args.length)):
        delta = rewards[t] + args.discount * values[:, t + 1] - values[:, t]
        advantage = delta + args.discount * args.trace * advantage
        advantages.insert(0, advantage)
    advantages = torch.stack(advantages, 1)
    before = actor(states).log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)
    return states, actions, before, advantages, advantages + values[:, :-1], torch.stack(rewards, 1)


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32, help="episodes per step, over all ranks")
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--length", type=int, default=16, help="of an episode")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--minibatches", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2.5e-4)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--discount", type=float, default=0.95)
    parser.add_argument("--trace", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="ppo.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    episodes = Episodes(args.batch_size * args.steps, args.length)
    loader = job.dataloader(episodes, global_batch_size=args.batch_size, seed=args.seed)

    actor_net, critic_net = mlp(len(ACTIONS)), mlp(1)
    actor_optimizer = optim.Adam(actor_net.parameters(), lr=args.lr, eps=1e-5)
    critic_optimizer = optim.Adam(critic_net.parameters(), lr=args.lr, eps=1e-5)
    actor = job.wrap(actor_net, optimizer=actor_optimizer, name="actor")
    critic = job.wrap(critic_net, optimizer=critic_optimizer, name="critic")
    for start, draws in job.steps(loader, steps=args.steps):
        *rollout, rewards = collect(actor, critic, start, draws, args)
        order = torch.Generator().manual_seed(args.seed + job.step)  # the same on all ranks
        for _ in range(args.passes):
            for times in torch.randperm(args.length, generator=order).chunk(args.minibatches):
                states, actions, before, advantages, returns = (x[:, times] for x in rollout)
                policy = actor(states).log_softmax(-1)
                ratio = (policy.gather(-1, actions[..., None]).squeeze(-1) - before).exp()
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                entropy = -(policy.exp() * policy).sum(-1).mean()
                actor_loss = -torch.min(ratio * advantages, clipped * advantages).mean() - 0.01 * entropy
                actor_optimizer.zero_grad()
                job.backward(actor_loss)
                nn.utils.clip_grad_norm_(actor_net.parameters(), 0.5)
                actor_optimizer.step()

                critic_loss = F.mse_loss(critic(states).squeeze(-1), returns)
                critic_optimizer.zero_grad()
                job.backward(critic_loss)
                nn.utils.clip_grad_norm_(critic_net.parameters(), 0.5)
                critic_optimizer.step()
        if job.committed and job.step % 10 == 0 and job.rank == 0:
            print(f"step {job.step}: reward {rewards.mean():.3f}")

    if job.rank == 0:
        state = {"model": actor_net.state_dict(), "critic": critic_net.state_dict()}
        state |= {"actor_optimizer": actor_optimizer.state_dict(), "critic_optimizer": critic_optimizer.state_dict()}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)
