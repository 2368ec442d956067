"""Makes freeze.json: torch trains the MLP of train.json with parameters that are
frozen for some of the steps. Run it with torch on the CPU:

    python3 freeze.py ../../goldenmodel/testdata/train.json > freeze.json
"""

import json
import sys

import torch

NAMES = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]

# What is frozen in each step: fc1 until the others have been trained twice, then
# fc2.bias in the middle of its training, and fc1.weight at the end.
FROZEN = [["fc1.weight", "fc1.bias"], ["fc1.weight", "fc1.bias"], [], ["fc2.bias"], ["fc1.weight"]]

VARIANTS = {"plain": 0.0, "clip0.5": 0.5}


def floats(tensor):
    """The shortest decimals that parse back to the same float32."""
    return [float(str(x)) for x in tensor.detach().numpy().ravel()]


def build(init):
    model = torch.nn.Sequential()
    model.add_module("fc1", torch.nn.Linear(17, 33))
    model.add_module("relu", torch.nn.ReLU())
    model.add_module("fc2", torch.nn.Linear(33, 5))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.tensor(init[name], dtype=torch.float32).view_as(p))
    return model


def gradients(model, x, y):
    """Leaves the mean of the ranks' gradients, and returns their losses."""
    losses = []
    for rank in range(len(x)):
        loss = torch.nn.functional.mse_loss(model(x[rank]), y[rank])
        loss.backward()
        losses.append(loss.item())
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= len(x)
    return losses


def train(world, data, clip):
    steps = len(FROZEN)
    x = torch.tensor(data["x"], dtype=torch.float32).view(steps, world, 4, 17)
    y = torch.tensor(data["y"], dtype=torch.float32).view(steps, world, 4, 5)
    model = build(data["init"])
    params = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    result = {"losses": [], "grad_norms": []}
    for step in range(steps):
        optimizer.zero_grad()  # sets gradients to None
        for name, p in params.items():
            p.requires_grad_(name not in FROZEN[step])
        result["losses"].append(gradients(model, x[step], y[step]))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        result["grad_norms"].append(float(norm))
        optimizer.step()
    result["optimizer_steps"] = {name: int(optimizer.state[p]["step"]) for name, p in params.items()}
    result["final"] = {name: floats(params[name]) for name in NAMES}
    return result


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        worlds = json.load(f)["worlds"]
    torch.set_num_threads(1)
    out = {"torch": torch.__version__.split("+")[0], "lr": 0.01, "weight_decay": 0.1, "frozen": FROZEN, "worlds": {}}
    for world, data in worlds.items():
        out["worlds"][world] = {name: {"clip": clip, **train(int(world), data, clip)} for name, clip in VARIANTS.items()}
    json.dump(out, sys.stdout)
    print()


main()
