"""The end of elastic_training.py: accuracy, the picture drawn from the ranks' records, and the verdict. Never
communicates."""

import json
import sys
from collections import defaultdict

import torch

ACCURACY_MIN = 0.95
ACCURACY_SLACK = 0.02


def read_records(folder):
    """rank -> list of step records of all its lives, in time order."""
    records = defaultdict(list)
    for path in sorted(folder.glob("rank-*.jsonl")):
        rank = int(path.name.split("-")[1].split(".")[0])
        for line in path.read_text().splitlines():
            records[rank].append(json.loads(line))
    return {rank: sorted(lines, key=lambda r: r["t"]) for rank, lines in sorted(records.items())}


def accuracy(trainer):
    with torch.no_grad():
        predicted = trainer.ddp.module(trainer.test_x).argmax(dim=1)
    return (predicted == trainer.test_y).float().mean().item()


def draw(records, world, killed, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    start = min(lines[0]["t"] for lines in records.values() if lines)
    figure, (loss_ax, time_ax, band_ax) = plt.subplots(
        3, 1, figsize=(10, 7), sharex=True, height_ratios=[3, 2, 2], layout="constrained"
    )
    for rank, lines in records.items():
        done = [r for r in lines if r["loss"] is not None]
        loss_ax.plot([r["t"] - start for r in done], [r["loss"] for r in done], ".", ms=2.5, label=f"rank {rank}")
        time_ax.plot([r["t"] - start for r in lines], [r["ms"] for r in lines], ".", ms=2.5)
        for at, nxt in zip(lines, lines[1:] + [None]):
            width = (nxt["t"] - at["t"]) if nxt and nxt["t"] - at["t"] < 2.0 else at["ms"] / 1000
            band_ax.barh(rank, width, left=at["t"] - start, height=0.7, color=f"C{rank % 10}")
    for kill in killed:
        for axis in (loss_ax, time_ax, band_ax):
            axis.axvline(kill["t"] - start, color="black", lw=0.8, ls="--")
        band_ax.annotate(
            "SIGKILL", (kill["t"] - start, kill["rank"]), textcoords="offset points", xytext=(4, -3), fontsize=8
        )
    loss_ax.set(
        ylabel="loss of the rank's share", yscale="log", title=f"{world} ranks of DistributedDataParallel, one job"
    )
    loss_ax.legend(loc="upper right", ncols=world, fontsize=8, markerscale=4)
    time_ax.set(ylabel="step time, ms", yscale="log")
    band_ax.set(
        ylabel="takes part", yticks=range(world), xlabel="seconds since the first step", ylim=(-0.6, world - 0.4)
    )
    band_ax.invert_yaxis()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def verdict(trainer, records, acc, baseline):
    """Everything that is not as it should be, as sentences."""
    faults = []
    if acc < ACCURACY_MIN:
        faults.append(f"accuracy {acc:.4f} is below {ACCURACY_MIN}")
    if baseline is not None and abs(acc - baseline) > ACCURACY_SLACK:
        faults.append(f"accuracy {acc:.4f} is not within {ACCURACY_SLACK} of the undisturbed run's {baseline:.4f}")
    late = [r for lines in records.values() for r in lines if r["step"] >= trainer.args.steps * 2 // 3]
    short = {r["step"] for r in late if len(r["active"]) != trainer.world}
    if short:
        faults.append(
            f"{len(short)} of the last third's steps ran without all {trainer.world} ranks, "
            f"the last one step {max(short)}"
        )
    return faults


def finish(trainer, view):
    args, folder = trainer.args, trainer.dir
    acc = accuracy(trainer)
    baseline = None
    if args.baseline:
        with open(args.baseline) as file:
            baseline = json.load(file)["accuracy"]
    records = read_records(folder)
    killed = [json.loads(p.read_text()) for p in sorted(folder.glob("killed-*.json"))]
    picture = folder / "elastic_training.png"
    draw(records, trainer.world, killed, picture)
    faults = verdict(trainer, records, acc, baseline)
    result = {
        "accuracy": acc,
        "baseline": baseline,
        "checksum": trainer.state.checksum(),
        "checks": trainer.checks,
        "epoch": view.epoch,
        "faults": faults,
        "killed": [k["rank"] for k in killed],
    }
    (folder / "result.json").write_text(json.dumps(result) + "\n")
    if not args.quiet:
        print(f"accuracy {acc:.4f}" + (f", without a fault {baseline:.4f}" if baseline is not None else ""))
        print(
            f"parameters and momentum of all {len(view.active)} ranks: checksum {trainer.state.checksum():08x}, "
            f"compared {trainer.checks} times"
        )
        print(f"picture {picture}")
    for fault in faults:
        print(f"  {fault}")
    if not args.quiet or faults:
        print("FAIL" if faults else "PASS", flush=True)
    sys.stdout.flush()
