#!/usr/bin/env python3
"""Writes pairs/losses.txt: every loss of a pair of answers with its derivatives, by PyTorch's autograd in float64.

pairs/labels.txt has the losses of single answers with a label; each line: loss beta desirable_weight undesirable_weight is_desirable p r kl
value dp. Each line of losses.txt: losses divergence alpha tau beta label_smoothing gamma p_chosen p_rejected r_chosen r_rejected n_chosen n_rejected value
dp_chosen dp_rejected. losses: one, or a sum as --loss_type names it, like sigmoid:0.8,sft:0.25. p: sum of log-probabilities, r: that of the
reference, n: targets. pairs/weighed.txt has pairs whose tokens (LD-DPO) or losses (WPO) have weights; each line: losses ld_alpha use_weighting beta
label_smoothing, then of the chosen and of the rejected answer its targets, the sums of log-probabilities of those that both have and of those behind,
of the logarithms of squared probabilities, and of the reference, then value and the derivatives by a token of each of these four parts (0: it has no
tokens). tests/ops/test_pair.c compares.
"""
import os, random
import torch
from torch.nn.functional import logsigmoid as ls

sig = torch.sigmoid


def score(divergence, alpha, a):
    """f'(t) of the divergence at t = exp(a)."""
    t = torch.exp(a)
    if divergence == "forward_kl": return 1 - 1 / t
    if divergence == "js_divergence": return torch.log(2 * t / (t + 1))
    if divergence == "alpha_divergence": return (t ** (alpha - 1) - 1) / (alpha - 1)
    return a


def loss(kind, b, e, g, p, r, n, divergence, alpha, tau):
    a = p - r  # log ratios, chosen and rejected
    q = p / n  # without a reference
    s = score(divergence, alpha, a)
    d, dm = s[0] - s[1], s[0] / n[0] - s[1] / n[1]
    if kind == "sigmoid": return -(1 - e) * ls(b * d) - e * ls(-b * d)
    if kind == "robust": return (-(1 - e) * ls(b * d) + e * ls(-b * d)) / (1 - 2 * e)
    if kind == "hinge": return torch.relu(1 - b * d)
    if kind == "ipo": return (dm - 1 / (2 * b)) ** 2
    if kind == "sigmoid_norm": return -(1 - e) * ls(b * dm) - e * ls(-b * dm)
    if kind == "exo_pair":
        e = torch.tensor(e, dtype=torch.float64)
        return sig(b * d) * (ls(b * d) - torch.log1p(-e)) + sig(-b * d) * (ls(-b * d) - torch.log(e))
    if kind == "nca_pair": return -ls(b * a[0]) - 0.5 * ls(-b * a[0]) - 0.5 * ls(-b * a[1])
    if kind == "bco_pair": return -ls(b * a[0]) - ls(-b * a[1])
    if kind == "sppo_hard": return (a[0] - 0.5 / b) ** 2 + (a[1] + 0.5 / b) ** 2
    if kind == "apo_zero": return 1 - sig(b * a[0]) + sig(b * a[1])
    if kind == "apo_down": return sig(b * a[0]) + 1 - sig(b * d)
    if kind == "discopop":
        w = sig(b * d / tau)
        return -ls(b * d) * (1 - w) + torch.exp(-b * d) * w
    if kind == "sft": return -q[0]
    if kind == "orpo":
        odds = q[0] - q[1] - (torch.log1p(-torch.exp(q[0])) - torch.log1p(-torch.exp(q[1])))
        return -q[0] - b * ls(odds)
    if kind == "simpo": return -(1 - e) * ls(b * (q[0] - q[1]) - g) - e * ls(-(b * (q[0] - q[1]) - g))
    if kind == "cpo": return -(1 - e) * ls(b * (p[0] - p[1])) - e * ls(-b * (p[0] - p[1]))
    raise ValueError(kind)


KINDS = ("sigmoid robust hinge ipo sigmoid_norm exo_pair nca_pair bco_pair sppo_hard apo_zero apo_down discopop sft orpo "
         "simpo cpo").split()
