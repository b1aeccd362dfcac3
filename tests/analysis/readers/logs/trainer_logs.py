"""Logs as known trainers print them, made after their programs' sources: a slow first iteration, then steady ones."""

import json


def pytorch_examples(*, first_index: int = 1, epochs: int = 2, every: int = 10) -> str:
    """100 iterations an epoch, the first of 2 s and the others of 0.25 s; `first_index` 0 is the older form."""
    lines = ["=> creating model 'resnet50'"]
    for epoch in range(epochs):
        total_s = 0.0
        for index in range(100):
            time_s = 0.25 if index else 2.0
            total_s += time_s
            if index % every == 0:
                lines.append(
                    f"Epoch: [{epoch}][{index + first_index:3d}/100]\tTime {time_s:6.3f} ({total_s / (index + 1):6.3f})"
                    "\tData  0.010 ( 0.030)\tLoss 6.9000e+00 (7.0000e+00)\tAcc@1   0.00 (  0.12)\tAcc@5   0.39 (  0.52)"
                )
        lines.append("Test: [ 0/10]\tTime  1.000 ( 1.000)\tLoss 6.9000e+00 (6.9000e+00)")
    return "\n".join([*lines, ""])


def timm(*, batch_size: int = 128) -> str:
    """Iterations 0, 50, … 500: the first takes 3 s, the others 0.32 s."""
    lines = ["Model resnet50 created, param count:25557032"]
    for index in range(0, 501, 50):
        time_s = 0.32 if index else 3.0
        mean_s = (3.0 + 0.32 * index) / (index + 1)
        lines.append(
            f"Train: 0 [{index:>4d}/1251 ({100 * index / 1250:>3.0f}%)]  Loss: 6.946 (6.95)  "
            f"Time: {time_s:.3f}s, {batch_size / time_s:>7.2f}/s  ({mean_s:.3f}s, {batch_size / mean_s:>7.2f}/s)  "
            "LR: 1.000e-06  Data: 0.010 (0.020)"
        )
    return "\n".join([*lines, ""])


def torchvision(*, every: int = 10) -> str:
    """Two epochs of 60 iterations of 64 images; the first takes 2 s, the others 0.25 s, 0.05 s of it waits."""
    lines = ["| NVIDIA-SMI 535.104.05 |", "Namespace(amp=True, batch_size=64, model='resnet50', print_freq=10)"]
    for epoch in range(2):
        for index in range(0, 60, every):
            window = [0.25 if number else 2.0 for number in range(index + 1)][-20:]
            lines.append(
                f"Epoch: [{epoch}]  [{index:2d}/60]  eta: 0:00:14  lr: 0.1  img/s: {64 / 0.2:.10f}  loss: 6.9 (7.0)  "
                f"acc1: 0.0 (0.1)  time: {sum(window) / len(window):.4f}  data: 0.0500  max mem: 2710"
            )
        lines += [f"Epoch: [{epoch}] Total time: 0:00:16", "Test:   [ 0/20]  eta: 0:00:18  time: 0.9  data: 0.9"]
    return "\n".join([*lines, ""])


def megatron(*, resumed: bool = False) -> str:
    """A line every 10 iterations of 32 samples, which take 0.5 s on average; resumed, the last two lines come again."""
    numbers = [*range(10, 101, 10), *([90, 100] if resumed else [])]
    return "".join(
        f" [2026-04-27 00:00:01] iteration {number:8d}/     500 | consumed samples: {32 * number:12d} | elapsed time"
        f" per iteration (ms): {500 + 0.1 * place:.1f} | learning rate: 1.0E-04 | global batch size:    32 | lm loss:"
        " 3.000000E+00 | loss scale: 1.0 | grad norm: 1.0 |\n"
        for place, number in enumerate(numbers)
    )


def nanogpt(*, every: int = 1) -> str:
    """41 iterations of 16,384 tokens, which take 2 s, the first 40 s."""
    lines = [
        "tokens per iteration will be: 16,384",
        "number of parameters: 10.65M",
        "step 0: train loss 4.2, val loss 4.2",
    ]
    times_ms = {number: 2000.0 if number else 40632.86 for number in range(0, 41, every)}
    lines += [f"iter {number}: loss 3.4410, time {time_ms:.2f}ms, mfu 0.19%" for number, time_ms in times_ms.items()]
    return "\n".join([*lines, ""])


def trainer_state(**last: object) -> str:
    """The state at the end of 500 steps of 16 samples in 100 s, 4 on each of 4 devices."""
    end = {"epoch": 1.0, "step": 500, "train_loss": 2.8, "train_runtime": 100.0} | last
    end |= {"train_samples_per_second": 79.9, "train_steps_per_second": 5.0} if last.get("train_runtime", 1) else {}
    history = [{"epoch": 0.1, "learning_rate": 5e-5, "loss": 3.0, "step": 50}, end]
    return json.dumps({"best_metric": None, "global_step": 500, "train_batch_size": 4, "log_history": history})


EVERY = (pytorch_examples, timm, torchvision, megatron, nanogpt, trainer_state)