DIFFERENCES = "sigmoid robust hinge ipo sigmoid_norm exo_pair discopop".split()  # of which a divergence may be another
SMOOTHED = "sigmoid robust sigmoid_norm exo_pair simpo cpo".split()
random.seed(5)
here = os.path.dirname(os.path.abspath(__file__))
SUMS = ["sigmoid:0.8,bco_pair:0.2,sft:1", "sigmoid:0.5,sft", "ipo:0.75,hinge:2,nca_pair,exo_pair:0.125", "apo_zero,orpo:0.5", "sppo_hard:0.25,sigmoid_norm:3",
        "simpo,cpo:0.25", "robust:0.5,discopop:0.5,sft:0.125", "apo_down:1.5,sft:0.5,ipo"]


def f32(x):
    """Single precision is what an option is kept in."""
    return float(torch.tensor(x, dtype=torch.float32))


def write(out, words, i, e):
    divergence = "reverse_kl" if i < 8 else ["forward_kl", "js_divergence", "alpha_divergence", "alpha_divergence"][i % 4]
    alpha, tau = (0.5 if i % 8 == 2 else 1.75), f32(0.05 if i < 8 else 0.5)
    b, g = f32([0.1, 0.5, 2.0, 0.01][i % 4]), f32(0.5 if i % 3 else 1.25)
    spread = [1, 8, 40, 0][i % 4] if i < 8 else [1, 4, 0.1, 2][i // 2 % 4]  # exponentials of 40 are no test of digits
    n = torch.tensor([random.randint(1, 60), random.randint(1, 60)], dtype=torch.float64)
    r = torch.tensor([f32(-random.uniform(1, 3) * x) for x in n.tolist()], dtype=torch.float64)
    p = torch.tensor([f32(min(x + random.uniform(-1, 1) * spread, -0.5)) for x in r.tolist()], dtype=torch.float64, requires_grad=True)
    value = 0
    for word in words.split(","):
        kind, _, weight = word.partition(":")
        value = value + f32(float(weight or 1)) * loss(kind, b, e, g, p, r, n, divergence, alpha, tau)
    (dp,) = torch.autograd.grad(value, p)
    numbers = [alpha, tau, b, e, g, *p.tolist(), *r.tolist(), *n.tolist(), value.item(), *dp.tolist()]
    print(words, divergence, *[repr(x) for x in numbers], file=out)


with open(os.path.join(here, "pairs", "losses.txt"), "w") as out:
    for kind in KINDS:
        for i in range(16 if kind in DIFFERENCES else 8):
            smoothed = 0.125 if kind == "exo_pair" or (kind in SMOOTHED and i % 2) else 0.0
            write(out, kind + (",sft:0.25" if i % 4 == 3 else ""), i, smoothed)
    for i, words in enumerate(SUMS):
        write(out, words, i, 0.125)


def label_loss(kind, b, weights, is_desirable, p, r, kl):
    a = p - r
    if kind == "kto": return weights[0] * (1 - sig(b * (a - kl))) if is_desirable else weights[1] * (1 - sig(b * (kl - a)))
    if kind == "apo_zero_unpaired": return weights[0] * (1 - sig(b * a)) if is_desirable else weights[1] * sig(b * a)
    raise ValueError(kind)


with open(os.path.join(here, "pairs", "labels.txt"), "w") as out:
    for kind in ("kto", "apo_zero_unpaired"):
        for i in range(16):
            b = float(torch.tensor([0.1, 0.5, 2.0, 0.01][i // 2 % 4], dtype=torch.float32))
            weights, is_desirable = [1.0, 1.0] if i < 6 else [0.75, 1.5], i % 2
            r = -random.uniform(5, 90)
            p = torch.tensor(r + random.uniform(-1, 1) * [1, 8, 3, 20][i % 4], dtype=torch.float64, requires_grad=True)
            kl = random.uniform(0, 6) if i % 5 else 0.0
            value = label_loss(kind, b, weights, is_desirable, p, torch.tensor(r, dtype=torch.float64), kl)
            (dp,) = torch.autograd.grad(value, p)
            print(kind, *[repr(x) for x in (b, *weights, is_desirable, p.item(), r, kl, value.item(), dp.item())], file=out)


def weighed(words, b, e, alpha, is_wpo, logp, squares, r):
    """logp, squares: by token of each answer."""
    n = torch.tensor([float(len(x)) for x in logp], dtype=torch.float64)
    shared = min(len(x) for x in logp)
    p = torch.stack([x[:shared].sum() + alpha * x[shared:].sum() for x in logp])
    plain = torch.stack([x.sum() for x in logp])
    value = sum(f32(float(w or 1)) * loss(k, b, e, 0.5, plain if k in ("sft", "orpo", "simpo", "cpo") else p, r, n, "reverse_kl", 0.5, 0.05)
                for k, _, w in (word.partition(":") for word in words.split(",")))
    if is_wpo:
        value = value * torch.exp(sum((x - s).mean() for x, s in zip(logp, squares))).detach()
    grads = torch.autograd.grad(value, logp)
    parts = [x for g, q in zip(grads, logp) for x in (g[0].item(), g[shared].item() if len(q) > shared else 0.0)]
    return value.item(), parts, [[len(q), q[:shared].sum().item(), q[shared:].sum().item(), s.sum().item()] for q, s in zip(logp, squares)]


with open(os.path.join(here, "pairs", "weighed.txt"), "w") as out:
    torch.manual_seed(7)
    for i, words in enumerate(["sigmoid", "ipo", "sigmoid_norm", "bco_pair", "sigmoid:0.8,sft:0.25", "apo_down,cpo:0.5", "exo_pair", "robust,simpo:0.5"] * 3):
        alpha, is_wpo = [(f32(0.3), 0), (1.0, 1), (f32(0.7), 1), (0.0, 0)][(i + i // 8) % 4]
        probs = [torch.softmax(torch.randn(random.randint(1, 9), 11, dtype=torch.float64) * 2, -1) for _ in range(2)]
        logp = [x[:, 3].log().requires_grad_() for x in probs]
        squares = [(x ** 2).sum(-1).log() for x in probs]
        r = torch.tensor([f32(x.sum().item() + random.uniform(-3, 3)) for x in logp], dtype=torch.float64)
        b, e = f32([0.1, 0.5, 2.0][i % 3]), 0.125
        value, parts, sums = weighed(words, b, e, alpha, is_wpo, logp, squares, r)
        print(words, *[repr(float(x)) for x in (alpha, is_wpo, b, e, *sums[0], r[0], *sums[1], r[1], value, *parts)], file=out)


# pairs/transport.txt: losses of whole batches that are sorted. Each line: loss beta label_smoothing and the number of pairs, then of each pair p and r of
# both answers and the derivatives of the mean by both p; last the mean. tests/data/test_match.c compares.
with open(os.path.join(here, "pairs", "transport.txt"), "w") as out:
    torch.manual_seed(11)
    for i in range(16):
        kind, n, b, e = ["aot", "aot_unpaired"][i % 2], [1, 2, 5, 17][i // 4], f32([0.1, 0.5, 2.0][i % 3]), [0.0, 0.125][i // 2 % 2]
        r = (-20 * torch.rand(n, 2)).double()
        p = (r + torch.randn(n, 2)).float().double().requires_grad_()
        if i % 4 == 3:  # equal numbers
            r, p = (r * 0 - 3), (p.detach() * 0 - torch.arange(n).remainder(3).double()[:, None]).requires_grad_()
        a = p - r
        lists = [p[:, 0] - p[:, 1], r[:, 0] - r[:, 1]] if kind == "aot" else [a[:, 0], a[:, 1]]
        first, second = (torch.sort(x, stable=True)[0] for x in lists)
        d = b * (first - second)
        value = (-(1 - e) * ls(d) - e * ls(-d)).mean()
        (dp,) = torch.autograd.grad(value, p)
        print(kind, *[repr(float(x)) for x in (b, e, n, *torch.cat([p, r, dp], 1).detach().flatten(), value.item())], file=out)
